"""Pieces of episodes, packed: what a recurrent model sees.

The longest piece comes first: all first steps, then all second steps, and so on. Step k is then one block of rows, of
the pieces that last so long: no padding, no masks, and nothing that could leak from one episode into the next.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from drl.core.specs import Array
from drl.core.transition import RolloutBatch
from drl.engines.torch.ops import Obs, take_rows, to_tensors


class Packing(NamedTuple):
    """Where the rows of P pieces lie. A piece is what one environment did in one episode within the window."""

    row: Array  # [B] position t · N + n of each packed row; rows that are not valid are left out
    step: Array  # [B] its step within its piece
    env: Array  # [B] its environment
    piece_env: Array  # [P]
    carried: Array  # [P] bool; True where the piece began before the window did, or with it
    last: Array  # [P] position of its last row


class Sequences(NamedTuple):
    """P pieces in B rows, packed."""

    obs: Obs  # [B, …]
    sizes: list[int]  # how many pieces have a step k; the first is P, and they never rise
    rnn_state: Tensor  # [P, S] what was remembered as each piece began
    after: Tensor | None = None  # [P, S], to be filled with what is remembered at its end
    packing: Packing | None = None  # of a rollout, or of some of its environments

    def of_envs(self, envs: Array) -> tuple["Sequences", Tensor]:
        """The pieces of these environments, and which rows they are. Packed rows stay packed when others are left
        out."""
        assert self.packing is not None
        chosen = np.zeros(self.packing.env.max() + 1, bool)
        chosen[envs] = True
        keep = np.flatnonzero(chosen[self.packing.env])
        sizes = np.bincount(self.packing.step[keep]).tolist()
        ours = np.flatnonzero(chosen[self.packing.piece_env])
        rows, pieces = (torch.from_numpy(index).to(self.rnn_state.device) for index in (keep, ours))
        of_rows, of_pieces = self.packing[:3], self.packing[3:]
        packing = Packing(*(column[keep] for column in of_rows), *(column[ours] for column in of_pieces))
        seen = Sequences(take_rows(self.obs, rows), sizes, self.rnn_state.index_select(0, pieces), packing=packing)
        return seen, rows


def one_step(obs: Obs, rnn_state: Tensor, after: Tensor | None = None) -> Sequences:
    """A single step of each environment, or of each piece."""
    return Sequences(obs, [len(rnn_state)], rnn_state, after)


def pack(batch: RolloutBatch) -> Packing:
    """Cut at every episode's end and leave out the rows in which an environment only reset itself."""
    edge = np.ones_like(batch.valid[:1])
    fresh = np.concatenate([edge, (batch.terminated | batch.truncated | ~batch.valid)[:-1]])  # nothing reaches over
    first = batch.valid & fresh
    last = batch.valid & np.concatenate([(fresh | ~batch.valid)[1:], edge])
    env, begin = np.nonzero(first.T)  # both lists go environment by environment, in time's order, and so they match
    lengths = np.nonzero(last.T)[1] - begin + 1
    order = np.argsort(-lengths, kind="stable")
    env, begin, lengths = env[order], begin[order], lengths[order]
    step, piece = np.nonzero(np.arange(lengths.max())[:, None] < lengths)
    num_envs = batch.valid.shape[1]
    return Packing(
        row=(begin[piece] + step) * num_envs + env[piece],
        step=step,
        env=env[piece],
        piece_env=env,
        carried=begin == 0,
        last=(begin + lengths - 1) * num_envs + env,
    )


def sequences(batch: RolloutBatch, device: torch.device) -> Sequences:
    """A whole rollout, packed. What is remembered as a piece begins: the agent's word for the window's first row,
    nothing at an episode's begin."""
    assert batch.rnn_state is not None
    packing = pack(batch)
    obs = batch.obs.reshape(-1, *batch.obs.shape[2:])[packing.row]
    rnn_state = np.where(packing.carried[:, None], batch.rnn_state[packing.piece_env], np.float32(0.0))
    start = torch.from_numpy(rnn_state).to(device)
    sizes = np.bincount(packing.step).tolist()
    return Sequences(to_tensors(obs, device), sizes, start, torch.empty_like(start), packing)


def successors(batch: RolloutBatch, packing: Packing) -> Array:
    """What each piece saw after its last row `[P, …]`: its episode's final observation, or the window's last one."""
    answer = batch.last_obs[packing.piece_env]
    ended = (batch.terminated | batch.truncated).reshape(-1)[packing.last]
    answer[ended] = batch.final_obs[np.searchsorted(batch.final_index, packing.last[ended])]
    return answer
