"""Heads answer: features → policy parameters, or a value."""

import torch
from torch import Tensor, nn

from drl.core.configs import QModelConfig
from drl.core.specs import ActionSpec
from drl.engines.torch.layers import initialize, make_linear


class LogitsHead(nn.Linear):
    """Logits for categorical, multi-categorical (concatenated) and Bernoulli policies."""

    def __init__(self, features: int, num_params: int, generator: torch.Generator | None = None):
        super().__init__(features, num_params)
        initialize(self, 0.01, generator)  # nearly uniform at first: every action gets its chance
        self.features = features


class GaussianHead(nn.Module):
    """Means from the features, log standard deviations that do not depend on the state; concatenated."""

    def __init__(
        self, features: int, entries: int, log_std_init: float = 0.0, generator: torch.Generator | None = None
    ):
        super().__init__()
        self.mean = nn.Linear(features, entries)
        initialize(self.mean, 0.01, generator)
        self.log_std = nn.Parameter(torch.full((entries,), log_std_init))
        self.features = features

    def forward(self, features: Tensor) -> Tensor:
        mean = self.mean(features)
        return torch.cat([mean, self.log_std.expand_as(mean)], dim=-1)


class ValueHead(nn.Linear):
    """One number per state."""

    def __init__(self, features: int, generator: torch.Generator | None = None):
        super().__init__(features, 1)
        initialize(self, 1.0, generator)
        self.features = features

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features).squeeze(-1)


class QHead(nn.Module):
    """Action values, plain or with any of: dueling streams, a distribution over returns, noisy layers.

    `forward` gives `[B, A]` action values, or `[B, A, atoms]` logits (c51) or quantiles (qr); `q_values` turns
    either into expected returns. Dueling: V and A have a layer each, and Q = V + A − mean A, atom by atom.
    """

    def __init__(self, features: int, num_actions: int, config: QModelConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.features, self.num_actions, self.kind = features, num_actions, config.distributional
        self.atoms = 1 if self.kind == "none" else config.num_atoms
        self.advantage = make_linear(features, num_actions * self.atoms, None, config.sigma, generator)
        self.state_value = make_linear(features, self.atoms, None, config.sigma, generator) if config.dueling else None
        self.support: Tensor
        # Part of a plain state dict, so that a file of weights says which returns its atoms stand for.
        support = torch.linspace(config.v_min, config.v_max, self.atoms)
        self.register_buffer("support", support, persistent=self.kind == "c51")

    def forward(self, features: Tensor) -> Tensor:
        answer: Tensor = self.advantage(features)
        if self.kind != "none":
            answer = answer.view(-1, self.num_actions, self.atoms)
        if self.state_value is not None:
            value = self.state_value(features).view(-1, 1, *answer.shape[2:])
            answer = answer - answer.mean(dim=1, keepdim=True) + value
        return answer

    def q_values(self, answer: Tensor) -> Tensor:
        """Expected returns from what `forward` gave, of all actions `[B, A]` or of one each `[B]`."""
        if self.kind == "c51":
            return (answer.softmax(dim=-1) * self.support).sum(dim=-1)
        return answer.mean(dim=-1) if self.kind == "qr" else answer


def make_policy_head(
    spec: ActionSpec, features: int, log_std_init: float = 0.0, generator: torch.Generator | None = None
) -> nn.Module:
    """The head whose parameters describe a distribution over `spec`'s actions."""
    if spec.kind == "gaussian":
        return GaussianHead(features, spec.entries, log_std_init, generator)
    return LogitsHead(features, spec.num_params, generator)
