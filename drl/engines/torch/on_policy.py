"""What every on-policy learner does first: values, log-probabilities and advantages of a rollout, in one batch."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from drl.core.errors import BadInput
from drl.core.specs import ActionSpec, Array
from drl.core.transition import RolloutBatch
from drl.engines.torch import ops
from drl.engines.torch.packing import Sequences, one_step, sequences, successors

CHUNK = 4096  # rows per forward pass: keeps image rollouts within memory


class Rows(NamedTuple):
    """A rollout flattened to rows `[B, …]`, ready for a loss."""

    obs: Tensor | Sequences  # what the model sees; sequences if it is recurrent, whose packed order all rows have
    action: Tensor
    log_prob: Tensor  # under the policy that played
    value: Tensor  # of the critic before this learning step
    advantage: Tensor
    target: Tensor  # what the value should have been


@torch.no_grad()
def evaluate_rollout(model: nn.Module, spec: ActionSpec, batch: RolloutBatch, gamma: float, lam: float) -> Rows:
    """Forward the rollout once, bootstrap the rows that were cut, and estimate advantages by GAE(λ)."""
    if batch.rnn_state is not None:
        return _evaluate_sequences(model, spec, batch, gamma, lam)
    device = next(model.parameters()).device
    obs, action = _flat(batch.obs, device), _flat(batch.action, device)
    params, value = forward_in_chunks(model, obs)
    log_prob, _ = ops.log_prob_and_entropy(spec, params, action)
    values = value.cpu().numpy().reshape(batch.reward.shape)  # [T, N]
    next_values = successor_values(model, batch, values)
    advantage = ops.gae(batch.reward, values, next_values, batch.terminated, batch.truncated, gamma, lam)
    advantages = torch.from_numpy(advantage.reshape(-1)).to(device)
    rows = Rows(obs, action, log_prob, value, advantages, advantages + value)
    if batch.valid.all():
        return rows
    keep = torch.from_numpy(np.flatnonzero(batch.valid)).to(device)
    return Rows(obs.index_select(0, keep), *(tensor.index_select(0, keep) for tensor in rows[1:]))


def _evaluate_sequences(model: nn.Module, spec: ActionSpec, batch: RolloutBatch, gamma: float, lam: float) -> Rows:
    """The same for a recurrent model, which meets every successor with what it remembers by then."""
    device = next(model.parameters()).device
    seen = sequences(batch, device)
    assert seen.packing is not None
    assert seen.after is not None
    row, last = seen.packing.row, seen.packing.last
    params, value = model(seen)
    action = _flat(batch.action, torch.device("cpu"))[row].to(device)
    log_prob, _ = ops.log_prob_and_entropy(spec, params, action)
    _, bootstrap = model(one_step(torch.from_numpy(successors(batch, seen.packing)).to(device), seen.after))
    values = np.zeros_like(batch.reward)  # [T, N]
    values.reshape(-1)[row] = value.cpu().numpy()
    next_values = np.concatenate([values[1:], values[:1]])
    next_values.reshape(-1)[last] = bootstrap.cpu().numpy()  # every other row has a successor in its own piece
    advantage = ops.gae(batch.reward, values, next_values, batch.terminated, batch.truncated, gamma, lam)
    advantages = torch.from_numpy(advantage.reshape(-1)[row]).to(device)
    return Rows(seen, action, log_prob, value, advantages, advantages + value)


def minibatches_of_envs(rows: Rows, rng: np.random.Generator, count: int) -> Iterator[Rows]:
    """The sequences of a recurrent rollout in `count` random groups of whole environments."""
    assert isinstance(rows.obs, Sequences)
    assert rows.obs.packing is not None
    envs = rng.permutation(np.unique(rows.obs.packing.env))
    if count > len(envs):
        raise BadInput(
            f"minibatches is {count}, but a recurrent rollout is split by environment and there are {len(envs)}; "
            f"use --minibatches {len(envs)}, or more environments"
        )
    for group in np.array_split(envs, count):
        seen, keep = rows.obs.of_envs(group)
        yield Rows(seen, *(tensor.index_select(0, keep) for tensor in rows[1:]))


@torch.no_grad()
def successor_values(model: nn.Module, batch: RolloutBatch, values: Array) -> Array:
    """V of every row's true successor `[T, N]`: the next row's, or the critic's word where the trace was cut."""
    device = next(model.parameters()).device
    cut = torch.from_numpy(np.concatenate([batch.last_obs, batch.final_obs])).to(device)
    _, cut_value = forward_in_chunks(model, cut)
    num_envs = len(batch.last_obs)
    bootstrap = cut_value.cpu().numpy()
    next_values = np.concatenate([values[1:], bootstrap[None, :num_envs]])
    next_values.reshape(-1)[batch.final_index] = bootstrap[num_envs:]
    return next_values


def forward_in_chunks(model: nn.Module, obs: Tensor) -> tuple[Tensor, Tensor]:
    if len(obs) <= CHUNK:
        params, value = model(obs)
        return params, value
    parts = [model(chunk) for chunk in obs.split(CHUNK)]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _flat(array: Array, device: torch.device) -> Tensor:
    return torch.from_numpy(array.reshape(-1, *array.shape[2:])).to(device)
