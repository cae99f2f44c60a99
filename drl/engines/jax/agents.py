"""Agents: observation → action. They share a model state with their algorithm."""

from functools import partial
from pathlib import Path
from typing import Self

import jax
import numpy as np

from drl.core.agent_files import open_agent, save_agent
from drl.core.configs import QModelConfig
from drl.core.errors import BadInput, UnusableFile
from drl.core.network_parts import ACTIVATIONS
from drl.core.normalize import ObsNormalizer
from drl.core.seeding import generator_state, restore_generator
from drl.core.specs import Array, Distribution, Specs
from drl.core.state_files import StateDict, write_pth
from drl.core.variants import PROBES, answered_variant, find_variant, maker_in, require_variant
from drl.engines.jax.actor_critics import ActorCritic
from drl.engines.jax.backbones import MLP, Obs, Pixels, Simba, fields
from drl.engines.jax.layers import Tree, noise_for, part
from drl.engines.jax.model_state import ModelState, by_name, from_names
from drl.engines.jax.models import (
    AnyModel,
    GaussianHead,
    LogitsHead,
    Model,
    Output,
    PolicyValueModel,
    QHead,
    SquashedGaussianHead,
    ValueHead,
    architecture_of,
    check_parameters,
    critic_params,
    distribution_of,
    is_plain,
    known_variant,
    policy_of,
    value_of,
)
from drl.engines.numpy.acting import Actor, PolicyActor, QActor
from drl.engines.numpy.distributions import choose, masked_argmax
from drl.engines.numpy.exploration import AnyExploration, ExplorationConfig, default_exploration, make_exploration
from drl.engines.numpy.networks import AnyLayer, PolicyNet, as_rows, mlp_forward, policy_net, q_net, value_layers


class JaxAgent(Actor):
    """The base class of both agents: a model state, and files."""

    variant: str  # of the model it acts with

    def __init__(
        self,
        model_state: ModelState,
        specs: Specs,
        normalizer: ObsNormalizer | None = None,
        rng: np.random.Generator | None = None,  # for exploration
    ):
        super().__init__(specs, normalizer, rng)
        self.model_state = model_state

    def probe(self) -> Output:
        """The shapes of the model's output for `PROBES` observations, which show its variant."""
        zeros = fields(np.zeros((PROBES, *self.obs_spec.shape), self.obs_spec.dtype))
        return jax.eval_shape(self.model_state.model.apply, self.model_state.params, zeros)

    @property
    def model(self) -> AnyModel:
        """The network without its parameters."""
        return self.model_state.model

    def save(self, folder: str | Path, **notes: object) -> None:
        """Write the deployable agent: safetensors weights and a JSON card. `notes` (plain data) go on the card."""
        architecture = architecture_of(self.model, self.variant, self.obs_spec, self.action_spec)
        save_agent(folder, "jax", architecture, self, self.model_state.host, notes)

    @classmethod
    def load(cls, path: str | Path, model: AnyModel | None = None, device: str = "cpu") -> Self:
        """Load an agent that any engine saved, from its agent folder or run folder. A custom model must be passed."""
        stored = open_agent(path)
        if model is None:
            if stored.config is None:
                raise BadInput(f"{path} was saved with a model of your own; pass it: load(path, model=MyModel(...))")
            make = maker_in(find_variant(stored.variant, path), "jax")
            try:
                model = make(stored.obs_spec, stored.action_spec, stored.config)
            except Exception as error:  # the card is untrusted
                raise UnusableFile(f"{path} describes a model that this drl cannot build ({error!r:.200})") from None
        assert model is not None
        fresh = model.init(np.random.default_rng(0))
        check_parameters(by_name(fresh), stored.params, str(path))
        state = ModelState(model, from_names(fresh, stored.params), device)
        agent = cls(state, stored, stored.normalizer, np.random.default_rng())
        agent.exploration = None  # it is trained
        return agent

    def state_dict(self) -> StateDict:
        """Everything that training changes in the agent, as plain data."""
        return {
            "model": {name: array.copy() for name, array in self.model_state.host.items()},
            "normalizer": None if self.normalizer is None else self.normalizer.state_dict(),
            "rng": generator_state(self.rng),
            "rnn_state": None,
            "exploration": None if self.exploration is None else self.exploration.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        self.model_state.load(state["model"], "the checkpoint")
        if self.normalizer is not None:
            self.normalizer.load_state_dict(state["normalizer"])
        restore_generator(self.rng, state["rng"])
        if self.exploration is not None:
            self.exploration.load_state_dict(state["exploration"])

    def save_policy_net(self, path: str | Path) -> None:
        """Write the policy as a plain state dict for PyTorch; read it with `torch.load(path, weights_only=True)`."""
        arrays = self.model_state.host
        if type(self.model) in (PolicyValueModel, ActorCritic):
            arrays = part(arrays, "actor")
        head = getattr(self.model, "head", None)
        if isinstance(head, QHead) and head.kind == "c51":
            arrays = arrays | {"head.support": np.asarray(head.support)}
        write_pth(path, arrays)


class PolicyAgent(PolicyActor, JaxAgent):
    """Acts by a policy: a sample from its distribution when it explores, else the mode."""

    def __init__(
        self,
        model_state: ModelState,
        specs: Specs,
        normalizer: ObsNormalizer | None = None,
        rng: np.random.Generator | None = None,  # for exploration
        exploration: ExplorationConfig | None = None,  # None: see `default_exploration`
    ):
        super().__init__(model_state, specs, normalizer, rng)
        if known_variant(model_state.model) == "q_value":
            require_variant("PolicyAgent", "policy_value", "q_value")
        self.distribution: Distribution = distribution_of(model_state.model, specs.action_spec)
        answered = answered_variant(self.probe(), self.distribution.num_params, acts_by="policy")
        self.has_value: bool = answered == "policy_value"
        self.variant: str = getattr(model_state.model, "variant", answered)  # a plugin's model may name its own
        chosen = exploration or default_exploration(self.variant, self.distribution)
        self.exploration: AnyExploration | None = make_exploration(chosen, specs.action_spec)
        self._policy = model_state.derived(_numpy_policy)
        self._critic = model_state.derived(_numpy_critic)

    def decide(self, obs: Array, explore: bool = False, action_mask: Array | None = None) -> Array:
        action = choose(self, self.dist_params(obs), explore, action_mask)
        return self.exploration(action, self.rng, action_mask) if explore and self.exploration else action

    def dist_params(self, obs: Array) -> Array:
        net, seen = self._policy(), self.normalize(obs)
        return net(seen) if net else np.asarray(_policy(self.model, self.model_state.params, fields(seen)))

    def critic(self, obs: Array) -> Array:
        layers, seen = self._critic(), self.normalize(obs)
        if layers:
            return mlp_forward(layers, as_rows(seen))[:, 0]
        return np.asarray(_value(self.model, self.model_state.params, fields(seen)))

    def save_value_net(self, path: str | Path) -> None:
        """Write the critic as a plain state dict."""
        if not self.has_value:
            raise BadInput("this agent has a policy-only model; there is no value net to save")
        model, arrays = self.model, self.model_state.host
        write_pth(path, critic_params(model, arrays) if isinstance(model, PolicyValueModel) else arrays)


class QAgent(QActor, JaxAgent):
    """Acts by action values: the legal action of the highest value, modified by its exploration."""

    variant = "q_value"

    def __init__(
        self,
        model_state: ModelState,
        specs: Specs,
        normalizer: ObsNormalizer | None = None,
        rng: np.random.Generator | None = None,  # for exploration
        exploration: ExplorationConfig | None = None,  # None: see `default_exploration`
    ):
        super().__init__(model_state, specs, normalizer, rng)
        require_variant("QAgent", "q_value", known_variant(model_state.model))
        if not isinstance(getattr(model_state.model, "head", None), QHead):
            answered_variant(self.probe(), specs.action_spec.num_choices, acts_by="q")
        noisy = bool(noise_for(model_state.params, np.zeros))
        chosen = exploration or default_exploration(self.variant)
        self.exploration: AnyExploration | None = make_exploration(chosen, specs.action_spec, noisy)
        self._config = _numpy_config(model_state.model)
        self._mean = model_state.derived(lambda state: q_net(state.host, self._config) if self._config else None)

    def decide(self, obs: Array, explore: bool = False, action_mask: Array | None = None) -> Array:
        best = masked_argmax(self.q_values(obs, noisy=explore), action_mask)
        return self.exploration(best, self.rng, action_mask) if explore and self.exploration else best

    def q_values(self, obs: Array, noisy: bool = False) -> Array:
        params = self.model_state.params
        noise = noise_for(params, partial(self.rng.standard_normal, dtype=np.float32)) if noisy else {}
        seen, net = self.normalize(obs), self._mean()
        if self._config is None or net is None:
            return np.asarray(_q_values(self.model, params | noise if noise else params, fields(seen)))
        return q_net(self.model_state.host | noise, self._config)(seen) if noise else net(seen)


def _is_mlp(model: object) -> bool:
    """Whether `drl.engines.numpy` can run this part of a model; never true for custom code."""
    if not is_plain(model) or type(_bare(model.backbone)) not in (MLP, Simba):
        return False
    return ACTIVATIONS[_activation(model)].numpy is not None


def _bare(backbone: object) -> object:
    return backbone.backbone if type(backbone) is Pixels else backbone


def _activation(model: Model) -> str:
    backbone = _bare(model.backbone)
    assert isinstance(backbone, MLP | Simba)
    return backbone.activation if isinstance(backbone, MLP) else "relu"


def _numpy_policy(state: ModelState) -> PolicyNet | None:
    model = state.model
    actor = model.actor if isinstance(model, PolicyValueModel | ActorCritic) else model
    heads = (LogitsHead, GaussianHead, SquashedGaussianHead)
    if not isinstance(actor, Model) or not _is_mlp(actor) or type(actor.head) not in heads:
        return None
    return policy_net(state.host, _activation(actor))


def _numpy_critic(state: ModelState) -> list[AnyLayer] | None:
    if type(state.model) is not PolicyValueModel:
        return None
    critic = state.model.critic
    known = _is_mlp(critic) and type(critic.head) is ValueHead
    return value_layers(state.host, _activation(critic)) if known else None


def _numpy_config(model: object) -> QModelConfig | None:
    """The settings of an MLP's head for `q_net`; None for other models."""
    if not isinstance(model, Model) or not _is_mlp(model) or not isinstance(model.head, QHead):
        return None
    return QModelConfig(activation=_activation(model), **model.head.shape) if type(model.head) is QHead else None


# One program per model and number of observations.
_policy = jax.jit(policy_of, static_argnums=0)
_value = jax.jit(value_of, static_argnums=0)


@partial(jax.jit, static_argnums=0)
def _q_values(model: AnyModel, params: Tree, obs: Obs) -> jax.Array:
    answer: jax.Array = model.apply(params, obs)
    head = getattr(model, "head", None)
    return head.q_values(answer) if isinstance(head, QHead) else answer
