"""The math, as pure functions. Per-sample values out; weights and reductions belong to the caller.

What a rollout needs once (advantages, returns) is NumPy: a loop of T tiny steps is about 6 times faster there than in
torch. What gradients flow through is torch. `drl.testing.oracles` has the slow float64 version of each.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from drl.core.contracts import ReplayBatch
from drl.core.errors import BadInput
from drl.core.specs import Array, Distribution
from drl.engines.numpy.distributions import ILLEGAL, INSIDE, QUADRATURE

Obs = Tensor | dict[str, Tensor]  # what a model sees; a dict for observations with several parts


def to_tensors(obs: Array, device: torch.device) -> Obs:
    """Encoded observations as tensors; those of one part are not copied on a CPU."""
    if obs.dtype.names is None:
        return torch.from_numpy(np.ascontiguousarray(obs)).to(device)
    # A copy: a field of one row counts as contiguous whatever its strides, and torch refuses some of these.
    return {name: torch.from_numpy(obs[name].copy()).to(device) for name in obs.dtype.names}


def take_rows(obs: Obs, index: Tensor) -> Obs:
    """Rows of observations, of one array or several."""
    if isinstance(obs, Tensor):
        return obs.index_select(0, index)
    return {name: part.index_select(0, index) for name, part in obs.items()}


class ReplayRows(NamedTuple):
    """A replay batch as tensors `[B, …]`."""

    obs: Obs
    action: Tensor
    reward: Tensor
    discount: Tensor  # γ^k, or 0 where the episode terminated
    next_obs: Obs
    weight: Tensor
    next_action_mask: Tensor | None = None  # what is legal in `next_obs`; None: everything
    action_mask: Tensor | None = None  # the same for `obs`


def both_states(rows: ReplayRows, action: Tensor | None, next_action: Tensor | None) -> tuple[Obs, Tensor | None]:
    """Observations and actions here and at the next state, in one batch."""
    actions = None if action is None or next_action is None else torch.cat([action, next_action])
    obs, next_obs = rows.obs, rows.next_obs
    if isinstance(obs, Tensor):
        assert isinstance(next_obs, Tensor)
        return torch.cat([obs, next_obs]), actions
    assert isinstance(next_obs, dict)
    return {name: torch.cat([part, next_obs[name]]) for name, part in obs.items()}, actions


def replay_rows(batch: ReplayBatch, device: torch.device, reward_scale: float = 1.0) -> ReplayRows:
    """A batch of the replay buffer as tensors."""
    remaining = batch.discount * (1.0 - batch.terminated)
    scaled = batch.reward if reward_scale == 1.0 else batch.reward * np.float32(reward_scale)
    columns = (batch.action, scaled, remaining, batch.weight)
    action, reward, discount, weight = (torch.from_numpy(array).to(device) for array in columns)
    obs, next_obs = to_tensors(batch.obs, device), to_tensors(batch.next_obs, device)
    masks = (batch.next_action_mask, batch.action_mask)
    next_mask, mask = (None if legal is None else torch.from_numpy(legal).to(device) for legal in masks)
    return ReplayRows(obs, action, reward, discount, next_obs, weight, next_mask, mask)


# ── rollout math, NumPy, time-major [T, N] ────────────────────────────────────────────────────────────────────────


def gae(
    reward: Array, value: Array, next_value: Array, terminated: Array, truncated: Array, gamma: float, lam: float
) -> Array:
    """Generalized advantage estimate A_t = Σ_k (γλ)^k δ_{t+k},  δ_t = r_t + γ V(s_{t+1}) (1 − terminated_t) − V(s_t).

    The sum stops at every episode end; termination has no successor value, truncation keeps it in `next_value`.
    """
    delta = reward + gamma * next_value * ~terminated - value  # [T, N]
    carry = (gamma * lam * ~(terminated | truncated)).astype(np.float32)  # [T, N]
    advantage = np.empty_like(delta)
    running = np.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        running = delta[t] + carry[t] * running
        advantage[t] = running
    return advantage


def lambda_returns(
    reward: Array, value: Array, next_value: Array, terminated: Array, truncated: Array, gamma: float, lam: float
) -> Array:
    """TD(λ) targets: GAE + V. λ = 0 is the one-step target, λ = 1 the (bootstrapped) Monte Carlo return."""
    return gae(reward, value, next_value, terminated, truncated, gamma, lam) + value


def discounted_returns(reward: Array, next_value: Array, terminated: Array, truncated: Array, gamma: float) -> Array:
    """G_t = r_t + γ G_{t+1}, with G = V(successor) at a truncation and at the window's last row, 0 at a termination."""
    bootstraps = truncated.copy()
    bootstraps[-1] = True
    zeros = np.zeros_like(reward)
    return gae(reward, zeros, np.where(bootstraps, next_value, 0.0), terminated, truncated, gamma, 1.0)


def n_step_returns(
    reward: Array, next_value: Array, terminated: Array, truncated: Array, gamma: float, n: int
) -> Array:
    """Sum of n discounted rewards plus the bootstrapped value; stops early at an episode end or the window's end."""
    length = len(reward)
    target = np.zeros_like(reward)
    discount = np.ones_like(reward)  # γ^k with the k used so far
    open_rows = np.ones_like(terminated)  # rows still summing
    for k in range(n):
        last = length - k
        if last <= 0:
            break
        here = slice(k, k + last)  # row t looks at t + k
        active = open_rows[:last]
        target[:last] += np.where(active, discount[:last] * reward[here], 0.0)
        stops = terminated[here] | truncated[here] | (k == n - 1)
        stops[-1] = True  # the window ends here
        bootstrap = np.where(terminated[here], 0.0, next_value[here])
        target[:last] += np.where(active & stops, discount[:last] * gamma * bootstrap, 0.0)
        open_rows[:last] &= ~stops
        discount[:last] *= gamma
    return target


def explained_variance(prediction: Array, target: Array) -> float:
    """1 − Var[target − prediction] / Var[target]: 1 is perfect, 0 no better than a constant; NaN for a flat target."""
    variance = float(np.var(target))
    return math.nan if variance == 0 else float(1 - np.var(target - prediction) / variance)


# ── policies, torch ───────────────────────────────────────────────────────────────────────────────────────────────


def log_prob_and_entropy(
    dist: Distribution, dist_params: Tensor, action: Tensor, action_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """log π(a|s) and H[π(·|s)] per sample, from a policy head's outputs `[B, P]`."""
    if action_mask is not None:
        dist_params = masked(dist, dist_params, action_mask)
    if dist.kind == "categorical":
        return _categorical(dist_params, action)
    if dist.kind == "multi_categorical":
        parts = [_categorical(p, action[:, i]) for i, p in enumerate(dist_params.split(list(dist.sizes), dim=-1))]
        return sum(part[0] for part in parts), sum(part[1] for part in parts)  # type: ignore[return-value]
    if dist.kind == "bernoulli":
        log_prob = -F.binary_cross_entropy_with_logits(dist_params, action.to(dist_params.dtype), reduction="none")
        entropy = F.binary_cross_entropy_with_logits(dist_params, torch.sigmoid(dist_params), reduction="none")
        return log_prob.sum(-1), entropy.sum(-1)
    if dist.kind == "deterministic":
        raise BadInput("a deterministic policy has no log-probabilities; use distribution gaussian or tanh_gaussian")
    mean, log_std = dist_params.chunk(2, dim=-1)
    squashed = dist.kind == "tanh_gaussian"
    value = torch.atanh(action.clamp(-INSIDE, INSIDE)) if squashed else action
    standard = (value - mean) * torch.exp(-log_std)
    log_prob = -0.5 * standard.square() - log_std - 0.5 * math.log(2 * math.pi)
    entropy = log_std + 0.5 * math.log(2 * math.pi * math.e)
    if squashed:
        log_prob, entropy = log_prob - log_slope_of_tanh(value), entropy + _mean_log_slope(mean, log_std)
    return log_prob.sum(-1), entropy.sum(-1)


def masked(dist: Distribution, dist_params: Tensor, action_mask: Tensor) -> Tensor:
    """Logits with illegal actions ruled out; `action_mask` `[B, choices]` is True for legal ones."""
    illegal = float(ILLEGAL)
    if dist.kind == "bernoulli":
        off, on = action_mask.view(-1, dist.entries, 2).unbind(-1)
        return dist_params.masked_fill(~off, -illegal).masked_fill(~on, illegal)
    if not dist.sizes:
        raise BadInput(f"there is an action mask, but a {dist.kind} distribution has no choices to mask")
    return dist_params.masked_fill(~action_mask, illegal)


def sample_with_log_prob(dist: Distribution, dist_params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """A draw from a Gaussian or squashed Gaussian that gradients flow through, and its log-probability.

    `noise` `[B, entries]` is standard normal; zeros give the mode.
    """
    mean, log_std = dist_params.chunk(2, dim=-1)
    value = mean + torch.exp(log_std) * noise
    log_prob = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    if dist.kind == "tanh_gaussian":
        return torch.tanh(value), (log_prob - log_slope_of_tanh(value)).sum(-1)
    return value, log_prob.sum(-1)


def mode(dist: Distribution, dist_params: Tensor, action_mask: Tensor | None = None) -> Tensor:
    """The most likely action; of a squashed Gaussian the squashed mean, through which gradients flow."""
    if action_mask is not None:
        dist_params = masked(dist, dist_params, action_mask)
    if dist.kind == "categorical":
        return dist_params.argmax(dim=-1)
    if dist.kind == "multi_categorical":
        return torch.stack([part.argmax(dim=-1) for part in dist_params.split(list(dist.sizes), dim=-1)], dim=-1)
    if dist.kind == "bernoulli":
        return (dist_params > 0).long()
    mean = dist_params[:, : dist.entries]
    return mean if dist.kind == "gaussian" else torch.tanh(mean)


def log_slope_of_tanh(value: Tensor) -> Tensor:
    """log(1 − tanh(x)²), without the cancellation near ±1."""
    return 2.0 * (math.log(2.0) - value - F.softplus(-2.0 * value))


def _mean_log_slope(mean: Tensor, log_std: Tensor) -> Tensor:
    """E[log(1 − tanh(X)²)] of a Gaussian X, by quadrature: the entropy that squashing takes away."""
    nodes, weights = (torch.from_numpy(part).to(mean.device) for part in QUADRATURE)
    values = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * nodes
    return (log_slope_of_tanh(values) * weights).sum(dim=-1)


def _categorical(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    log_probs = F.log_softmax(logits, dim=-1)
    log_prob = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return log_prob, -(log_probs.exp() * log_probs).sum(-1)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip_range: Tensor) -> Tensor:
    """PPO's pessimistic objective per sample: min(ρ A, clip(ρ, 1 − ε, 1 + ε) A), ρ the probability ratio."""
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip_range, 1 + clip_range) * advantage)


def clipped_value_error(value: Tensor, old_value: Tensor, target: Tensor, clip_range: float) -> Tensor:
    """Squared error, or that of the value kept within `clip_range` of the old one: the larger of the two."""
    clipped = old_value + (value - old_value).clamp(-clip_range, clip_range)
    return torch.maximum((value - target).square(), (clipped - target).square())


# ── action values, torch ──────────────────────────────────────────────────────────────────────────────────────────


def huber(error: Tensor) -> Tensor:
    """½ x² near zero, |x| − ½ beyond 1."""
    return F.smooth_l1_loss(error, torch.zeros_like(error), reduction="none")


def half_square(error: Tensor) -> Tensor:
    """½ x², as Huber near zero."""
    return 0.5 * error.square()


def q_target(reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """r + γ^k Q(s', a'), `discount` being γ^k, or 0 where the episode terminated."""
    return reward + discount * next_q


def project_distribution(probs: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """C51's target: the distribution of r + γ^k Z, projected onto the support `[B, atoms]`. Each moved atom shares its
    mass between its two neighbors by nearness."""
    last = len(support) - 1
    step = (support[-1] - support[0]) / last
    moved = reward.unsqueeze(-1) + discount.unsqueeze(-1) * support  # [B, atoms]
    position = ((moved - support[0]) / step).clamp(0, last)
    lower = position.floor()
    upper_share = position - lower
    index = lower.long()
    target = torch.zeros_like(probs).scatter_add(-1, index, probs * (1 - upper_share))
    return target.scatter_add(-1, (index + 1).clamp(max=last), probs * upper_share)


def quantile_loss(quantiles: Tensor, target: Tensor, penalty: Callable[[Tensor], Tensor]) -> Tensor:
    """QR-DQN's loss `[B]`: asymmetric `penalty` between every quantile `[B, n]` and every target sample `[B, m]`."""
    count = quantiles.shape[-1]
    levels = (torch.arange(count, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / count  # τ̂, [n]
    error = target.unsqueeze(1) - quantiles.unsqueeze(2)  # [B, n, m]
    weight = (levels.view(1, -1, 1) - (error < 0).to(error.dtype)).abs()
    return (weight * penalty(error)).mean(dim=2).sum(dim=1)
