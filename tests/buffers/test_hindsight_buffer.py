"""Hindsight replay against what really happened: every batch row is rebuilt from a record, in both forms."""

from dataclasses import dataclass, replace

import gymnasium as gym
import jax
import numpy as np
import pytest
from gymnasium import spaces

import drl
from drl.agents.evaluation import evaluate
from drl.algorithms.dqn import DQNConfig
from drl.buffers.hindsight_buffer import HindsightBuffer
from drl.buffers.replay_buffer import ReplayBuffer, make_replay_buffer
from drl.cli.entry import main
from drl.core.configs import ReplayConfig
from drl.core.contracts import VecStep
from drl.core.errors import BadInput
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.core.state_files import read_state, write_state
from drl.engines.jax.envs import make_jax_env
from drl.engines.jax.envs.jax_env import JaxStep
from drl.engines.jax.fused.fused_replay import FusedReplay
from drl.envs.goals import GoalFunctions, goal_functions
from drl.runs.building import open_trainer
from drl.settings.experiment import Experiment

GAMMA, LIMIT = 0.9, 8
KEYS = ("achieved_goal", "desired_goal", "observation")
SPEC = ObsSpec("dict", keys=KEYS, parts=tuple(ObsSpec("box", (size,)) for size in (2, 2, 3)))
ACTION = ActionSpec("discrete", sizes=(4,))
STRATEGIES = ["future", "final", "episode"]


def reward_of(achieved, desired):
    """Far from zero for the goals below, and different for each pair."""
    return -abs(achieved - desired).sum(axis=-1) - 1.0


def reached(achieved, desired):
    return (achieved == desired).all(axis=-1)


class Goals:
    """A goal ends the episode, if `ends`."""

    def __init__(self, ends=True):
        self.ends = ends

    def reward(self, achieved, desired):
        return reward_of(achieved, desired)

    def terminated(self, achieved, desired):
        return reached(achieved, desired) if self.ends else None


@dataclass(frozen=True)
class JaxGoals:
    """As much of a JAX environment as the fused buffer reads."""

    obs_spec: ObsSpec = SPEC
    max_steps: int | None = LIMIT

    def compute_reward(self, achieved, desired):
        return reward_of(achieved, desired)


class JaxGoalsThatEnd(JaxGoals):
    def compute_terminated(self, achieved, desired):
        return reached(achieved, desired)


@dataclass
class Row:
    obs: np.ndarray  # achieved (2), desired (2), observation: environment, episode, step
    action: int
    reward: float
    terminated: bool
    truncated: bool
    next_obs: np.ndarray
    masks: np.ndarray  # legal actions in obs and in next_obs
    number: int  # in its environment


class Play:
    """Episodes of up to LIMIT steps that end in both ways, and a record of them. What is achieved is unique, but every
    third step undoes the one before it, so the same goal comes up twice in an episode."""

    def __init__(self, num_envs, invalid=0.0, seed=0):
        self.rng, self.num_envs, self.invalid = np.random.default_rng(seed), num_envs, invalid
        self.clock = np.zeros((num_envs, 2), int)  # episode, step
        self.record = [[[]] for _ in range(num_envs)]  # environment, episode, step
        self.written = np.zeros(num_envs, int)

    def show(self, env, episode, step):
        achieved = (100 * env + episode, step - 2 * (step % 3 == 2))
        return np.array([*achieved, -5 - episode, env, env, episode, step], np.float32)

    def step(self):
        obs = np.stack([self.show(n, *self.clock[n]) for n in range(self.num_envs)])
        valid = self.rng.random(self.num_envs) >= self.invalid
        after = self.clock + [0, 1] * valid[:, None]
        next_obs = np.stack([self.show(n, *after[n]) for n in range(self.num_envs)])
        action, reward = self.rng.integers(4, size=self.num_envs), self.rng.normal(size=self.num_envs).astype("f4")
        terminated = (self.rng.random(self.num_envs) < 0.1) & valid
        truncated = ((self.rng.random(self.num_envs) < 0.1) | (after[:, 1] == LIMIT)) & valid & ~terminated
        masks = self.rng.random((2, self.num_envs, 4)) < 0.7
        for n in np.flatnonzero(valid):
            ends = (bool(terminated[n]), bool(truncated[n]))
            row = Row(obs[n], int(action[n]), float(reward[n]), *ends, next_obs[n], masks[:, n], int(self.written[n]))
            self.record[n][-1].append(row)
            self.written[n] += 1
            if any(ends):
                self.record[n].append([])
                after[n] = after[n, 0] + 1, 0
        self.clock = after
        step = VecStep(reward, terminated, truncated, next_obs, next_obs, valid, [], None, masks[1])
        return obs, action, step, masks[0]

    def rows(self, length, n_step):
        """(environment, episode, step) of every row that is stored and has all its n steps."""
        return {
            (env, e, t)
            for env, episodes in enumerate(self.record)
            for e, episode in enumerate(episodes)
            for t, row in enumerate(episode)
            if row.number >= self.written[env] - length and (t + n_step <= len(episode) or ended(episode))
        }


def ended(episode):
    return bool(episode) and (episode[-1].terminated or episode[-1].truncated)


def check_row(play, row, strategy, length, n_step, ends):
    """One row of a batch: obs, action, reward, γ^k or 0, next_obs, masks. Returns its key, and the steps from which its
    goal may be; none: it has its own."""
    obs, action, total, continues, next_obs, *masks = row
    env, number, t = (int(x) for x in obs[4:])
    episode = play.record[env][number]
    goal = obs[2:4]
    own = np.array_equal(goal, episode[t].obs[2:4])
    oldest = play.written[env] - length
    allowed = {"future": range(t, len(episode)), "final": [len(episode) - 1], "episode": range(len(episode))}[strategy]
    allowed = [i for i in allowed if ended(episode) and episode[i].number >= oldest]
    sources = [i for i in allowed if np.array_equal(episode[i].next_obs[:2], goal)]
    assert own or sources
    expected, discount = 0.0, 1.0
    for step in episode[t : t + n_step]:
        achieved = step.next_obs[:2]
        expected += discount * (step.reward if own else reward_of(achieved, goal))
        discount *= GAMMA
        over = step.terminated if own or not ends else reached(achieved, goal)
        if over:
            break
    assert action == episode[t].action
    assert total == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert continues == pytest.approx(0.0 if over else discount, rel=1e-5)
    for shown, true in ((obs, episode[t].obs), (next_obs, step.next_obs)):
        np.testing.assert_array_equal(shown, np.concatenate([true[:2], goal, true[4:]]))
    np.testing.assert_array_equal(masks, [episode[t].masks[0], step.masks[1]])
    return (env, number, t), ([] if own else sources), bool(ended(episode))


def config(**changes):
    settings = {"capacity": 90, "batch_size": 60, "warmup": 0, "her": "future", "her_ratio": 0.7}
    return ReplayConfig(**settings | changes)


def specs(num_envs):
    return EnvSpecs(SPEC, ACTION, num_envs)


def make(settings, num_envs, goals=None):
    rng = np.random.default_rng(3)
    return HindsightBuffer(specs(num_envs), goals or Goals(), settings, gamma=GAMMA, rng=rng)


def batch_rows(batch):
    continues = batch.discount * (1 - batch.terminated)
    masks = (batch.action_mask, batch.next_action_mask)
    return zip(batch.obs, batch.action, batch.reward, continues, batch.next_obs, *masks, strict=True)


def check_share(found, settings):
    """`found`: pairs of whether a row has another goal, and whether its episode has ended."""
    others = [other for other, over in found if over]
    assert np.mean(others) == pytest.approx(settings.her_ratio, abs=0.05)
    assert {other for other, over in found if not over} == {False}  # there are rows of running episodes


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("n_step", "num_envs", "prioritized", "ends"), [(1, 1, False, False), (3, 3, False, True), (2, 3, True, False)]
)
def test_every_row_is_true_with_its_goal(strategy, n_step, num_envs, prioritized, ends):
    """Before and after the rings have turned; rows of resets lie between episodes, and some inside them."""
    settings = config(her=strategy, n_step=n_step, prioritized=prioritized)
    buffer, play = make(settings, num_envs, Goals(ends)), Play(num_envs, invalid=0.1)
    length, seen, found = 90 // num_envs, set(), []
    for count in range(1, 200):
        buffer.add(*play.step())
        if count in (80, 100, 199):
            assert buffer.size == len(play.rows(length, n_step))
            seen.clear()
            for _ in range(12):
                for row in batch_rows(buffer.take()):
                    key, sources, over = check_row(play, row, strategy, length, n_step, ends)
                    seen.add(key)
                    found.append((bool(sources), over))
            assert seen == play.rows(length, n_step)
    check_share(found, settings)


@pytest.mark.parametrize(
    ("strategy", "n_step", "prioritized", "ends"),
    [("future", 2, False, True), ("final", 1, True, False), ("episode", 1, False, True)],
)
def test_the_fused_form_keeps_the_same_rules(strategy, n_step, prioritized, ends):
    settings = config(her=strategy, n_step=n_step, prioritized=prioritized)
    replay = FusedReplay(settings, GAMMA, 3, JaxGoalsThatEnd() if ends else JaxGoals())
    buffer, play = replay.begin(SPEC, ACTION, masked=True), Play(3)
    add, draw, found = jax.jit(replay.add), jax.jit(replay.draw), []
    for count in range(1, 101):
        obs, action, step, mask = play.step()
        now = JaxStep(step.reward, step.terminated, step.truncated, None, *step[3:5], None, step.next_action_mask)
        buffer = add(buffer, obs, action.astype(np.int32), now, mask)
        if count in (20, 71, 85, 100):
            _, batch, _ = draw(buffer, jax.random.uniform(jax.random.PRNGKey(count), (4, 400)))
            masks = (batch.action_mask, batch.next_action_mask)
            columns = (batch.obs, batch.action, batch.reward, batch.discount, batch.next_obs, *masks)
            for row in zip(*(np.asarray(column) for column in columns), strict=True):
                _, sources, over = check_row(play, row, strategy, 30, n_step, ends)
                found.append((bool(sources), over))
    check_share(found, settings)


def one_episode(steps=9):
    """One environment, one finished episode in which everything achieved is unique."""
    for t in range(steps):
        obs, next_obs = (np.array([[0, i, -5, 0, 0, 0, i]], np.float32) for i in (t, t + 1))
        flag = np.array([t == steps - 1])
        step = VecStep(np.zeros(1, np.float32), flag, ~flag & False, next_obs, next_obs, np.ones(1, bool), [])
        yield obs, np.zeros(1, int), step


def numpy_draws(settings):
    buffer = make(settings, 1)
    for step in one_episode():
        buffer.add(*step)
    return np.concatenate([buffer.take().obs.copy() for _ in range(60)])


def fused_draws(settings):
    replay = FusedReplay(settings, GAMMA, 1, JaxGoals(max_steps=9))
    buffer, add = replay.begin(SPEC, ACTION), jax.jit(replay.add)
    for obs, action, step in one_episode():
        now = JaxStep(step.reward, step.terminated, step.truncated, None, step.next_obs, step.obs)
        buffer = add(buffer, obs, action, now)
    return np.asarray(jax.jit(replay.draw)(buffer, jax.random.uniform(jax.random.PRNGKey(0), (4, 6000)))[1].obs)


@pytest.mark.parametrize("draws", [numpy_draws, fused_draws])
@pytest.mark.parametrize("strategy", ["future", "episode"])
def test_goals_are_chosen_uniformly(strategy, draws):
    obs = draws(config(her=strategy, her_ratio=1.0, batch_size=9))
    counts = np.zeros((9, 9))  # step, step of the goal
    np.add.at(counts, (obs[:, 6].astype(int), obs[:, 3].astype(int) - 1), 1)
    expected = np.triu(np.ones((9, 9))) if strategy == "future" else np.ones((9, 9))
    expected /= expected.sum(axis=1, keepdims=True)
    error = np.sqrt(expected * (1 - expected) / counts.sum(axis=1, keepdims=True))
    assert (abs(counts / counts.sum(axis=1, keepdims=True) - expected) <= 4.5 * error).all()


def test_without_replaced_goals_it_is_ordinary_n_step_replay():
    """The same rows as the plain buffer, whatever the order."""
    ours, plain = make(config(her_ratio=0.0, n_step=3, capacity=600), 2), None
    plain = ReplayBuffer(specs(2), config(her="none", n_step=3, capacity=600), gamma=GAMMA)
    play = Play(2, invalid=0.1)
    for _ in range(100):
        step = play.step()
        ours.add(*step)
        plain.add(*step)
    assert (ours.size, ours.env_steps, ours.ready) == (plain.size, plain.env_steps, plain.ready)
    tables = []
    for buffer in (ours, plain):
        rows = {}
        for _ in range(80):
            for obs, action, reward, continues, next_obs, *masks in batch_rows(buffer.take()):
                rows[obs.tobytes()] = [action, reward, continues, *next_obs, *np.ravel(masks)]
        tables.append(rows)
    assert tables[0].keys() == tables[1].keys()
    for key, row in tables[0].items():
        np.testing.assert_allclose(np.array(row, float), np.array(tables[1][key], float), rtol=1e-5)


def test_priorities_belong_to_rows():
    buffer, play = make(config(prioritized=True, n_step=2, priority_alpha=1.0), 3), Play(3)
    for _ in range(60):
        buffer.add(*play.step())
    rows = np.flatnonzero(buffer.tree[np.arange(90)])
    assert len(rows) == buffer.size
    errors = np.where(np.arange(len(rows)) % 2, 3.0, 0.0)
    buffer.update_priorities(rows, errors)
    index = np.concatenate([buffer.take().index for _ in range(100)])
    assert np.isin(index, rows[1::2]).mean() > 0.98
    buffer.add(*play.step())
    assert buffer.tree[np.arange(90)].max() == pytest.approx(3.01)


@pytest.mark.parametrize("prioritized", [False, True])
def test_state_survives_a_round_trip(tmp_path, prioritized):
    settings, play = config(n_step=2, prioritized=prioritized), Play(2, invalid=0.1)
    buffer, other = make(settings, 2), make(settings, 2)
    other.rng = np.random.default_rng(99)
    for _ in range(70):
        buffer.add(*play.step())
    write_state(tmp_path, buffer.state_dict())
    other.load_state_dict(read_state(tmp_path))
    for _ in range(30):
        step = play.step()
        buffer.add(*step)
        other.add(*step)
        one, two = buffer.take(), other.take()
        for name, value in vars(one).items():
            np.testing.assert_array_equal(value, getattr(two, name))


def test_images_beside_goals():
    """A structured observation: goals are fields."""
    camera = ObsSpec("box", (2, 6, 6), "uint8")
    spec = replace(SPEC, parts=(*SPEC.parts[:2], camera))
    buffer = HindsightBuffer(EnvSpecs(spec, ACTION), Goals(), config(her_ratio=1.0, batch_size=9), gamma=GAMMA)
    for obs, action, step in one_episode():
        shown = [np.zeros(1, spec.dtype) for _ in range(2)]
        for fields, flat in zip(shown, (obs, step.next_obs), strict=True):
            fields["achieved_goal"], fields["desired_goal"] = flat[:, :2], flat[:, 2:4]
            fields["observation"] = int(flat[0, 6])
        buffer.add(shown[0], action, step._replace(next_obs=shown[1], obs=shown[1]))
    batch = buffer.take()
    np.testing.assert_array_equal(batch.reward, reward_of(batch.next_obs["achieved_goal"], batch.obs["desired_goal"]))
    assert (batch.obs["desired_goal"][:, 1] > batch.obs["observation"][:, 0, 0, 0]).all()


# ── the environment's own functions ───────────────────────────────────────────────────────────────────────────────


class PointEnv(gym.Env):
    """Goals of some space; `compute_reward` for one goal or for a batch."""

    def __init__(self, goal=None, desired=None, batched=False):
        goal = goal or spaces.Box(-1, 1, (2, 2), np.float64)
        parts = {"achieved_goal": goal, "desired_goal": desired or goal, "observation": spaces.Box(-1, 1, (1,))}
        self.observation_space, self.action_space = spaces.Dict(parts), spaces.Discrete(2)
        self.batched, self.calls = batched, 0

    def compute_reward(self, achieved_goal, desired_goal, info):
        self.calls += 1
        assert achieved_goal.dtype == np.float64
        assert info == {}
        return -np.linalg.norm(achieved_goal - desired_goal, axis=(-2, -1) if self.batched else None)


@pytest.mark.parametrize("batched", [False, True])
def test_functions_that_take_no_batch_are_called_for_each_row(batched):
    env = PointEnv(batched=batched)
    goals, rng = GoalFunctions(env), np.random.default_rng(0)
    achieved, desired = rng.normal(size=(2, 7, 4)).astype(np.float32)
    expected = -np.linalg.norm(achieved - desired, axis=1)
    np.testing.assert_allclose(goals.reward(achieved, desired), expected, rtol=1e-5)
    before = env.calls
    np.testing.assert_allclose(goals.reward(achieved[:3], desired[:3]), expected[:3], rtol=1e-5)
    assert env.calls - before == (1 if batched else 3)
    assert goals.terminated(achieved, desired) is None


@pytest.mark.parametrize("bits", [1, 4])
def test_the_reward_of_a_goal_is_the_one_that_the_environment_gave(bits):
    goals, env = goal_functions("drl/BitFlip-v0", {"bits": bits}), gym.make("drl/BitFlip-v0", bits=bits)
    for seed in range(20):
        obs, over = env.reset(seed=seed)[0], False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(seed % bits)
            pair = (obs["achieved_goal"][None], obs["desired_goal"][None])
            assert (goals.reward(*pair), goals.terminated(*pair)) == (reward, terminated)
            over = terminated or truncated


NO_GOALS = [
    ({}, ["a box observation", "'achieved_goal'", "compute_reward(achieved_goal, desired_goal, info)", "--her none"]),
    ({"goal": spaces.Box(0, 255, (3,), np.uint8)}, ["uint8"]),
    ({"goal": spaces.Discrete(3)}, ["Discrete(3)"]),
    ({"desired": spaces.Box(-1, 1, (3,))}, ["(3,)", "(2, 2)"]),
]


@pytest.mark.parametrize(("arguments", "words"), NO_GOALS)
def test_environments_without_usable_goals_are_refused(arguments, words, monkeypatch):
    if arguments:
        monkeypatch.setattr("drl.envs.goals.make_env", lambda env_id, env_kwargs: PointEnv(**arguments))
    with pytest.raises(BadInput) as caught:
        goal_functions("CartPole-v1")
    assert [word for word in words if word not in str(caught.value)] == []


def test_what_cannot_be_honored_is_refused():
    with pytest.raises(BadInput, match="her is 'past'"):
        config(her="past")
    with pytest.raises(BadInput, match="her_ratio is"):
        config(her_ratio=1.5)
    with pytest.raises(BadInput, match="HindsightBuffer"):
        ReplayBuffer(specs(1), config())
    with pytest.raises(BadInput, match="--capacity 120"):
        make(config(capacity=119, n_step=3), 40)
    with pytest.raises(BadInput, match="--frame-stack 1"):
        HindsightBuffer(EnvSpecs(ObsSpec("box", (7,)), ACTION), Goals(), config())
    with pytest.raises(BadInput, match="goal_functions"):
        make_replay_buffer(DQNConfig(), config(), specs(1), np.random.default_rng(0))
    with pytest.raises(BadInput, match="no goals"):
        FusedReplay(config(), GAMMA, 1, make_jax_env("CartPole-v1"))
    with pytest.raises(BadInput, match="time limit"):
        FusedReplay(config(), GAMMA, 1, JaxGoals(max_steps=None))


# ── learning ──────────────────────────────────────────────────────────────────────────────────────────────────────

SMALL = {"num_envs": 4, "total_timesteps": 3000, "warmup": 200, "train_every": 4, "batch_size": 64}
SMALL |= {"hidden_sizes": 64, "learning_rate": 3e-3, "gamma": 0.9}


@pytest.mark.full
@pytest.mark.default("torch-future")
@pytest.mark.parametrize(("engine", "strategy"), [("torch", "future"), ("jax", "episode")])
def test_flipping_bits_is_learned(engine, strategy, tmp_path):
    flags = f"--engine {engine} --her {strategy} --results-dir {tmp_path} --name bits --quiet --evaluate-every 0"
    lean = "--no-preset --no-plots --no-video --no-tensorboard --checkpoint-every 0 --num-checkpoints 0"
    small = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    settings = "--env drl/BitFlip-v0 --env-kwargs bits=5"
    assert main(["train", "dqn", *f"{settings} {flags} {lean}".split(), *small]) == 0
    agent = drl.load_agent(tmp_path / "bits")
    assert evaluate(agent, "drl/BitFlip-v0", 100, env_kwargs={"bits": 5}).summary()["success_rate"] >= 0.9


def test_goals_do_not_depend_on_how_environments_are_stepped():
    rows = {}
    for vectorization in ("sync", "async"):
        flat = {"algorithm": "dqn", "env": "drl/BitFlip-v0", "vectorization": vectorization, "her": "final"}
        flat |= {"num_envs": 2, "total_timesteps": 240, "warmup": 200}
        with open_trainer(Experiment.from_flat(flat, "test")) as trainer:
            for _ in trainer():
                pass
        rows[vectorization] = trainer.buffer.take()
    for name in ("obs", "reward", "terminated"):
        np.testing.assert_array_equal(*(getattr(batch, name) for batch in rows.values()))
