"""Agents: observations in, actions out. They own their model and their normalizer, not an optimizer or an algorithm."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from drl.core.errors import BadInput
from drl.core.safe_files import write_atomically
from drl.core.specs import Array, PlainDict
from drl.core.state_files import seal_pth
from drl.core.variants import PROBES
from drl.engines.numpy.acting import ModelAgent, PolicyActor, QActor
from drl.engines.numpy.distributions import choose
from drl.engines.numpy.exploration import AnyExploration, ExplorationConfig
from drl.engines.torch.actor_critics import ActorCritic
from drl.engines.torch.layers import dropout_parts, noisy_layers, resample
from drl.engines.torch.models import (
    PolicyValueModel,
    QHead,
    architecture_of,
    load_parameters,
    parameters_by_name,
)
from drl.engines.torch.numpy_views import policy_views, q_views, recurrent_views
from drl.engines.torch.ops import to_tensors
from drl.engines.torch.recurrent import arrange, one_step

Views = TypeVar("Views")


class TorchAgent(ModelAgent[nn.Module]):
    """Base class of both agents: the model's outputs, the hidden state of a recurrent model, and files.

    A recurrent agent carries its state from one `act` to the next; call `begin` at the start of every episode.
    """

    engine = "torch"

    def take(self, model: nn.Module, exploration: ExplorationConfig | None) -> None:
        self.model: nn.Module = model
        self._first_parameter = next(model.parameters())
        self.rnn_state_size: int = arrange(model)  # numbers per environment
        self.recurrent: bool = self.rnn_state_size > 0
        self.rnn_state: Array | None = None  # [N, S]
        dropout_parts(model)  # off from now on; an update turns it on while it lasts
        for name, module in model.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):  # nothing would update its statistics
                raise BadInput(
                    f"the model's {name or 'root'} is a {type(module).__name__}, which acts differently in training "
                    "and in evaluation; use LayerNorm"
                )

    def _probe(self) -> Any:
        """The model's output for observations of zeros, which shows its variant."""
        return self.forward(np.zeros((PROBES, *self.obs_spec.shape), self.obs_spec.dtype))

    def forward(self, obs: Array, part: nn.Module | None = None, after: Tensor | None = None) -> Any:
        """The output of the model, or of a part of it, for encoded observations, without gradients. `after` is filled
        with the next hidden state of a recurrent model."""
        with torch.no_grad():
            rows: Any = to_tensors(self.normalize(obs), self.device)
            if self.recurrent:
                rows = one_step(rows, torch.from_numpy(self.recall(len(obs))).to(self.device), after)
            return (part or self.model)(rows)

    def begin(self, envs: Array | None = None) -> None:
        """New episodes begin: in all environments, or in those of the mask `[N]`. Their hidden state is reset."""
        super().begin(envs)
        if envs is None:
            self.rnn_state = None
        elif self.rnn_state is not None and envs.any():
            self.rnn_state = np.where(envs[:, None], np.float32(0.0), self.rnn_state)

    def recall(self, num_envs: int) -> Array:
        """The hidden state of a recurrent agent `[N, S]`; zeros if it has none yet."""
        if self.rnn_state is None:
            return np.zeros((num_envs, self.rnn_state_size), np.float32)
        if len(self.rnn_state) != num_envs:
            raise BadInput(
                f"this recurrent agent is in the middle of {len(self.rnn_state)} episodes and got {num_envs} "
                "observations; call agent.begin() before it plays another number of environments"
            )
        return self.rnn_state

    @property
    def device(self) -> torch.device:
        """The device of its parameters."""
        return self._first_parameter.device

    def parameters(self) -> dict[str, Array]:
        """The model's current parameters by name."""
        return {name: t.detach().cpu().numpy() for name, t in parameters_by_name(self.model).items()}

    def load_parameters(self, params: dict[str, Array], source: str) -> None:
        """Copy parameters into the model; every name and shape must match."""
        load_parameters(self.model, params, source)

    def architecture(self) -> PlainDict | None:
        """The config that the model was built from; None for a custom model."""
        return architecture_of(self.model, self.variant, self.obs_spec, self.action_spec)

    @classmethod
    def filled(cls, model: nn.Module, params: dict[str, Array], source: str, device: str) -> nn.Module:
        """A model with these parameters, on a device."""
        load_parameters(model, params, source)
        return model.to(device)

    def save_policy_net(self, path: str | Path) -> None:
        """Write the policy as a plain state dict for PyTorch; read it with `torch.load(path, weights_only=True)`."""
        write_state_dict(getattr(self.model, "actor", self.model), path)


class PolicyAgent(PolicyActor, TorchAgent):
    """Acts by a policy: a sample from its distribution when it explores, else the mode.

    With a recurrent model `decide` and `act` advance the hidden state; `explain` and `value` do not.
    """

    rnn_state: Array | None

    def take(self, model: nn.Module, exploration: ExplorationConfig | None) -> None:
        super().take(model, exploration)
        self.exploration: AnyExploration | None = self.explore_by(exploration, model, self._probe)
        actor = model.actor if type(model) is ActorCritic else model
        self._policy = NumpyViews(actor, policy_views)
        self._memory = NumpyViews(model, recurrent_views)

    def decide(self, obs: Array, explore: bool = False, action_mask: Array | None = None) -> Array:
        if self.recurrent:
            dist_params, self.rnn_state = self._step(obs)
        else:
            dist_params = self.dist_params(obs)
        action = choose(self, dist_params, explore, action_mask)
        return self.exploration(action, self.rng, action_mask) if explore and self.exploration else action

    def dist_params(self, obs: Array) -> Array:
        if self.recurrent:
            return self._step(obs)[0]
        net = self._policy.newest()
        if net is not None:
            return net(obs if self.normalizer is None else self.normalizer(obs))
        policy = self.model.actor if type(self.model) in (PolicyValueModel, ActorCritic) else self.model
        answer = self.forward(obs, policy)  # type: ignore[arg-type]
        params: Array = (answer[0] if isinstance(answer, tuple) else answer).cpu().numpy()
        return params

    def _step(self, obs: Array) -> tuple[Array, Array]:
        """Distribution parameters of a recurrent model, and its next hidden state."""
        rnn_state, net = self.recall(len(obs)), self._memory.newest()
        if net is not None:
            return net.step(self.normalize(obs), rnn_state)
        after = torch.empty(rnn_state.shape, device=self.device)
        answer = self.forward(obs, after=after)
        return (answer[0] if self.has_value else answer).cpu().numpy(), after.cpu().numpy()

    def critic(self, obs: Array) -> Array:
        value: Array = self.forward(obs)[1].cpu().numpy()
        return value

    def save_value_net(self, path: str | Path) -> None:
        """Write the critic as a plain state dict."""
        if not self.has_value:
            raise BadInput("this agent has a policy-only model; there is no value net to save")
        write_state_dict(getattr(self.model, "critic", self.model), path)


class QAgent(QActor, TorchAgent):
    """Acts by action values: the legal action of the highest value, modified by its exploration."""

    def take(self, model: nn.Module, exploration: ExplorationConfig | None) -> None:
        super().take(model, exploration)
        self._noisy = noisy_layers(model)
        self.exploration: AnyExploration | None = self.explore_by(exploration, model, self._probe, bool(self._noisy))
        self._net = NumpyViews(model, q_views)

    def q_values(self, obs: Array, noisy: bool = False) -> Array:
        if noisy and self._noisy:
            resample(self._noisy, self.rng)  # new noise at every step, also before the first update
        net = None if noisy and self._noisy else self._net.newest()
        if net is not None:
            return net(obs if self.normalizer is None else self.normalizer(obs))
        for layer in self._noisy:
            layer.quiet = not noisy
        answer = self.forward(obs)
        for layer in self._noisy:
            layer.quiet = False
        head = getattr(self.model, "head", None)
        values: Array = (head.q_values(answer) if isinstance(head, QHead) else answer).cpu().numpy()
        return values


class NumpyViews(Generic[Views]):
    """A model as NumPy arrays that share memory with torch, which act without the framework's overhead.

    Training changes parameters in place, so the views follow it. They are made again if a part was replaced or
    parameters have moved (into a flat tensor, to another device).
    """

    def __init__(self, model: nn.Module, make: Callable[[nn.Module], Views | None]):
        self.model: nn.Module = model
        self.make = make
        self._parts: list[tuple[dict[str, Any], str, object]] = []  # (where a part is registered, its name, the part)
        self._place = -1  # of the first parameter
        self._views: Views | None = None

    def newest(self) -> Views | None:
        """The current views; None if the model has no NumPy form."""
        if not self._parts or not self._unchanged():
            modules = list(self.model.modules())
            tables: list[dict[str, Any]] = [m._modules for m in modules] + [m._parameters for m in modules]
            self._parts = [(table, name, part) for table in tables for name, part in table.items()]
            self._first = next(self.model.parameters())
            self._place = self._first.data_ptr()
            on_cpu = all(p.device.type == "cpu" for p in self.model.parameters())
            self._views = self.make(self.model) if on_cpu else None
        return self._views

    def _unchanged(self) -> bool:
        return self._first.data_ptr() == self._place and all(table[name] is part for table, name, part in self._parts)


def write_state_dict(module: nn.Module, path: str | Path) -> None:
    """Write a `.pth` file atomically. Tensors are cloned: views would drag the whole flat tensor into the file."""
    buffer = io.BytesIO()
    torch.save({name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}, buffer)
    write_atomically(Path(path), seal_pth(buffer.getvalue()))
