"""One process per environment, for slow environments. The transitions are bit-identical to those of `sync`."""

import contextlib
import copy
import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import SupportsFloat, TypeVar, final

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from drl.core.contracts import VecEnv, VecStep
from drl.core.errors import EnvFailed
from drl.core.log import Episode
from drl.core.specs import MASK_KEY, Array, RawObs
from drl.core.state_files import StateDict
from drl.envs.action_masks import flat_mask, mask_reader, masks_in_infos
from drl.envs.episode_stats import EpisodeSeeds, EpisodeStats, success_in_infos
from drl.envs.spaces import GymEnv, GymWrapper, Info, action_spec, encode_fresh, obs_spec

EnvFn = Callable[[], GymEnv]
Answer = TypeVar("Answer")
FAILURE = "drl_failure"  # key of the info under which a worker reports an exception
GRACE = 2.0  # seconds a worker has to close


@final
class AsyncVecEnv(VecEnv):
    """Steps Gymnasium environments in worker processes. `timeout` is in seconds, for each reset and step."""

    vectorization = "async"

    def __init__(
        self, env_fns: Sequence[EnvFn], seed: int, env_id: str = "", stream: str = "world", timeout: float = 300.0
    ):
        self.num_envs, self.timeout = len(env_fns), timeout
        self.env_id = env_id or "an unregistered environment"
        self.stats = EpisodeStats(self.env_id, self.num_envs, seed, stream)
        self._closed = False
        self._vector = self._start([_Worker(*each) for each in zip(env_fns, self.stats.seeds, strict=True)])
        self.obs_spec = obs_spec(self._vector.single_observation_space)
        self.action_spec = action_spec(self._vector.single_action_space)
        self._always_valid = np.ones(self.num_envs, bool)

    def _start(self, env_fns: Sequence[EnvFn]) -> AsyncVectorEnv:
        before = set(multiprocessing.active_children())
        for shared in (True, False):  # a few dtypes do not support shared memory
            try:
                return AsyncVectorEnv(env_fns, shared_memory=shared, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
            except Exception as error:
                _end([child for child in multiprocessing.active_children() if child not in before], grace=0.0)
                if not shared:
                    raise self.stats.failed(error) from error
        raise AssertionError("unreachable")

    def reset(self) -> Array:
        self.stats.begin()  # the workers compute the same seeds
        answer: tuple[RawObs, Info] = self._ask(self._vector.reset_async, self._vector.reset_wait)
        batch, infos = answer
        self._raise_reported(infos)
        self.stats.obs = encode_fresh(self.obs_spec, batch)
        self.action_mask = self.stats.action_mask = self.stats.masks(self._masks(infos), self.action_spec)
        return self.stats.obs

    def _masks(self, infos: Info) -> list[object]:
        """The masks that the workers report, one per environment."""
        return masks_in_infos(infos, self.num_envs)

    def step(self, action: Array) -> VecStep:
        stats = self.stats
        stats.check_action(action)
        answer = self._ask(lambda: self._vector.step_async(action), self._vector.step_wait)
        batch, reward, terminated, truncated, infos = answer
        self._raise_reported(infos)
        obs = encode_fresh(self.obs_spec, batch)  # the workers write the next step into the same shared memory
        stats.add(reward, action=action)
        truncated = truncated & ~terminated
        next_obs, episodes = obs, []
        ends = np.flatnonzero(terminated | truncated)
        if len(ends):
            next_obs, final_info = obs.copy(), infos.get("final_info", {})
            for i in ends.tolist():
                next_obs[i] = self.obs_spec.encode_one(infos["final_obs"][i])
                episodes.append(stats.finish(i, bool(terminated[i]), success_in_infos(final_info, i)))
        stats.obs, next_mask, valid = obs, None, self._always_valid
        if self.action_mask is not None:
            masks = self._masks(infos)
            finals = masks_in_infos(infos.get("final_info", {}), self.num_envs)
            last = [finals[i] if i in ends else mask for i, mask in enumerate(masks)]
            next_mask = stats.masks(last, self.action_spec, successors=ends)
            self.action_mask = stats.action_mask = stats.masks(masks, self.action_spec)
        reward = reward.astype(np.float32)
        return VecStep(reward, terminated, truncated, next_obs, obs, valid, episodes, self.action_mask, next_mask)

    def _ask(self, send: Callable[[], None], wait: Callable[[float], Answer]) -> Answer:
        """One round trip. All workers are stopped if it fails."""
        if self._closed:
            raise self.stats.failed("it was closed; make a new environment")
        try:
            send()
            return wait(self.timeout)
        except multiprocessing.TimeoutError as error:
            silent = [i for i, pipe in enumerate(self._vector.parent_pipes) if not pipe.poll(0)]
            message = f"no answer within {self.timeout:g} s; raise `timeout` if a step may take that long"
            raise self._stop(message, silent[0] if silent else None) from error
        except (EOFError, OSError) as error:
            dead = self._first_dead()
            code = None if dead is None else self._vector.processes[dead].exitcode
            raise self._stop(f"its worker process died (exit code {code})", dead) from error
        except Exception as error:
            raise self._stop(f"{type(error).__name__}: {error}") from error

    def _first_dead(self) -> int | None:
        deadline = time.monotonic() + GRACE  # the pipe may break shortly before the process ends
        while time.monotonic() < deadline:
            for i, process in enumerate(self._vector.processes):
                if not process.is_alive():
                    return i
            time.sleep(0.01)
        return None

    def _raise_reported(self, infos: Info) -> None:
        if FAILURE in infos:
            index = int(np.flatnonzero(infos[f"_{FAILURE}"])[0])
            raise self._stop(str(infos[FAILURE][index]), index)

    def _stop(self, message: str, index: int | None = None) -> EnvFailed:
        self._close(grace=0.0)
        return self.stats.failed(message, index)

    def repeats(self, env_steps: int) -> bool:
        return self.stats.env_steps == env_steps

    def running_episode(self, index: int) -> Episode | None:
        return self.stats.running(index)

    def state_dict(self) -> StateDict:
        return self.stats.state_dict()

    def load_state_dict(self, state: StateDict) -> str | None:
        stats = self.stats
        stats.load_state_dict(state)
        self.action_mask = stats.action_mask
        episodes = [(number, stats.running_actions(index)) for index, number in enumerate(stats.numbers)]
        if stats.obs is None or len(stats.actions) < stats.lengths.max():
            return stats.continued(lambda index: np.zeros(0))
        shown = self._ask(lambda: self._vector.call_async("play_again", episodes), self._vector.call_wait)
        return stats.continued(lambda index: self.obs_spec.encode_one(shown[index]))

    def close(self) -> None:
        self._close(GRACE)

    def _close(self, grace: float) -> None:
        # AsyncVectorEnv.close waits forever for a worker that hangs; this waits at most `grace` seconds.
        if self._closed:
            return
        self._closed = True
        for pipe in self._vector.parent_pipes:
            with contextlib.suppress(OSError):
                pipe.send(("close", None))
        _end(self._vector.processes, grace)
        for pipe in self._vector.parent_pipes:
            pipe.close()
        self._vector.error_queue.close()
        self._vector.closed = True


def _end(processes: Sequence[BaseProcess], grace: float) -> None:
    """Wait `grace` seconds in total, then send SIGTERM, then SIGKILL."""
    deadline = time.monotonic() + grace
    for process in processes:
        process.join(max(deadline - time.monotonic(), 0.0))
    for signal in ("terminate", "kill"):
        alive = [process for process in processes if process.is_alive()]
        for process in alive:
            getattr(process, signal)()
        deadline = time.monotonic() + 1.0
        for process in alive:
            process.join(max(deadline - time.monotonic(), 0.0))


class _Worker:
    """Makes one environment inside a worker process."""

    def __init__(self, make: EnvFn, seeds: EpisodeSeeds):
        self.make, self.seeds = make, seeds

    def __call__(self) -> GymEnv:
        return _Reporter(self.make(), self.seeds)


class _Reporter(GymWrapper):
    """Seeds every episode, sends only the needed infos through the pipe, and exceptions as text.

    Merging all infos would cost time at every step, and an exception that cannot be pickled would block the parent
    forever.
    """

    def __init__(self, env: GymEnv, seeds: EpisodeSeeds):
        super().__init__(env)
        self._seeds = seeds
        self._number = -1  # of the running episode
        self.metadata = dict(env.metadata)  # AsyncVectorEnv writes its mode into this; the user's class stays unchanged
        # A placeholder, sent with a failure. A copy is sampled, so that the space's random state does not change.
        self._last_obs = copy.deepcopy(env.observation_space).sample()
        self._read = mask_reader(env)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[RawObs, Info]:
        try:
            self._number += 1
            info = self._begin()
            return self._last_obs, self._mask(self._last_obs, info)
        except Exception as error:
            return self._last_obs, {FAILURE: f"{type(error).__name__}: {error}"}

    def _begin(self) -> Info:
        self._last_obs, info = self.env.reset(seed=self._seeds(self._number))
        return info

    def play_again(self, episodes: Sequence[tuple[int, Array]]) -> RawObs:
        """Go back into a running episode; `episodes` has the number and the actions of every environment's."""
        self._number, actions = episodes[self._seeds.index]
        try:
            self._begin()
            obs = self._last_obs
            for action in actions:
                obs = self.env.step(action)[0]
            return copy.deepcopy(obs)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def _mask(self, obs: object, info: Info) -> Info:
        mask = self._read(obs, info)
        return {} if mask is None else {MASK_KEY: flat_mask(mask)}

    def step(self, action: object) -> tuple[RawObs, SupportsFloat, bool, bool, Info]:
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
            reward = float(reward)
            reported = self._mask(obs, info)
        except Exception as error:
            return self._last_obs, 0.0, False, False, {FAILURE: f"{type(error).__name__}: {error}"}
        if terminated or truncated:
            obs = copy.deepcopy(obs)  # the reset that follows may write into the same buffer
        reported |= {"is_success": bool(info["is_success"])} if "is_success" in info else {}
        return obs, reward, bool(terminated), bool(truncated), reported
