"""Blocks: groups of a run's environments, each with an agent of its own random stream, so that it does not matter which
process steps them."""

import os
import platform
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from drl.core.contracts import Agent, CollectedStep, VecStep
from drl.core.log import Episode
from drl.core.seeding import generator_state, restore_generator
from drl.core.specs import ActionSpec, Array, EnvValue, ObsSpec
from drl.core.state_files import StateDict
from drl.trainer.trainer import Collector

STEPS_TO_FOLLOW = 256  # steps of a block whose actions are kept, until a new state is requested
Weights = dict[str, Any]  # what the agents of all blocks share: the model and the normalizer


class Blocks(Protocol):
    """Makes the blocks of a run in any process. Their agents share one model."""

    def make(self, number: int) -> Collector:
        """Open the environments of one block."""

    def load(self, weights: Weights) -> None:
        """Give the agent of all blocks new weights."""


MakeBlocks = Callable[[], Blocks]  # sent to the processes


class CollectRequest(NamedTuple):
    """A request to a collector."""

    blocks: tuple[int, ...]
    steps: int  # of every environment
    env_steps: int  # of the whole run so far, for exploration
    num_envs: int  # of the whole run
    version: int  # of the weights
    with_state: bool  # whether to send the environments' state as well


class Chunk(NamedTuple):
    """T steps of the n environments of a block. `obs[t + 1]` follows `obs[t]`; true successors that differ from it are
    in `final_obs`."""

    obs: Array  # [T + 1, n, …]
    action: Array  # [T, n, …] in the policy's units
    reward: Array  # [T, n]
    terminated: Array  # [T, n]
    truncated: Array  # [T, n]
    valid: Array  # [T, n]
    final_index: Array  # [F] t · n + environment
    final_obs: Array  # [F, …]
    episodes: list[tuple[int, Episode]]  # (t, episode)
    action_mask: Array | None  # [T + 1, n, choices]
    next_action_mask: Array | None  # [T, n, choices]
    rnn_state: Array | None  # [n, S] before the first of these steps
    agent: StateDict  # the random stream and all else that the block's agent carries on
    envs: StateDict | None  # the environments after the last step; None: not requested


class BlockState(NamedTuple):
    """The state of a block: an earlier state of its environments, and the actions since."""

    envs: StateDict | None = None  # None: before their first step
    since: tuple[Array, ...] = ()  # of [T, n, …] in the policy's units
    agent: StateDict | None = None
    obs: Array | None = None  # [n, …] the current observations

    def after(self, chunk: Chunk) -> "BlockState":
        """The state after one more chunk."""
        envs, since = (self.envs, (*self.since, chunk.action)) if chunk.envs is None else (chunk.envs, ())
        return BlockState(envs, since, chunk.agent, chunk.obs[-1])

    @property
    def new_episodes(self) -> bool:
        """Whether the next step begins new episodes, which the stored environments are not in."""
        return self.envs is not None and self.obs is None

    @property
    def steps_to_follow(self) -> int:
        """Steps to play again from the stored environments."""
        return sum(len(actions) for actions in self.since)

    def plain(self) -> StateDict:
        """The state as plain data, for a checkpoint."""
        actions = np.concatenate(self.since) if self.since else None
        return {"envs": self.envs, "since": actions, "agent": self.agent, "obs": self.obs}

    @classmethod
    def from_plain(cls, state: StateDict) -> "BlockState":
        """Restore such a state."""
        since = () if state["since"] is None else (np.array(state["since"]),)
        return cls(state["envs"], since, state["agent"], None if state["obs"] is None else np.array(state["obs"]))


def agent_state(agent: Agent) -> StateDict:
    """The state of an agent without its weights."""
    exploration = agent.exploration
    return {
        "rng": generator_state(agent.rng),
        "rnn_state": None if agent.rnn_state is None else agent.rnn_state.copy(),
        "exploration": None if exploration is None else exploration.state_dict(),
    }


def restore_agent(agent: Agent, state: StateDict) -> None:
    """Give an agent its random stream and recurrent state back."""
    restore_generator(agent.rng, state["rng"])
    agent.rnn_state = None if state["rnn_state"] is None else np.array(state["rnn_state"])
    if agent.exploration is not None:
        agent.exploration.load_state_dict(state["exploration"])


def collect(block: Collector, order: CollectRequest, count: Callable[[], None]) -> Chunk:
    """The steps of an order in one block; `count` is called after each."""
    taken = []
    for t in range(order.steps):
        step = block.step(order.env_steps + t * order.num_envs)
        # The environments write into their arrays again.
        taken.append(step._replace(obs=step.obs.copy(), step=step.step._replace(next_obs=step.step.next_obs.copy())))
        count()
    obs = np.stack([each.obs for each in taken] + [taken[-1].step.obs])
    steps = [each.step for each in taken]
    reward, terminated, truncated, valid = (
        np.stack([getattr(step, name) for step in steps]) for name in ("reward", "terminated", "truncated", "valid")
    )
    ends = [(t, env) for t, step in enumerate(steps) for env in np.flatnonzero(step.terminated | step.truncated)]
    finals = np.array([steps[t].next_obs[env] for t, env in ends], obs.dtype).reshape(-1, *obs.shape[2:])
    masks = [mask for mask in (*(each.action_mask for each in taken), block.envs.action_mask) if mask is not None]
    next_masks = [step.next_action_mask for step in steps if step.next_action_mask is not None]
    return Chunk(
        obs,
        np.stack([each.action for each in taken]),
        reward,
        terminated,
        truncated,
        valid,
        np.array([t * block.num_envs + env for t, env in ends], np.int64),
        finals,
        [(t, episode) for t, step in enumerate(steps) for episode in step.episodes],
        np.stack(masks) if masks else None,
        np.stack(next_masks) if next_masks else None,
        taken[0].rnn_state,
        agent_state(block.agent),
        block.envs.state_dict() if order.with_state else None,
    )


def go_to(block: Collector, state: BlockState) -> str | None:
    """Bring a new block to the state of another one. Return why that is not possible; None: it is."""
    if state.agent is not None:
        restore_agent(block.agent, state.agent)
    why = None if state.envs is None else block.envs.load_state_dict(state.envs)
    if state.obs is None:  # new episodes begin at the next step
        return None
    if why is None:
        obs = state.obs if state.envs is not None else block.envs.reset()
        for action in (each for actions in state.since for each in actions):
            obs = block.envs.step(block.action_spec.to_env(action)).obs
        if obs.tobytes() == state.obs.tobytes():
            block.obs = state.obs
            return None
        why = "its environments, played again with the same actions, show other observations"
    block.begin_anew()
    return why


def joined(chunks: Sequence[tuple[slice, Chunk]], num_envs: int) -> list[CollectedStep]:
    """The steps of blocks as steps of all environments. `slice` is a block's place in a row; rows of environments that
    are in no block here are not valid."""
    like = chunks[0][1]

    def joint(name: str) -> Array:
        first = getattr(like, name)
        whole = np.zeros((len(first), num_envs, *first.shape[2:]), first.dtype)
        for place, chunk in chunks:
            whole[:, place] = getattr(chunk, name)
        return whole

    obs, action, reward = joint("obs"), joint("action"), joint("reward")
    terminated, truncated, valid = joint("terminated"), joint("truncated"), joint("valid")
    mask = None if like.action_mask is None else joint("action_mask")
    next_mask = None if like.next_action_mask is None else joint("next_action_mask")
    next_obs = list(obs[1:])
    episodes: list[list[Episode]] = [[] for _ in reward]
    for place, chunk in chunks:
        for index, final in zip(chunk.final_index.tolist(), chunk.final_obs, strict=True):
            t, env = divmod(index, chunk.reward.shape[1])
            if next_obs[t].base is obs:
                next_obs[t] = next_obs[t].copy()
            next_obs[t][place.start + env] = final
        for t, episode in chunk.episodes:
            episodes[t].append(episode)
    rnn_state = None
    if like.rnn_state is not None:
        rnn_state = np.zeros((num_envs, like.rnn_state.shape[1]), np.float32)
        for place, chunk in chunks:
            rnn_state[place] = chunk.rnn_state
    taken = []
    for t, ended in enumerate(episodes):
        ended.sort(key=lambda episode: episode.env_index)
        masks = (None if mask is None else mask[t + 1], None if next_mask is None else next_mask[t])
        step = VecStep(reward[t], terminated[t], truncated[t], next_obs[t], obs[t + 1], valid[t], ended, *masks)
        first_state = rnn_state if t == 0 else None
        taken.append(CollectedStep(obs[t], action[t], step, None if mask is None else mask[t], first_state))
    return taken


class CollectorSpecs(NamedTuple):
    """Collector metadata."""

    obs_spec: ObsSpec
    action_spec: ActionSpec
    host: str
    process: int


class CollectorActor:
    """A Ray actor. It handles one request at a time; `steps_taken` answers meanwhile."""

    def __init__(self, make_blocks: MakeBlocks, states: dict[int, BlockState]):
        self.factory: Blocks = make_blocks()
        self.version: int = -1
        self.taken: int = 0
        self.blocks: dict[int, Collector] = {}
        self.inexact: str | None = None
        self.rebuild(states)

    def rebuild(self, states: dict[int, BlockState]) -> None:
        """New blocks where others were."""
        self.close()
        self.blocks = {number: self.factory.make(number) for number in states}
        reasons = [go_to(self.blocks[number], state) for number, state in states.items()]
        self.inexact = next((why for why in reasons if why is not None), None)

    def describe(self) -> tuple[CollectorSpecs, str | None]:
        """The specs, and why this collector does not continue its blocks exactly; None: it does."""
        block = next(iter(self.blocks.values()))
        return CollectorSpecs(block.obs_spec, block.action_spec, platform.node(), os.getpid()), self.inexact

    def collect(self, order: CollectRequest, weights: Weights) -> list[Chunk]:
        """Take the steps of an order, with these weights."""
        if order.version != self.version:
            self.factory.load(weights)
            self.version = order.version

        def count() -> None:
            self.taken += 1

        return [collect(self.blocks[number], order, count) for number in order.blocks]

    def get(self, name: str) -> list[EnvValue]:
        return [value for block in self.blocks.values() for value in block.get(name)]

    def set(self, name: str, value: object) -> dict[int, StateDict]:
        """The states of the environments of every block afterwards."""
        for block in self.blocks.values():
            block.set(name, value)
        return self._states()

    def call(
        self, name: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[list[EnvValue], dict[int, StateDict]]:
        """The results of the method, and the states afterwards."""
        answers = [answer for block in self.blocks.values() for answer in block.call(name, *args, **kwargs)]
        return answers, self._states()

    def _states(self) -> dict[int, StateDict]:
        return {number: block.envs.state_dict() for number, block in self.blocks.items()}

    def steps_taken(self) -> int:
        """Environment steps since it was started."""
        return self.taken

    def close(self) -> None:
        for block in self.blocks.values():
            block.envs.close()
