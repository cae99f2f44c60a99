"""Heads answer: features → policy parameters, or a value."""

import torch
from torch import Tensor, nn

from drl.core.specs import ActionSpec
from drl.engines.torch.backbones import orthogonal


class LogitsHead(nn.Linear):
    """Logits for categorical, multi-categorical (concatenated) and Bernoulli policies."""

    def __init__(self, features: int, num_params: int, generator: torch.Generator | None = None):
        super().__init__(features, num_params)
        orthogonal(self, 0.01, generator)  # nearly uniform at first: every action gets its chance
        self.features = features


class GaussianHead(nn.Module):
    """Means from the features, log standard deviations that do not depend on the state; concatenated."""

    def __init__(
        self, features: int, entries: int, log_std_init: float = 0.0, generator: torch.Generator | None = None
    ):
        super().__init__()
        self.mean = nn.Linear(features, entries)
        orthogonal(self.mean, 0.01, generator)
        self.log_std = nn.Parameter(torch.full((entries,), log_std_init))
        self.features = features

    def forward(self, features: Tensor) -> Tensor:
        mean = self.mean(features)
        return torch.cat([mean, self.log_std.expand_as(mean)], dim=-1)


class ValueHead(nn.Linear):
    """One number per state."""

    def __init__(self, features: int, generator: torch.Generator | None = None):
        super().__init__(features, 1)
        orthogonal(self, 1.0, generator)
        self.features = features

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features).squeeze(-1)


class QValueHead(nn.Linear):
    """One number per action."""

    def __init__(self, features: int, num_actions: int, generator: torch.Generator | None = None):
        super().__init__(features, num_actions)
        orthogonal(self, 1.0, generator)
        self.features = features


def make_policy_head(
    spec: ActionSpec, features: int, log_std_init: float = 0.0, generator: torch.Generator | None = None
) -> nn.Module:
    """The head whose parameters describe a distribution over `spec`'s actions."""
    if spec.kind == "gaussian":
        return GaussianHead(features, spec.entries, log_std_init, generator)
    return LogitsHead(features, spec.num_params, generator)
