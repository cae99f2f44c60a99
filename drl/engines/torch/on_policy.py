"""Values, log-probabilities and advantages of a rollout, computed in one batch: shared by the on-policy algorithms."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from drl.core.contracts import RolloutBatch
from drl.core.errors import BadInput
from drl.core.specs import Array, Distribution
from drl.engines.torch import ops
from drl.engines.torch.recurrent import Sequences, one_step, sequences, successors

CHUNK = 4096  # rows per forward pass: keeps image rollouts within memory


class Rows(NamedTuple):
    """A rollout flattened to rows `[B, …]`, ready for a loss."""

    obs: ops.Obs | Sequences  # sequences if the model is recurrent; then all columns are in their packed order
    action: Tensor
    log_prob: Any  # [B] of the policy that acted; None for whole episodes
    value: Tensor  # of the critic before this learning step
    advantage: Tensor
    target: Tensor  # of the value
    action_mask: Tensor | None = None  # legal actions; None: all

    def take(self, index: Tensor) -> "Rows":
        """Some of the rows, of a model that is not recurrent."""
        assert not isinstance(self.obs, Sequences)
        return Rows(ops.take_rows(self.obs, index), *self.columns(index))  # type: ignore[arg-type]

    def split(self, parts: int) -> "Iterator[Rows]":
        """Nearly equal parts of rows that are not sequences."""
        pieces = [[None] * parts if column is None else column.tensor_split(parts) for column in self[1:]]
        if isinstance(self.obs, Tensor):
            obs: list[ops.Obs] = list(self.obs.tensor_split(parts))
        else:
            assert isinstance(self.obs, dict)
            cut = {name: part.tensor_split(parts) for name, part in self.obs.items()}
            obs = [{name: pieces[i] for name, pieces in cut.items()} for i in range(parts)]
        return (Rows(*part) for part in zip(obs, *pieces, strict=True))

    def columns(self, index: Tensor) -> list[Tensor | None]:
        """All columns but the observations."""
        return [None if column is None else column.index_select(0, index) for column in self[1:]]


def normalized(rows: Rows) -> Rows:
    """Advantages of mean 0 and deviation 1."""
    advantage = rows.advantage
    if len(advantage) < 2:
        return rows
    return rows._replace(advantage=(advantage - advantage.mean()) / (advantage.std() + 1e-8))


@torch.no_grad()
def evaluate_rollout(model: nn.Module, dist: Distribution, batch: RolloutBatch, gamma: float, lam: float) -> Rows:
    """Forward the rollout once, bootstrap where it is cut, and estimate advantages by GAE(λ)."""
    if batch.rnn_state is not None:
        return _evaluate_sequences(model, dist, batch, gamma, lam)
    device = next(model.parameters()).device
    obs, action = ops.to_tensors(batch.obs.reshape(-1, *batch.obs.shape[2:]), device), _flat(batch.action, device)
    mask = None if batch.action_mask is None else _flat(batch.action_mask, device)
    dist_params, value = forward_in_chunks(model, obs)
    log_prob, _ = ops.log_prob_and_entropy(dist, dist_params, action, mask)
    values = value.cpu().numpy().reshape(batch.reward.shape)  # [T, N]
    _, bootstrap = forward_in_chunks(model, cut_obs(batch, device))
    next_values = successor_values(batch, values, bootstrap.cpu().numpy())
    advantage = ops.gae(batch.reward, values, next_values, batch.terminated, batch.truncated, gamma, lam)
    advantages = torch.from_numpy(advantage.reshape(-1)).to(device)
    rows = Rows(obs, action, log_prob, value, advantages, advantages + value, mask)
    if batch.valid.all():
        return rows
    return rows.take(torch.from_numpy(np.flatnonzero(batch.valid)).to(device))


def _evaluate_sequences(model: nn.Module, dist: Distribution, batch: RolloutBatch, gamma: float, lam: float) -> Rows:
    """The same for a recurrent model, carrying its hidden state to each successor."""
    device = next(model.parameters()).device
    seen = sequences(batch, device)
    assert seen.packing is not None
    assert seen.after is not None
    row, last = seen.packing.row, seen.packing.last
    dist_params, value = model(seen)
    action = _flat(batch.action, torch.device("cpu"))[row].to(device)
    mask = None if batch.action_mask is None else _flat(batch.action_mask, torch.device("cpu"))[row].to(device)
    log_prob, _ = ops.log_prob_and_entropy(dist, dist_params, action, mask)
    _, bootstrap = model(one_step(ops.to_tensors(successors(batch, seen.packing), device), seen.after))
    values = np.zeros_like(batch.reward)  # [T, N]
    values.reshape(-1)[row] = value.cpu().numpy()
    next_values = np.concatenate([values[1:], values[:1]])
    next_values.reshape(-1)[last] = bootstrap.cpu().numpy()  # every other row has a successor in its own piece
    advantage = ops.gae(batch.reward, values, next_values, batch.terminated, batch.truncated, gamma, lam)
    advantages = torch.from_numpy(advantage.reshape(-1)[row]).to(device)
    return Rows(seen, action, log_prob, value, advantages, advantages + value, mask)


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
        yield Rows(seen, *rows.columns(keep))  # type: ignore[arg-type]


def cut_obs(batch: RolloutBatch, device: torch.device) -> ops.Obs:
    """Observations where the rollout is cut: after its last row `[N]`, then at the end of each episode `[E]`."""
    return ops.to_tensors(np.concatenate([batch.last_obs, batch.final_obs]), device)


def successor_values(batch: RolloutBatch, values: Array, bootstrap: Array) -> Array:
    """V of every row's successor `[T, N]`: of the next row, or the critic's estimate for `cut_obs`."""
    num_envs = len(batch.last_obs)
    next_values = np.concatenate([values[1:], bootstrap[None, :num_envs]])
    next_values.reshape(-1)[batch.final_index] = bootstrap[num_envs:]
    return next_values


def forward_in_chunks(model: nn.Module, obs: ops.Obs) -> tuple[Tensor, Tensor]:
    """Distribution parameters and values of many rows."""
    count = len(obs if isinstance(obs, Tensor) else next(iter(obs.values())))
    if count <= CHUNK:
        dist_params, value = model(obs)
        return dist_params, value
    if isinstance(obs, Tensor):
        chunks: list[ops.Obs] = list(obs.split(CHUNK))
    else:
        pieces = {name: part.split(CHUNK) for name, part in obs.items()}
        chunks = [dict(zip(pieces, each, strict=True)) for each in zip(*pieces.values(), strict=True)]
    parts = [model(chunk) for chunk in chunks]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _flat(array: Array, device: torch.device) -> Tensor:
    return torch.from_numpy(array.reshape(-1, *array.shape[2:])).to(device)
