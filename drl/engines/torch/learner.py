"""The base class of this engine's algorithms: predictions, optimizers, and the state that checkpoints hold."""

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.core.configs import Config
from drl.core.contracts import Loss
from drl.core.errors import BadInput, UnusableFile
from drl.core.schedules import Schedule, ScheduledRates, schedule_of
from drl.core.seeding import generator_state, restore_generator, stream_of
from drl.core.specs import ActionSpec, Array, Specs
from drl.core.state_files import StateDict, StateValue
from drl.core.variants import require_variant
from drl.engines.numpy.model_kinds import known_variant
from drl.engines.torch.flat_optimizer import FlatOptimizer, Groups, Target
from drl.engines.torch.ops import Obs, to_tensors
from drl.engines.torch.other_optimizers import optimizer_of
from drl.engines.torch.recurrent import arrange, one_step

if TYPE_CHECKING:
    from drl.engines.torch.learner_group import LearnerGroup


class Learner(ScheduledRates):
    """An algorithm and its model. `record` has the variant that the model needs and the default config.

    A subclass sets its optimizers, networks, random generators and tensors as attributes; `state_dict` finds them.
    Plain numbers that training changes are named in `STATE`.
    """

    record: ClassVar[AlgorithmRecord]
    RATES: ClassVar[tuple[str, ...]] = ()  # settings with a schedule that the losses get as `rates`
    STATE: ClassVar[tuple[str, ...]] = ()  # attributes that are plain numbers, or None, and belong to the state
    KEYS: ClassVar[Mapping[str, str | None]] = {}  # attribute → its key in the state if it differs; None: not saved

    def __init__(
        self,
        model: nn.Module,
        specs: Specs,
        config: Config = None,
        rng: np.random.Generator | None = None,
        compile_update: bool = False,
    ):
        self.config: Config = config or self.record.config()
        self.needs: str = self.record.variant(self.config)
        require_variant(type(self).__name__, self.needs, known_variant(model))
        self.model: nn.Module = model
        self.compile_update: bool = compile_update
        # `specs` are environments, both specs, or an action spec alone.
        self.action_spec: ActionSpec = getattr(specs, "action_spec", cast("ActionSpec", specs))
        self.device: torch.device = next(model.parameters()).device
        # Rates are tensors, not floats: a compiled update takes new values without a new program.
        self.as_number: Callable[[float], Tensor] = partial(torch.tensor, device=self.device)
        self.rng: np.random.Generator = rng or stream_of(specs, "learner")
        self.learning_rate = schedule_of(self.config, "learning_rate")
        self.schedules: dict[str, Schedule] = {rate: schedule_of(self.config, rate) for rate in self.RATES}
        freeze(model, getattr(getattr(model, "config", None), "freeze", ()))

    def make_optimizer(
        self,
        module: nn.Module,
        loss: Callable[..., Loss],  # (module, *inputs) → Loss
        groups: Groups = (),
    ) -> FlatOptimizer:
        """The optimizer of a module, by the settings of the config."""
        config = self.config
        return FlatOptimizer(
            module,
            loss,
            kind=optimizer_of(config),
            eps=getattr(config, "adam_eps", getattr(config, "optimizer_eps", 1e-5)),
            max_grad_norm=getattr(config, "max_grad_norm", None),
            max_grad_value=getattr(config, "max_grad_value", None),
            beta1=getattr(config, "adam_beta1", 0.9),
            amsgrad=getattr(config, "amsgrad", False),
            weight_decay=getattr(config, "weight_decay", 0.0),
            groups=groups,
            compiled=self.compile_update,
            # The same number for the same stream, without a draw from it.
            dropout_seed=int(cast("np.random.SeedSequence", self.rng.bit_generator.seed_seq).generate_state(1)[0]),
        )

    def predict(self, obs: Array) -> Array:
        """Distribution parameters or action values for encoded and normalized observations `[N, …]`. A recurrent model
        starts from a zero hidden state."""
        output = self._forward(obs)
        numbers: Array = (output[0] if isinstance(output, tuple) else output).cpu().numpy()
        return numbers

    def _forward(self, obs: Array) -> Tensor | tuple[Tensor, Tensor]:
        device, size = next(self.model.parameters()).device, arrange(self.model)
        with torch.no_grad():
            rows: Obs = to_tensors(obs, device)
            output: Tensor | tuple[Tensor, Tensor] = self.model(
                one_step(rows, torch.zeros(len(obs), size, device=device)) if size else rows
            )
            return output

    def share(self, group: "LearnerGroup") -> None:
        """Share every update with other learners."""
        raise BadInput(f"{type(self).__name__} has one learner; use --num-learners 1")

    def sync_target(self) -> None:
        """Copy the online networks into the target networks, if there are any."""
        for part in vars(self).values():
            for target in part if isinstance(part, list) else [part]:
                if isinstance(target, Target):
                    target.move(1.0)

    def state_dict(self) -> StateDict:
        """Optimizers, target networks, random generators, further networks, tensors, and the attributes in `STATE`."""
        state: StateDict = {key: _state_of(part) for key, part in self._stateful()}
        return state | {name: getattr(self, name) for name in self.STATE}

    def load_state_dict(self, state: StateDict) -> None:
        missing = sorted({key for key, _ in self._stateful()}.union(self.STATE) - state.keys())
        if missing:
            raise UnusableFile(f"the state has no {missing[0]!r} of {type(self).__name__}; another class has saved it")
        for key, part in self._stateful():
            _restore(part, state[key])
        for name in self.STATE:
            setattr(self, name, state[name])

    def _stateful(self) -> Iterator[tuple[str, object]]:
        """Attributes with a state of their own, by their key. Networks whose parameters belong to the model or to an
        optimizer have none."""
        parts = vars(self)
        known = {_storage(tensor) for tensor in (*self.model.parameters(), *self.model.buffers())}
        known |= {_storage(part.values) for part in parts.values() if isinstance(part, FlatOptimizer)}
        for name, part in parts.items():
            key = self.KEYS.get(name, name)
            if key is not None and (name in self.KEYS or _has_state(part, known)):
                yield key, part


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the parameters whose names match a pattern."""
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        matches = fnmatch.filter(names, pattern)
        if not matches:
            raise BadInput(f"freeze has {pattern!r}, which no parameter matches; there are {', '.join(names[:20])}")
        for name in matches:
            model.get_parameter(name).requires_grad_(False)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _has_state(part: object, known: set[int]) -> bool:
    if isinstance(part, nn.Module):
        return any(_storage(tensor) not in known for tensor in part.state_dict().values())
    if isinstance(part, list):
        return bool(part) and all(isinstance(each, Target | Tensor | FlatOptimizer) for each in part)
    kinds = (FlatOptimizer, Target, np.random.Generator, torch.Generator, Tensor)
    return isinstance(part, kinds) or hasattr(part, "load_state_dict")


def _state_of(part: StateValue) -> StateValue:
    if isinstance(part, list):
        return [_state_of(each) for each in part]
    if isinstance(part, np.random.Generator):
        return generator_state(part)
    if isinstance(part, torch.Generator):
        return part.get_state().numpy()
    if isinstance(part, Tensor):
        return part.detach().cpu().numpy().copy()
    if isinstance(part, nn.Module):
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in part.state_dict().items()}
    return part.state_dict()


def _restore(part: StateValue, state: StateValue) -> None:
    if isinstance(part, list):
        for each, stored in zip(part, state, strict=True):
            _restore(each, stored)
    elif isinstance(part, np.random.Generator):
        restore_generator(part, state)
    elif isinstance(part, torch.Generator):
        part.set_state(torch.from_numpy(np.array(state)))
    elif isinstance(part, Tensor):
        part.detach().copy_(torch.from_numpy(np.array(state)))
    elif isinstance(part, nn.Module):
        part.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in state.items()})
    else:
        part.load_state_dict(state)
