"""Networks as NumPy arrays that share memory with torch; None for models with parts of your own."""

from typing import NamedTuple

import numpy as np
from torch import nn

from drl.core.network_parts import ACTIVATIONS
from drl.core.specs import Array
from drl.engines.numpy.networks import (
    IDENTITY,
    AnyLayer,
    Cell,
    Layer,
    Norm,
    PolicyNet,
    QNet,
    Residual,
    mlp_forward,
    recurrent_step,
)
from drl.engines.torch.actor_critics import ActorCritic
from drl.engines.torch.backbones import MLP, ResidualBlock, Simba
from drl.engines.torch.layers import NoisyLinear, make_activation
from drl.engines.torch.models import GaussianHead, LogitsHead, PolicyValueModel, QHead, SquashedGaussianHead, is_plain
from drl.engines.torch.recurrent import CELLS, Recurrent, recurrent_parts


def policy_views(model: nn.Module) -> PolicyNet | None:
    """An MLP policy."""
    actor = model.actor if type(model) in (PolicyValueModel, ActorCritic) else model
    if not is_plain(actor):
        return None
    layers = backbone_views(actor.backbone)
    return None if layers is None else _policy_net(layers, actor.head)


def _policy_net(layers: list[AnyLayer], head: nn.Module) -> PolicyNet | None:
    if type(head) is LogitsHead:
        return PolicyNet(layers, linear_view(head), None)
    if type(head) is GaussianHead:
        return PolicyNet(layers, linear_view(head.mean), head.log_std.detach().numpy())
    if type(head) is SquashedGaussianHead:
        return PolicyNet(layers, linear_view(head.mean), linear_view(head.log_std))
    return None


def q_views(model: nn.Module) -> QNet | None:
    """An MLP with a head of action values."""
    if not is_plain(model) or type(model.head) is not QHead:
        return None
    layers = backbone_views(model.backbone)
    if layers is None:
        return None
    head = model.head
    value = None if head.state_value is None else linear_view(head.state_value)
    return QNet(layers, linear_view(head.advantage), value, head.kind, head.support.numpy())


class RecurrentPart(NamedTuple):
    """One recurrent backbone and its slice of the agent's `rnn_state`."""

    layers: list[AnyLayer]
    cell: Cell
    place: slice


class RecurrentViews(NamedTuple):
    """A recurrent policy that acts and advances the hidden states of actor and critic."""

    parts: list[RecurrentPart]  # the actor's first
    policy: PolicyNet  # of the actor's features

    def step(self, obs: Array, rnn_state: Array) -> tuple[Array, Array]:
        """Distribution parameters `[N, P]` of normalized observations, and the next hidden state `[N, S]`."""
        steps = [recurrent_step(p.cell, mlp_forward(p.layers, obs), rnn_state[:, p.place]) for p in self.parts]
        after = steps[0][1] if len(steps) == 1 else np.concatenate([state for _, state in steps], axis=1)
        return self.policy.of_features(steps[0][0]), after


def recurrent_views(model: nn.Module) -> RecurrentViews | None:
    """A recurrent policy with MLPs as backbones."""
    members = [model.actor, model.critic] if type(model) is PolicyValueModel else [model]
    if any(not is_plain(member) or type(member.backbone) is not Recurrent for member in members):
        return None
    parts = [part for part in map(_recurrent_part, recurrent_parts(model)) if part is not None]
    policy = _policy_net([], members[0].head)  # type: ignore[arg-type]
    if len(parts) < len(recurrent_parts(model)) or policy is None:
        return None
    return RecurrentViews(parts, policy)


def _recurrent_part(recurrent: Recurrent) -> RecurrentPart | None:
    layers, cell = backbone_views(recurrent.backbone), recurrent.cell
    if layers is None or type(cell) is not CELLS[recurrent.kind]:
        return None
    views = [p.detach().numpy() for p in (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)]
    weights = Cell(recurrent.kind, views[0].T, views[1].T, views[2], views[3])
    return RecurrentPart(layers, weights, slice(recurrent.offset, recurrent.offset + recurrent.rnn_state_size))


def backbone_views(backbone: nn.Module) -> list[AnyLayer] | None:
    """The layers of an MLP over vectors, or of simba; None for other backbones, or with replaced layers."""
    if type(backbone) is Simba:
        return _simba_views(backbone)
    if type(backbone) is not MLP:
        return None
    parts = [part for part in backbone if not isinstance(part, nn.Dropout)]
    every = 3 if any(type(part) is nn.LayerNorm for part in parts) else 2  # linear, normalization, activation
    layers, norms, activations = parts[0::every], parts[1::every], parts[every - 1 :: every]
    if any(type(layer) not in (nn.Linear, NoisyLinear) for layer in layers) or len(layers) != len(activations):
        return None
    usual = make_activation(backbone.activation)
    if ACTIVATIONS[backbone.activation].numpy is None or any(not _alike(part, usual) for part in activations):
        return None
    if every == 2:
        return [linear_view(layer, backbone.activation) for layer in layers]
    if any(type(norm) is not nn.LayerNorm for norm in norms):
        return None
    pairs = zip(layers, norms, strict=True)
    return [view for layer, norm in pairs for view in (linear_view(layer), norm_view(norm, backbone.activation))]


def _alike(one: nn.Module, other: nn.Module) -> bool:
    """Whether two activations are the same."""
    described, expected = (str(part).replace("inplace=True", "") for part in (one, other))
    return type(one) is type(other) and described == expected


def _simba_views(simba: Simba) -> list[AnyLayer] | None:
    if any(type(block) is not ResidualBlock for block in simba.blocks):
        return None
    blocks = [
        Residual([norm_view(block.norm), linear_view(block.up, "relu"), linear_view(block.down)])  # type: ignore[arg-type]
        for block in simba.blocks
    ]
    return [linear_view(simba.embed), *blocks, norm_view(simba.norm)]


def norm_view(norm: nn.Module, activation: str = IDENTITY) -> Norm:
    """A layer normalization and the activation behind it."""
    assert isinstance(norm, nn.LayerNorm)
    return Norm(norm.weight.detach().numpy(), norm.bias.detach().numpy(), activation)


def linear_view(layer: nn.Module, activation: str = IDENTITY) -> Layer:
    """Weight `[in, out]`, bias and activation; of a noisy layer the mean."""
    assert isinstance(layer, nn.Linear | NoisyLinear)
    return layer.weight.detach().numpy().T, layer.bias.detach().numpy(), activation
