"""The base classes of this engine's algorithms: an algorithm without state, and one with the state of a run."""

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.core.configs import Config
from drl.core.contracts import Loss, Rates
from drl.core.errors import BadInput, UnusableFile
from drl.core.schedules import Constant, Schedule, ScheduledRates, rates_type, schedule_of
from drl.core.seeding import generator_state, restore_generator, stream_of
from drl.core.specs import ActionSpec, AnyArray, Array, Distribution, Specs
from drl.core.state_files import StateDict, StateValue
from drl.core.variants import require_variant
from drl.engines.jax import ops
from drl.engines.jax.backbones import fields
from drl.engines.jax.layers import Params, Tree, has_dropout
from drl.engines.jax.model_state import ModelState, by_name, restore_state, state_arrays
from drl.engines.jax.optimizer import AnyOptimizer, OptState, optimizer_of
from drl.engines.numpy.model_kinds import distribution_of, known_variant


class LearnerState(NamedTuple):
    """State of most algorithms between two updates."""

    params: Tree
    optimizer: OptState
    running_mean: AnyArray | None = None  # float32: of REINFORCE's returns, for baseline `mean`; NaN before the first


class Learner(ScheduledRates):
    """An algorithm and its model state. `record` has the variant that the model must have, and the default config.

    A subclass sets states of optimizers, target networks and further arrays as attributes; `state_dict` finds them, and
    random generators too. Plain numbers that training changes are named in `STATE`. Its losses are methods that
    compiled programs call on a copy without state: they read `self.config`, `self.model`, `self.dist`,
    `self.action_spec` and attributes of the class, and nothing else of `self`.
    """

    record: ClassVar[AlgorithmRecord]
    config: Config
    model: Any
    PURE: ClassVar["type[Pure]"]  # its pure functions; `Pure` if `learn` calls programs of its own
    RATES: ClassVar[tuple[str, ...]] = ()  # settings with a schedule that the losses get as `rates`
    STATE: ClassVar[tuple[str, ...]] = ()  # attributes that are plain numbers, or None, and belong to the state
    KEYS: ClassVar[Mapping[str, str | None]] = {}  # attribute → its key in the state if it differs; None: not saved

    def __init__(
        self,
        model_state: ModelState,
        specs: Specs,
        config: Config = None,
        rng: np.random.Generator | None = None,
    ):
        self.config = config or self.record.config()
        self.needs: str = self.record.variant(self.config)
        require_variant(type(self).__name__, self.needs, known_variant(model_state.model))
        self.model_state: ModelState = model_state
        self.model = model_state.model
        self.action_spec: ActionSpec = specs.action_spec
        self.rng: np.random.Generator = rng or stream_of(specs, "learner")
        self.learning_rate = schedule_of(self.config, "learning_rate")
        freeze = tuple(getattr(getattr(self.model, "config", None), "freeze", ()))
        self.pure: Any = self.PURE(type(self), self.model, self.action_spec, self.config, freeze)
        self.pure.check_names(by_name(model_state.params))
        self.schedules: dict[str, Schedule] = self.pure.schedules
        self.drops: bool = self.pure.drops

    @cached_property
    def dist(self) -> Distribution:
        """Distribution of the policy."""
        return distribution_of(self.model, self.action_spec)

    def predict(self, obs: Array) -> Array:
        """Distribution parameters or action values, for encoded and normalized observations `[N, …]`. `agent.act`
        encodes and normalizes first, and then chooses an action from them."""
        answer = self.model_state.model.apply(self.model_state.params, fields(obs))
        return np.asarray(answer[0] if isinstance(answer, tuple) else answer)

    def sync_target(self) -> None:
        """Copy the online network into the target network, if there is one."""

    def settings_at(self, progress: float) -> dict[str, float]:
        """The current value of each scheduled setting; constant ones are part of the compiled program."""
        schedules = self.schedules | {"learning_rate": self.learning_rate}
        return {name: each(progress) for name, each in schedules.items()}

    def dropout_key(self) -> Array | None:
        """A new key for the dropout of one update; None without dropout."""
        return self.rng.integers(1 << 32, size=2, dtype=np.uint32) if self.drops else None

    def state_dict(self) -> StateDict:
        """States of optimizers, target networks, random generators, and what `STATE` names."""
        state: StateDict = {key: _state_of(getattr(self, name)) for name, key in self._stateful()}
        return state | {name: getattr(self, name) for name in self.STATE}

    def load_state_dict(self, state: StateDict) -> None:
        parts = self._stateful()
        if missing := sorted({*(key for _, key in parts), *self.STATE} - state.keys()):
            raise UnusableFile(f"the state has no {missing[0]!r} of {type(self).__name__}; another class has saved it")
        for name, key in parts:
            part, stored = getattr(self, name), state[key]
            if isinstance(part, np.random.Generator):
                restore_generator(part, stored)
            elif hasattr(part, "load_state_dict"):
                part.load_state_dict(stored)
            else:
                setattr(self, name, restore_state(part, stored if isinstance(stored, dict) else {"": stored}))
        for name in self.STATE:
            setattr(self, name, state[name])

    def _stateful(self) -> list[tuple[str, str]]:
        """Attributes with a state, and their keys: arrays and trees of arrays, random generators, and objects with a
        state of their own."""
        keys = {name: self.KEYS.get(name, name) for name, part in vars(self).items() if _has_state(part)}
        if self.drops:  # the generator draws keys, so that it is saved
            keys["rng"] = "rng"
        return [(name, key) for name, key in keys.items() if key is not None]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{type(self).__name__} has no attribute {name!r}; a compiled loss sees only self.config, self.model, "
            "self.dist, self.action_spec and attributes of the class"
        )


def _has_state(part: StateValue) -> bool:
    if isinstance(part, np.random.Generator) or hasattr(part, "load_state_dict"):
        return True
    leaves = jax.tree.leaves(part)
    return bool(leaves) and all(isinstance(leaf, jax.Array | np.ndarray | np.generic) for leaf in leaves)


def _state_of(part: StateValue) -> StateValue:
    if isinstance(part, np.random.Generator):
        return generator_state(part)
    return part.state_dict() if hasattr(part, "state_dict") else state_arrays(part)


@dataclass(frozen=True)
class Pure:
    """An algorithm without state: a static argument of compiled functions; its methods are pure."""

    algorithm: type[Learner]  # whose losses it calls
    model: Any
    action_spec: ActionSpec
    config: Config
    freeze: tuple[str, ...] = ()  # patterns of names of parameters that stay as they are

    @property
    def drops(self) -> bool:
        """Whether the model has dropout, so that updates need keys."""
        return has_dropout(self.model)

    def check_names(self, params: Params) -> None:
        """Raise for a pattern of `freeze` that no parameter matches."""
        for pattern in self.freeze:
            if not fnmatch.filter(params, pattern):
                some = ", ".join(list(params)[:20])
                raise BadInput(f"freeze has {pattern!r}, which no parameter matches; there are {some}")

    def is_frozen(self, path: tuple[object, ...], prefix: str = "") -> bool:
        """Whether a parameter stays as it is."""
        name = prefix + jax.tree_util.keystr(path, simple=True, separator=".")
        name = f"{name.removesuffix('kernel')}weight" if name.endswith(".kernel") else name
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.freeze)

    @property
    def hooks(self) -> Any:
        """An instance of the algorithm with its configuration only, to call its losses."""
        hooks = object.__new__(self.algorithm)
        hooks.model, hooks.action_spec, hooks.config = self.model, self.action_spec, self.config
        return hooks

    @property
    def dist(self) -> Distribution:
        """Distribution of the policy."""
        return distribution_of(self.model, self.action_spec)

    @property
    def optimizer(self) -> AnyOptimizer:
        """By the settings of the config."""
        return optimizer_of(self.config)

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The learning rate, then those of the algorithm's `RATES` that change: further arguments of `step`, as
        functions of the share of the budget used."""
        rates = {name: schedule_of(self.config, name) for name in self.algorithm.RATES}
        changing = {name: each for name, each in rates.items() if not isinstance(each, Constant)}
        return {"learning_rate": schedule_of(self.config, "learning_rate")} | changing

    def rates(self, changing: tuple[ArrayLike, ...], **more: ArrayLike) -> Rates:
        """All of the algorithm's `RATES` from those that change, and `more`, by name."""
        names = [name for name in self.schedules if name != "learning_rate"]
        values = {name: getattr(self.config, name) for name in self.algorithm.RATES}
        values |= dict(zip(names, changing, strict=True)) | more
        return rates_type(tuple(values))(**values)

    def begin(self, params: Tree) -> Any:
        """The state before the first update."""
        return LearnerState(params, self.optimizer.init(params))

    def descend(
        self, loss_of: Callable[[Tree], Loss], params: Tree, opt_state: OptState, rate: ArrayLike, prefix: str = ""
    ) -> tuple[Tree, OptState, Loss, jax.Array]:
        """One gradient step: new parameters, new state of the optimizer, the loss, and the gradient's norm. `prefix` is
        missing in the names of the parameters."""
        frozen = jax.tree_util.tree_map_with_path(lambda path, _: self.is_frozen(path, prefix), params)

        def value(params: Tree) -> tuple[jax.Array, Loss]:
            trained = jax.tree.map(lambda leaf, still: jax.lax.stop_gradient(leaf) if still else leaf, params, frozen)
            loss = Loss.checked(loss_of(trained), self.algorithm.__name__)
            return loss.value, jax.lax.stop_gradient(loss)

        gradient, loss = jax.grad(value, has_aux=True)(params)
        moved, opt_state, norm = self.optimizer.descend(params, opt_state, gradient, rate)
        moved = jax.tree.map(lambda old, new, still: old if still else new, params, moved, frozen)
        return moved, opt_state, loss, norm


Learner.PURE = Pure


def scalars(metrics: dict[str, AnyArray], weight: AnyArray | None = None) -> dict[str, jax.Array]:
    """Metrics as one number each: means over rows where there is one per row. Rows of weight 0 do not count."""
    return {name: ops.mean(value, weight) if jnp.ndim(value) else value for name, value in metrics.items()}


@partial(jax.tree_util.register_dataclass, data_fields=("values",), meta_fields=("names",))
@dataclass(frozen=True)
class Metrics:
    """Numbers by name, in one array: a compiled loop stores one array faster than many."""

    names: tuple[str, ...]
    values: jax.Array  # […, names]

    @classmethod
    def of(cls, numbers: dict[str, AnyArray]) -> Self:
        """Stack numbers of the same shape."""
        return cls(tuple(numbers), jnp.stack(list(numbers.values())))

    def named(self) -> dict[str, jax.Array]:
        """Of one update, by name."""
        return dict(zip(self.names, self.values, strict=True))
