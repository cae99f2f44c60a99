"""Many learners for one run (experimental): what they can share, and with whom. See docs/scaling.md."""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from drl.algorithms import find_algorithm
from drl.core.errors import BadInput
from drl.core.transition import Batch
from drl.settings.experiment import Experiment
from drl.trainer.trainer import Trainer

if TYPE_CHECKING:
    from drl.cluster.learners import Recipe


def check_learners(experiment: Experiment) -> None:
    """Raise where the updates of a run cannot be shared."""
    run, scaling, count = experiment.run, experiment.scaling, experiment.scaling.num_learners
    if count == 1:
        return
    rows, what = _rows_of_update(experiment)
    if rows is not None and rows < count:
        raise BadInput(f"num_learners is {count}, but {what} has {rows}; use at most --num-learners {max(rows, 1)}")
    if run.engine == "torch" and getattr(experiment.model, "batch_renorm", False):
        what = f"num_learners is {count} with batch_renorm, which needs whole batches in one learner"
        raise BadInput(f"{what}; use --num-learners 1, --no-batch-renorm or --engine jax")
    if run.engine == "jax":
        if scaling.cluster != "local":
            where = f"cluster is {scaling.cluster!r}"
            raise BadInput(f"{where}, but the learners of the JAX engine are devices of one process; use local")
        if not str(find_algorithm(experiment.algorithm).engines["jax"]).startswith("drl."):
            raise BadInput(f"{experiment.algorithm} with the JAX engine has one learner; use --num-learners 1")
        if rows is not None and rows % count:
            what = f"num_learners is {count}, and {what} has {rows}"
            raise BadInput(f"{what}; the JAX engine gives every device as many: choose numbers that divide")
        if find_algorithm(experiment.algorithm).buffer.whole_episodes and count & (count - 1):
            raise BadInput(f"num_learners is {count}; with {experiment.algorithm} and JAX it must be a power of two")


def _rows_of_update(experiment: Experiment) -> tuple[int | None, str]:
    """What the learners divide in one gradient step, if that is known before; and its name."""
    run, learner, batch_size = experiment.run, experiment.learner, getattr(experiment.buffer, "batch_size", None)
    if batch_size is not None:
        return batch_size, "a batch of rows"
    length, parts = getattr(learner, "rollout_length", None), getattr(learner, "minibatches", 1)
    if length is None:
        return None, ""
    if getattr(experiment.model, "recurrent", "none") != "none":
        return run.num_envs // parts, "a minibatch of whole environments"
    rows = length * run.num_envs
    return (-(-rows // parts) if run.engine == "jax" else rows // parts), "a minibatch of rows"


def learner_recipe(experiment: Experiment, make: "partial[tuple[Any, Any]]") -> "Recipe | None":
    """What the further learners are built from; None: the JAX engine has devices instead."""
    run, scaling = experiment.run, experiment.scaling
    if run.engine == "jax":
        return None
    from drl.cluster.learners import recipe_of
    from drl.engines.torch.build import pick_device

    device = pick_device(run.device).type  # of this process; the others see only their own GPU
    if device not in ("cpu", "cuda"):
        raise BadInput(f"num_learners is {scaling.num_learners} on {device}; expected --device cpu or cuda")
    assert scaling.cluster is not None
    return recipe_of(partial(make, device=device), run.plugins, scaling.cluster)


@contextlib.contextmanager
def share_updates(experiment: Experiment, trainer: Trainer[Batch], recipe: "Recipe | None") -> Iterator[None]:
    """Let further learners compute a part of every update of `trainer`."""
    run, scaling = experiment.run, experiment.scaling
    count, algorithm, agent = scaling.num_learners, trainer.algorithm, trainer.agent
    trainer.notes = {**trainer.notes, "learners": f"experimental: {count} learners"}
    if recipe is None:
        from drl.engines.jax.devices import ManyDevices

        trainer.algorithm = ManyDevices(algorithm, count, run.device)
        yield
        return
    from drl.cluster.learners import open_learners

    assert scaling.cluster is not None
    on_gpu = next(agent.model.parameters()).device.type == "cuda"  # type: ignore[attr-defined]
    # A cluster for this command is on this machine, which no other command reserves.
    cpus = 0 if scaling.cluster == "local" else run.threads or 1
    resources = {"num_cpus": float(cpus), "num_gpus": float(on_gpu)}
    compiled = dict(trainer.notes.get("compile") or {}).get("choice") == "on"  # type: ignore[call-overload]
    with open_learners(scaling.cluster, count, recipe, compiled, trainer, resources) as shared:
        trainer.algorithm = shared
        yield
