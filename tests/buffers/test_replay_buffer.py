"""Replay against what really happened: true successors, n-step sums, stacks, priorities."""

import numpy as np
import pytest

from drl.buffers.replay_buffer import ReplayBuffer
from drl.buffers.transition_store import FrameStore
from drl.core.configs import ReplayConfig
from drl.core.contracts import VecStep
from drl.core.log import Episode
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.core.state_files import read_state, write_state
from drl.testing import oracles

VECTOR, ACTION = ObsSpec("box", (2,)), ActionSpec("discrete", sizes=(3,))
GAMMA = 0.9


class Play:
    """Environments whose observation is (episode, step); some rows are resets; a record of the truth beside it."""

    def __init__(self, num_envs, seed=0, invalid=0.1, images=None):
        self.rng, self.num_envs, self.invalid, self.images = np.random.default_rng(seed), num_envs, invalid, images
        self.clock = np.zeros((num_envs, 2))  # episode, step
        self.traces = [
            [[]] for _ in range(num_envs)
        ]  # per environment, per episode: (obs, action, reward, next_obs, flags)

    def picture(self, clock):
        """A stack of `images` frames, the oldest first; frame = step number, the first one repeated."""
        steps = [max(int(clock[1]) - k, 0) for k in reversed(range(self.images))]
        frames = [np.full((1, 4, 4), (7 * clock[0] + 3 * s) % 251, np.uint8) for s in steps]
        return np.concatenate(frames)

    def show(self, clocks):
        if self.images:
            return np.stack([self.picture(c) for c in clocks])
        return clocks.astype(np.float32)

    def step(self):
        obs, count = self.show(self.clock), self.num_envs
        action, reward = self.rng.integers(3, size=count), self.rng.normal(size=count).astype(np.float32)
        valid = self.rng.random(count) >= self.invalid
        terminated = (self.rng.random(count) < 0.1) & valid
        truncated = (self.rng.random(count) < 0.1) & valid & ~terminated
        after = self.clock + np.array([0, 1]) * valid[:, None]
        next_obs = self.show(after)
        following = after.copy()
        ended = terminated | truncated
        following[ended] = np.stack([after[ended, 0] + 1, np.zeros(ended.sum())], axis=1)
        for n in np.flatnonzero(valid):
            row = (obs[n], action[n], reward[n], next_obs[n], terminated[n], truncated[n])
            self.traces[n][-1].append(row)
            if ended[n]:
                self.traces[n].append([])
        episodes = [Episode(0.0, 1, True, True, int(n)) for n in np.flatnonzero(ended)]
        reward = reward * valid
        self.clock = following
        step = VecStep(reward, terminated, truncated, next_obs, self.show(following), valid, episodes)
        return obs, action, step


def expected_rows(play, n_step):
    """Every n-step transition that is complete, keyed by its first observation, by brute force."""
    rows = {}
    for trace in play.traces:
        for episode in trace:
            for t in range(len(episode)):
                last = min(t + n_step, len(episode)) - 1
                over = episode[last][4] or episode[last][5]
                if last - t + 1 < n_step and not over:
                    continue  # still looking ahead
                total = sum(GAMMA**k * float(episode[t + k][2]) for k in range(last - t + 1))
                rows[episode[t][0].tobytes(), int(episode[t][1]), round(total, 3)] = (
                    episode[last][3], bool(episode[last][4]), GAMMA ** (last - t + 1),
                )  # fmt: skip
    return rows


def config(**changes):
    return ReplayConfig(**{"capacity": 4096, "batch_size": 64, "warmup": 64, "prioritized": False} | changes)


def make(settings, num_envs, obs_spec=VECTOR, **options):
    return ReplayBuffer(EnvSpecs(obs_spec, ACTION, num_envs), settings, gamma=GAMMA, **options)


@pytest.mark.parametrize("n_step", [1, 2, 5])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("prioritized", [False, True])
def test_every_row_is_true(n_step, num_envs, prioritized):
    buffer = make(config(n_step=n_step, prioritized=prioritized), num_envs)
    play = Play(num_envs)
    for _ in range(400):
        buffer.add(*play.step())
    truth = expected_rows(play, n_step)
    assert buffer.size == len(truth)
    for _ in range(20):
        batch = buffer.take()
        for i in range(len(batch.reward)):
            key = (batch.obs[i].tobytes(), int(batch.action[i]), round(float(batch.reward[i]), 3))
            near = [key, (*key[:2], round(key[2] + 0.001, 3)), (*key[:2], round(key[2] - 0.001, 3))]
            next_obs, terminated, discount = next(truth[k] for k in near if k in truth)
            np.testing.assert_array_equal(batch.next_obs[i], next_obs)
            assert (bool(batch.terminated[i]), float(batch.discount[i])) == (terminated, pytest.approx(discount))


def test_the_ring_holds_exactly_the_last_transitions():
    buffer = make(config(capacity=100, batch_size=50), 1)
    play, seen = Play(1, invalid=0.0), []
    for _ in range(250):
        seen.append((row := play.step())[0][0].tolist())
        buffer.add(*row)
    assert buffer.size == 100
    drawn = {tuple(obs) for _ in range(40) for obs in buffer.take().obs.tolist()}
    assert drawn == set(map(tuple, seen[-100:]))


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("capacity", [100, 4096])
def test_stacks_come_back_as_they_were(n_step, capacity):
    """Single frames in, the same stacks out, also after the rings have turned many times."""
    spec = ObsSpec("box", (4, 4, 4), "uint8")
    buffer = make(config(n_step=n_step, capacity=capacity, batch_size=32), 2, spec, frame_stack=4)
    assert isinstance(buffer.store, FrameStore)
    play = Play(2, images=4)
    for count in range(600):
        buffer.add(*play.step())
        if count > 60 and count % 40 == 0:
            batch, truth = buffer.take(), expected_rows(play, n_step)
            for i in range(len(batch.reward)):
                key = (batch.obs[i].tobytes(), int(batch.action[i]), round(float(batch.reward[i]), 3))
                near = [key, (*key[:2], round(key[2] + 0.001, 3)), (*key[:2], round(key[2] - 0.001, 3))]
                np.testing.assert_array_equal(batch.next_obs[i], next(truth[k] for k in near if k in truth)[0])
    assert batch.obs.dtype == np.uint8


def test_frames_take_little_memory():
    """Pong-like: 100 000 transitions of four 84 × 84 frames in less than 1.1 frames each."""
    store = FrameStore(100_000, 8, 4, ObsSpec("box", (4, 84, 84), "uint8"), ACTION)
    assert store.frames.nbytes <= 1.11 * 100_000 * 84 * 84
    assert store.frames.nbytes < 1e9


def test_updates_are_due_per_environment_step_whatever_the_number_of_envs():
    for num_envs in (1, 4):
        buffer = make(config(train_every=4, warmup=100, gradient_steps=2), num_envs)
        play, updates = Play(num_envs, invalid=0.0), 0
        for _ in range(500 // num_envs):
            buffer.add(*play.step())
            while buffer.ready:
                buffer.take()
                updates += 1
        assert updates == 2 * (500 - 100) // 4


@pytest.mark.parametrize(("num_envs", "n_step", "train_every"), [(1, 1, 1), (1, 3, 1), (4, 3, 2), (1, 1, 25)])
def test_no_update_is_owed_for_the_time_without_a_batch(num_envs, n_step, train_every):
    buffer = make(config(train_every=train_every, warmup=0, n_step=n_step), num_envs)
    play = Play(num_envs, invalid=0.0)
    while buffer.env_steps < 200:
        before = buffer.env_steps
        buffer.add(*play.step())
        rounds = buffer.env_steps // train_every - before // train_every
        updates = 0
        while buffer.ready:
            buffer.take()
            updates += 1
        assert updates == (rounds if buffer.size >= 64 else 0)


def test_priorities_and_weights():
    settings = {"priority_alpha": 0.7, "priority_beta": 0.3, "priority_beta_step": 0.1, "priority_eps": 0.05}
    buffer = make(config(prioritized=True, capacity=128, **settings), 1)
    play = Play(1, invalid=0.0)
    for _ in range(128):
        buffer.add(*play.step())
    errors = np.random.default_rng(3).random(128) * 4
    buffer.update_priorities(np.arange(128), errors)
    probabilities, weights = oracles.prioritized_sampling(errors, 0.7, 0.3, 0.05)
    batch = buffer.take()
    np.testing.assert_allclose(batch.weight, weights[batch.index] / weights[batch.index].max(), rtol=1e-5)
    assert buffer.beta == pytest.approx(0.4)
    counts = np.bincount(np.concatenate([buffer.take().index for _ in range(800)]), minlength=128)
    np.testing.assert_allclose(counts / counts.sum(), probabilities, atol=0.003)
    for _ in range(20):
        buffer.take()
    assert buffer.beta == 1.0


def test_a_new_transition_has_the_largest_priority():
    buffer = make(config(prioritized=True, capacity=256), 1)
    play = Play(1, invalid=0.0)
    for _ in range(100):
        buffer.add(*play.step())
    buffer.update_priorities(np.arange(100), np.full(100, 9.0))
    buffer.update_priorities(np.arange(100), np.full(100, 0.1))
    buffer.add(*play.step())
    assert buffer.tree[np.array([100])][0] == pytest.approx(9.01**0.6)


@pytest.mark.parametrize("images", [None, 4])
def test_replay_state_survives_a_round_trip(images, tmp_path):
    spec = ObsSpec("box", (4, 4, 4), "uint8") if images else VECTOR
    stack = images or 1
    settings = config(prioritized=True, n_step=3, capacity=200)
    play = Play(2, images=images)
    buffer = make(settings, 2, spec, rng=np.random.default_rng(1), frame_stack=stack)
    for _ in range(150):
        buffer.add(*play.step())
    other = make(settings, 2, spec, rng=np.random.default_rng(9), frame_stack=stack)
    write_state(tmp_path / "state", buffer.state_dict())
    assert other.load_state_dict(read_state(tmp_path / "state")) is None
    for _ in range(10):
        rows = play.step()
        buffer.add(*rows)
        other.add(*rows)
        one, two = buffer.take(), other.take()
        for name in ("obs", "action", "reward", "next_obs", "weight", "index"):
            np.testing.assert_array_equal(getattr(one, name).copy(), getattr(two, name).copy())
