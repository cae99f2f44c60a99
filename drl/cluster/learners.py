"""Many learners for one run (experimental): more processes of a cluster share every update of the driver.

The run itself (environments, buffer, logs, checkpoints) stays in the driver, which is the first learner. It sends every
batch to the others; `drl/engines/torch/learner_group.py` says how they make one gradient of their parts.
"""

import contextlib
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from drl.cluster.ray_cluster import import_ray, open_cluster
from drl.core.contracts import Agent, Batch, Learned
from drl.core.errors import BadInput, LearnerFailed
from drl.core.network_parts import import_plugins, resolve
from drl.core.specs import Array
from drl.core.state_files import StateDict
from drl.trainer.trainer import Trainer

if TYPE_CHECKING:
    from types import ModuleType

GROUP = "drl.engines.torch.learner_group"
START_SECONDS = 300.0  # for a process to start and to build its learner
ANSWER_SECONDS = 30.0  # for a learner's answer after the driver has finished the same update
Build = Callable[..., tuple[Any, Any]]  # (compile_update) → the agent and the algorithm of a run


class Recipe(NamedTuple):
    """How to build a learner in another process."""

    plugins: tuple[str, ...]  # modules to import first
    pickled: bytes  # a `Build`, before the driver's own learner took over the user's model


class LearnerProcess:
    """One of the additional learners: an actor."""

    agent: Any
    algorithm: Any

    def build(self, recipe: Recipe, compiled: bool) -> tuple[str, int]:
        """Returns its host and its process."""
        import_plugins(recipe.plugins)
        from ray import cloudpickle

        # Batches in the object store are read only; no algorithm writes into one.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        build: Build = cloudpickle.loads(recipe.pickled)
        self.agent, self.algorithm = build(compile_update=compiled)
        return socket.gethostname(), os.getpid()

    def join(self, meeting: Any, rank: int, size: int) -> None:
        """Meet the other learners."""
        self.group: Any = resolve(f"{GROUP}:LearnerGroup")(meeting, rank, size)
        self.algorithm.share(self.group)

    def load(self, algorithm: StateDict, model: dict[str, Array], rate_factor: float) -> None:
        """Take the first learner's optimizer, weights and learning rate."""
        self.algorithm.load_state_dict(algorithm)
        self.algorithm.learning_rate_factor = rate_factor
        resolve("drl.engines.torch.models:load_parameters")(self.agent.model, model, "the state of the first learner")

    def learn(self, batch: Batch, progress: float) -> None:
        try:
            self.algorithm.learn(batch, progress)
        except BaseException:
            self.group.leave()  # nobody must wait for this process
            raise


class Member(NamedTuple):
    """Driver-side handle of an additional learner."""

    actor: Any
    name: str  # for messages


class ManyLearners:
    """An algorithm whose every update is shared with `members`. If one of them fails, the update is finished without
    them, and `failure` says why the run should end; updates until then are computed alone."""

    def __init__(self, ray: "ModuleType", algorithm: Any, agent: Agent, group: Any, members: Sequence[Member]):
        self.ray: ModuleType = ray
        self.algorithm: Any = algorithm
        self.agent: Agent = agent
        self.group: Any = group
        self.members: Sequence[Member] = members
        self.needs: str = algorithm.needs
        self.in_step: bool = False  # whether the others have our weights and random streams
        self.failure: LearnerFailed | None = None
        algorithm.share(group)

    def learn(self, batch: Batch, progress: float = 0.0) -> Learned:
        calls = [] if self.failure else self._begin(batch, progress)
        learned: Learned = self.algorithm.learn(batch, progress)
        if calls:
            self._end(calls)
        return learned

    def _begin(self, batch: Batch, progress: float) -> list[Any]:
        try:
            if not self.in_step:
                state = self.ray.put(self.algorithm.state_dict())
                model = self.ray.put(self.agent.state_dict()["model"])
                factor = getattr(self.algorithm, "learning_rate_factor", 1.0)
                loading = [each.actor.load.remote(state, model, factor) for each in self.members]
                self.ray.get(loading, timeout=START_SECONDS)
                self.in_step = True
            shared = self.ray.put(batch)
            return [member.actor.learn.remote(shared, progress) for member in self.members]
        except self.ray.exceptions.RayError as error:
            self._fail(f"the learners cannot be reached: {type(error).__name__}: {_first_line(error)}")
            return []

    def _end(self, calls: list[Any]) -> None:
        """Wait for the others, and find the one that failed first."""
        errors = self.ray.exceptions
        died, raised, silent, left = list[str](), list[str](), list[str](), list[str]()
        for member, call in zip(self.members, calls, strict=True):
            try:
                self.ray.get(call, timeout=ANSWER_SECONDS)
            except errors.GetTimeoutError:
                silent.append(f"{member.name} does not answer")
            except errors.RayTaskError as error:
                cause = error.cause
                blamed = left if isinstance(cause, LearnerFailed) else raised
                blamed.append(f"{member.name} failed: {type(cause).__name__}: {_first_line(cause)}")
            except errors.RayError as error:
                died.append(f"{member.name} died ({type(error).__name__})")
        if failures := died + raised + silent + left:
            self._fail(failures[0])
        elif self.group.broken:
            self._fail(f"the learners have lost each other: {self.group.broken}")

    def _fail(self, why: str) -> None:
        self.group.broken = self.group.broken or why
        self.failure = LearnerFailed(f"{why}; this update was finished without it and everything is saved: drl resume")

    @property
    def learning_rate_factor(self) -> float:
        """Factor of the learning rate of all learners."""
        return float(self.algorithm.learning_rate_factor)

    @learning_rate_factor.setter
    def learning_rate_factor(self, factor: float) -> None:
        self.algorithm.learning_rate_factor = factor
        self.in_step = False  # the others learn it with the next update

    def predict(self, obs: Array) -> Array:
        prediction: Array = self.algorithm.predict(obs)
        return prediction

    def sync_target(self) -> None:
        self.algorithm.sync_target()
        self.in_step = False

    def state_dict(self) -> StateDict:
        state: StateDict = self.algorithm.state_dict()
        return state

    def load_state_dict(self, state: StateDict) -> None:
        self.algorithm.load_state_dict(state)
        self.in_step = False


def recipe_of(build: Build, plugins: tuple[str, ...], address: str) -> Recipe:
    """Pack a build for another process, including functions and modules of a user's script."""
    return Recipe(plugins, import_ray(address).cloudpickle.dumps(build))


@contextlib.contextmanager
def open_learners(
    address: str, count: int, recipe: Recipe, compiled: bool, trainer: Trainer[Batch], resources: dict[str, float]
) -> Iterator[ManyLearners]:
    """The algorithm of `trainer`, shared with `count - 1` processes of the cluster, which are ended afterwards. Each of
    them reserves `resources`: num_cpus, num_gpus."""
    algorithm, agent = trainer.algorithm, trainer.agent
    if not hasattr(algorithm, "share"):
        raise BadInput(f"{type(algorithm).__name__} has one learner; use --num-learners 1")
    with open_cluster(address) as ray, contextlib.ExitStack() as stack:
        # One that dies is not started again: it would lack the weights of the others.
        kind = ray.remote(max_restarts=0, scheduling_strategy="SPREAD", **resources)(LearnerProcess)
        actors = list[Any]()

        @stack.callback
        def end() -> None:
            for actor in actors:
                with contextlib.suppress(ray.exceptions.RayError):  # the whole cluster may be gone
                    ray.kill(actor)

        for _ in range(count - 1):
            actors.append(kind.remote())
        members = _built(ray, actors, recipe, compiled)
        local = address == "local"
        host = "127.0.0.1" if local else ray.util.get_node_ip_address()
        device = next(agent.model.parameters()).device  # type: ignore[attr-defined]
        meeting, store = resolve(f"{GROUP}:host_meeting")(host, device, only_loopback=local)
        for number, actor in enumerate(actors):
            actor.join.remote(meeting, number + 1, count)
        try:
            group = resolve(f"{GROUP}:LearnerGroup")(meeting, 0, count, store)
        except RuntimeError as error:
            raise LearnerFailed(f"the learners cannot reach each other at {host}: {_first_line(error)}") from error
        stack.callback(group.leave)
        yield ManyLearners(ray, algorithm, agent, group, members)


def _built(ray: "ModuleType", actors: list[Any], recipe: Recipe, compiled: bool) -> list[Member]:
    try:
        places = ray.get([actor.build.remote(recipe, compiled) for actor in actors], timeout=START_SECONDS)
    except ray.exceptions.GetTimeoutError:
        free = ray.available_resources()
        has = f"the cluster has {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs left"
        late = f"{len(actors) + 1} learners did not start within {START_SECONDS:g} s, and {has}"
        raise BadInput(f"{late}; use fewer --num-learners, or a larger cluster") from None
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        raise BadInput(f"a learner cannot be built: {type(cause).__name__}: {_first_line(cause)}") from error
    return [
        Member(actor, f"learner {number} of {len(actors) + 1} (host {host}, process {process})")
        for number, (actor, (host, process)) in enumerate(zip(actors, places, strict=True), start=2)
    ]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
