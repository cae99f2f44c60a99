"""Agents: an observation in, an action out. They own their model and their normalizer, no optimizer, no algorithm."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from drl.core.agent_files import open_agent, save_agent
from drl.core.errors import BadInput, UnusableFile
from drl.core.normalize import ObsNormalizer
from drl.core.safe_files import write_atomically
from drl.core.seeding import generator_state, restore_generator
from drl.core.specs import Array, Distribution, Specs
from drl.core.state_files import StateDict, seal_pth
from drl.core.variants import PROBES, answered_variant, find_variant, maker_in, require_variant
from drl.engines.numpy.acting import Actor, PolicyActor, QActor
from drl.engines.numpy.distributions import choose, masked_argmax
from drl.engines.numpy.exploration import AnyExploration, ExplorationConfig, default_exploration, make_exploration
from drl.engines.torch.actor_critics import ActorCritic
from drl.engines.torch.flat_optimizer import dropout_parts
from drl.engines.torch.layers import noisy_layers, resample
from drl.engines.torch.models import (
    PolicyValueModel,
    QHead,
    architecture_of,
    distribution_of,
    known_variant,
    load_parameters,
    parameters_by_name,
)
from drl.engines.torch.numpy_views import policy_views, q_views, recurrent_views
from drl.engines.torch.ops import to_tensors
from drl.engines.torch.recurrent import arrange, one_step

Views = TypeVar("Views")


class TorchAgent(Actor):
    """What both agents share: the model's answers, and files.

    A recurrent agent remembers from one `act` to the next; call `begin` at the start of every episode.
    """

    variant: str  # of the model it acts with

    def __init__(
        self,
        model: nn.Module,
        specs: Specs,
        normalizer: ObsNormalizer | None = None,
        rng: np.random.Generator | None = None,  # for exploration
    ):
        super().__init__(specs, normalizer, rng)
        self.model = model
        self._first_parameter = next(model.parameters())
        self.rnn_state_size: int = arrange(model)  # numbers it remembers of each environment
        self.recurrent: bool = self.rnn_state_size > 0
        self.rnn_state: Array | None = None  # [N, S] what it remembers
        _refuse_modes(model)

    def _probe(self) -> Any:
        """The model's answer to observations of zeros: what kind of model is it?"""
        return self.forward(np.zeros((PROBES, *self.obs_spec.shape), self.obs_spec.dtype))

    def forward(self, obs: Array, part: nn.Module | None = None, after: Tensor | None = None) -> Any:
        """The answer of the model, or of a part of it, to encoded observations, without gradients.

        `after` is filled with what a recurrent model then remembers.
        """
        with torch.no_grad():
            rows: Any = to_tensors(self.normalize(obs), self.device)
            if self.recurrent:
                rows = one_step(rows, torch.from_numpy(self.recall(len(obs))).to(self.device), after)
            return (part or self.model)(rows)

    def begin(self, envs: Array | None = None) -> None:
        """Episodes begin: everywhere, or where the mask `[N]` says so. A recurrent agent forgets what came before."""
        super().begin(envs)
        if envs is None:
            self.rnn_state = None
        elif self.rnn_state is not None and envs.any():
            self.rnn_state = np.where(envs[:, None], np.float32(0.0), self.rnn_state)

    def recall(self, num_envs: int) -> Array:
        """What a recurrent agent remembers of each environment `[N, S]`: zeros as long as there is nothing."""
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
        """Where its parameters are."""
        return self._first_parameter.device

    def save(self, folder: str | Path, **notes: object) -> None:
        """Write the deployable agent: safetensors weights and a JSON card. `notes` (plain data) go on the card."""
        params = {name: t.detach().cpu().numpy() for name, t in parameters_by_name(self.model).items()}
        architecture = architecture_of(self.model, self.variant, self.obs_spec, self.action_spec)
        save_agent(folder, "torch", architecture, self, params, notes)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module | None = None, device: str = "cpu") -> Self:
        """Read what `save` wrote: an agent folder or the run folder around it. A custom model has to be given."""
        stored = open_agent(path)
        if model is None:
            if stored.config is None:
                raise BadInput(f"{path} was saved with a model of your own; pass it: load(path, model=MyModel(...))")
            make = maker_in(find_variant(stored.variant, path), "torch")
            try:
                model = make(stored.obs_spec, stored.action_spec, stored.config)
            except Exception as error:  # the card may come from anybody
                said = f"{error!r:.200}"
                raise UnusableFile(f"the card of {path} describes a model this drl cannot build ({said})") from None
        assert model is not None
        load_parameters(model, stored.params, str(path))
        agent = cls(model.to(device), stored, stored.normalizer, np.random.default_rng())
        agent.exploration = None  # it is trained
        return agent

    def state_dict(self) -> StateDict:
        """Everything that training changes about the agent, as plain data."""
        return {
            "model": {name: t.detach().cpu().numpy().copy() for name, t in parameters_by_name(self.model).items()},
            "normalizer": None if self.normalizer is None else self.normalizer.state_dict(),
            "rng": generator_state(self.rng),
            "rnn_state": None if self.rnn_state is None else self.rnn_state.copy(),
            "exploration": None if self.exploration is None else self.exploration.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        load_parameters(self.model, state["model"], "the checkpoint")
        if self.normalizer is not None:
            self.normalizer.load_state_dict(state["normalizer"])
        restore_generator(self.rng, state["rng"])
        self.rnn_state = None if state["rnn_state"] is None else np.array(state["rnn_state"], np.float32)
        if self.exploration is not None:
            self.exploration.load_state_dict(state["exploration"])

    def save_policy_net(self, path: str | Path) -> None:
        """What acts, as a plain state dict for PyTorch users; read it with `torch.load(path, weights_only=True)`."""
        write_state_dict(getattr(self.model, "actor", self.model), path)


class PolicyAgent(PolicyActor, TorchAgent):
    """Acts by a policy: a draw from its distribution when it explores, the mode when it does not.

    With a recurrent model `decide` and `act` move its memory on; `explain` and `value` only look, as if the observation
    came next.
    """

    rnn_state: Array | None

    def __init__(
        self,
        model: nn.Module,
        specs: Specs,
        normalizer: ObsNormalizer | None = None,
        rng: np.random.Generator | None = None,  # for exploration
        exploration: ExplorationConfig | None = None,  # None: see `default_exploration`
    ):
        super().__init__(model, specs, normalizer, rng)
        if known_variant(model) == "q_value":
            require_variant("PolicyAgent", "policy_value", "q_value")
        self.distribution: Distribution = distribution_of(model, specs.action_spec)
        answered = answered_variant(self._probe(), self.distribution.num_params, acts_by="policy")
        self.has_value: bool = answered == "policy_value"
        self.variant: str = getattr(model, "variant", answered)  # a plugin's own, where its model names one
        chosen = exploration or default_exploration(self.variant, self.distribution)
        self.exploration: AnyExploration | None = make_exploration(chosen, specs.action_spec)
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
        """Distribution parameters of a recurrent model, and what it remembers after these observations."""
        rnn_state, net = self.recall(len(obs)), self._memory.newest()
        if net is not None:
            return net.step(self.normalize(obs), rnn_state)
        after = torch.empty(rnn_state.shape, device=self.device)
        answer = self.forward(obs, after=after)
        return (answer[0] if self.has_value else answer).cpu().numpy(), after.cpu().numpy()

    def critic(self, obs: Array) -> Array:
        answer: Array = self.forward(obs)[1].cpu().numpy()
        return answer

    def save_value_net(self, path: str | Path) -> None:
        """The critic as a plain state dict."""
        if not self.has_value:
            raise BadInput("this agent has a policy-only model; there is no value net to save")
        write_state_dict(getattr(self.model, "critic", self.model), path)


class QAgent(QActor, TorchAgent):
    """Acts by action values: the legal action of the highest value, and what its exploration makes of it."""

    variant = "q_value"

    def __init__(
        self,
        model: nn.Module,
        specs: Specs,
        normalizer: ObsNormalizer | None = None,
        rng: np.random.Generator | None = None,  # for exploration
        exploration: ExplorationConfig | None = None,  # None: see `default_exploration`
    ):
        super().__init__(model, specs, normalizer, rng)
        require_variant("QAgent", "q_value", known_variant(model))
        if not isinstance(getattr(model, "head", None), QHead):
            answered_variant(self._probe(), specs.action_spec.num_choices, acts_by="q")
        self._noisy = noisy_layers(model)
        chosen = exploration or default_exploration(self.variant)
        self.exploration: AnyExploration | None = make_exploration(chosen, specs.action_spec, bool(self._noisy))
        self._net = NumpyViews(model, q_views)

    def decide(self, obs: Array, explore: bool = False, action_mask: Array | None = None) -> Array:
        q_values = self.q_values(obs, noisy=explore)
        best = q_values.argmax(axis=-1) if action_mask is None else masked_argmax(q_values, action_mask)
        return self.exploration(best, self.rng, action_mask) if explore and self.exploration else best

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
    """A model as NumPy arrays that share memory with torch: acting without the framework's overhead.

    Training changes parameters in place, so the views follow it. They are made again whenever a part was replaced or
    parameters have moved (into a flat tensor, to another device).
    """

    def __init__(self, model: nn.Module, make: Callable[[nn.Module], Views | None]):
        self.model: nn.Module = model
        self.make = make
        self._parts: list[tuple[dict[str, Any], str, object]] = []  # (where a part is registered, its name, the part)
        self._place = -1  # of the first parameter
        self._views: Views | None = None

    def newest(self) -> Views | None:
        """What `make` gave, or None where the model has no NumPy form."""
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
    """A `.pth` file in one piece. Tensors own their memory: views would drag the whole flat tensor into the file."""
    buffer = io.BytesIO()
    torch.save({name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}, buffer)
    write_atomically(Path(path), seal_pth(buffer.getvalue()))


def _refuse_modes(model: nn.Module) -> None:
    """Dropout is off from now on; an update turns it on while it lasts. Batch norm acts differently in training and in
    evaluation too, and has statistics that nothing would update."""
    dropout_parts(model)
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise BadInput(
                f"the model's {name or 'root'} is a {type(module).__name__}, which acts differently in training and in "
                "evaluation; use LayerNorm"
            )
