"""Runs a fused program in chunks of learning steps, for one seed or for several in the same program."""

import math
from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.core.state_files import StateDict
from drl.engines.jax.fused.running_stats import RunningStats
from drl.engines.jax.fused.step_report import Report
from drl.engines.jax.layers import Tree, transposed, untransposed
from drl.engines.jax.model_state import restore_state, state_arrays

CHUNK_SECONDS = 0.1  # minimum duration of a chunk; shorter ones make the return to Python noticeable
# Speed of a fast core, to estimate durations from sizes. Measured durations would make equal runs differ.
FLOPS, ROW_SECONDS = 1e11, 0.5e-6
MOST_STEPS = 256  # learning steps in a chunk
MOST_ROWS = 1 << 19  # rows in the reports of a chunk


class Program(Protocol):
    """A fused program: hashable configuration and pure functions. `carry` is the state of a run."""

    @property
    def num_envs(self) -> int:
        """Environments in the program."""

    @property
    def rows(self) -> int:
        """Steps of every environment in one learning step, at most."""

    @property
    def steps(self) -> int:
        """Environment steps of one learning step, at most."""

    @property
    def passes(self) -> int:
        """Passes of one learning step over its rows."""

    def begin(self, params: Tree, key: jax.Array) -> Tree:
        """What the program carries, at the beginning of a run."""

    def learn_step(self, carry: Tree) -> tuple[Tree, Report]:
        """One learning step: what is carried on, and what to report."""


def _chunk(program: Program, room: int, carry: Tree, count: ArrayLike) -> tuple[Tree, Report]:
    """`count` learning steps, at most `room`. The count is an input, so that one program works for every length."""
    shapes = jax.eval_shape(program.learn_step, carry)[1]
    reports = jax.tree.map(lambda leaf: jnp.zeros((room, *leaf.shape), leaf.dtype), shapes)

    def learn(number: ArrayLike, now: tuple[Tree, Report]) -> tuple[Tree, Report]:
        carry, report = program.learn_step(now[0])
        return carry, jax.tree.map(lambda column, new: column.at[number].set(new), now[1], report)

    result: tuple[Tree, Report] = jax.lax.fori_loop(0, count, learn, (carry, reports))
    return result


@partial(jax.jit, static_argnums=0)
def _begin(program: Program, params: Tree, keys: jax.Array) -> Tree:
    return jax.vmap(program.begin)(params, keys)


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _one(program: Program, room: int, carry: Tree, count: ArrayLike) -> tuple[Tree, Report]:
    carry, reports = _chunk(program, room, jax.tree.map(lambda leaf: jnp.squeeze(leaf, 0), carry), count)
    return jax.tree.map(lambda leaf: leaf[None], (carry, reports))  # type: ignore[no-any-return]


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _several(program: Program, room: int, carry: Tree, count: ArrayLike) -> tuple[Tree, Report]:
    return jax.vmap(lambda one: _chunk(program, room, one, count))(carry)  # type: ignore[no-any-return]


class FusedLearner:
    """The state of one or more runs of a program, between two chunks."""

    def __init__(self, program: Program, params: list[Tree], seeds: list[int]):
        self.program: Program = program
        self.seeds: list[int] = seeds
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(transposed(each) for each in params))
        keys = np.stack([np.asarray(jax.random.PRNGKey(seed)) for seed in seeds])
        self.carry: Tree = _begin(program, stacked, keys)
        size = sum(np.size(array) for array in jax.tree.leaves(params[0]))
        seconds = program.steps * (ROW_SECONDS + (2 + 6 * program.passes) * size / FLOPS)
        self.room: int = max(1, min(MOST_STEPS, MOST_ROWS // (program.rows * program.num_envs)))
        self.preferred: int = min(self.room, math.ceil(CHUNK_SECONDS / seconds))  # learning steps in a chunk
        self.most_steps: int = program.steps  # environment steps of one learning step

    def advance(self, count: int) -> list[Report]:
        """Take `count` learning steps. Returns one report per seed; the first axis is the learning step."""
        run = _one if len(self.seeds) == 1 else _several
        self.carry, reports = run(self.program, self.room, self.carry, np.int32(count))
        host = jax.tree.map(np.asarray, reports)
        return [jax.tree.map(lambda leaf, i=i: leaf[i, :count], host) for i in range(len(self.seeds))]

    def params(self, index: int) -> Tree:
        """The parameters of one seed, as copies: the next chunk reuses the buffers."""
        params = jax.tree.map(lambda value: np.asarray(value)[index], self.carry.learner.params)
        return jax.tree.map(lambda array: np.array(array, order="C"), untransposed(params))

    def running_stats(self, index: int) -> RunningStats | None:
        """The statistics of one seed's observations; None if they are not normalized."""
        running_stats = getattr(self.carry, "running_stats", None)
        return None if running_stats is None else RunningStats(*(np.asarray(leaf)[index] for leaf in running_stats))

    def state_dict(self, index: int) -> StateDict:
        """Of one seed."""
        return state_arrays(jax.tree.map(lambda leaf: leaf[index], self.carry))

    def load_state_dict(self, index: int, state: StateDict) -> None:
        one = restore_state(jax.tree.map(lambda leaf: leaf[index], self.carry), state)
        self.carry = jax.tree.map(lambda leaf, new: leaf.at[index].set(new), self.carry, one)
