"""Inside a run: stages and `on_log` with a context, in every vectorization, and after a resume."""

import functools
import json
import math
import shutil

import gymnasium as gym
import numpy as np
import pytest

import drl
from drl.cli.entry import main
from drl.core.errors import BadInput, EnvFailed
from drl.runs import session
from drl.runs.folder.run_folder import read_record

SMALL = {
    "num_envs": 2, "total_timesteps": 320, "rollout_length": 16, "minibatches": 2, "hidden_sizes": [4], "video": False,
    "plots": False, "tensorboard": False, "compile": "off", "evaluate_every": 0, "evaluation_episodes": 2, "epochs": 1,
}  # fmt: skip


class Steps(gym.Env):
    """Episodes of `length` steps; it counts the numbers of its last info up."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode, self.length, self.count = render_mode, 4, 0

    def lengthen(self):
        self.length += 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.array([self.length, 0], np.float32), {}

    def step(self, action):
        self.count += 1
        over = self.count >= self.length
        obs = np.array([self.length, self.np_random.random()], np.float32)
        return obs, float(action), over, False, {"coins": 2 * self.count, "rare": 1.0} if over else {}

    def render(self):
        return np.full((16, 16, 3), self.length, np.uint8)


def trained(folder, env=Steps, algorithm="ppo", **settings):
    return drl.train(algorithm, env=env, results_dir=str(folder), console=False, preset=False, **SMALL | settings)


def rows_of(run):
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


class Curriculum:
    """Longer episodes after every second log."""

    def __init__(self):
        self.seen, self.best = 0, -math.inf

    def __call__(self, log, context):
        self.seen += 1
        self.best = max(self.best, log.recent["mean_ep_return"])
        if self.seen % 2 == 0:
            length = context.envs.get("length")[0] + 1
            context.envs.set("length", length)
            log.add("length", length)
        context.algorithm.learning_rate_factor *= 0.9

    def state_dict(self):
        return {"seen": self.seen, "best": self.best}

    def load_state_dict(self, state):
        self.seen, self.best = state["seen"], state["best"]


DQN = {"algorithm": "dqn", "batch_size": 8, "warmup": 16, "updates_per_log": 8}
VECTORIZED = {
    "sync": {"vectorization": "sync"},
    "async": {"vectorization": "async"},
    "stacked": {"vectorization": "sync", "frame_stack": 2},
    "jax": {"engine": "jax"},
    "dqn": DQN,
}


def of_algorithm(settings):
    """Without what only PPO has."""
    ours = {"rollout_length", "minibatches", "epochs"} if settings.get("algorithm") else set()
    return {name: value for name, value in SMALL.items() if name not in ours} | settings


@pytest.mark.default("sync", "async", "jax")
@pytest.mark.parametrize("where", VECTORIZED)
def test_a_curriculum_reaches_all_environments_and_the_evaluation(where, tmp_path, monkeypatch):
    settings = of_algorithm(VECTORIZED[where])
    monkeypatch.setitem(globals(), "SMALL", {})
    seen = []

    def longer(log, context):
        if log.learning_steps == 3:
            assert context.envs.get("length") == [4, 4]
            context.envs.set("length", 8)
            assert context.envs.get("length") == [8, 8]
        seen.append(context.evaluate(2).summary()["mean_length"])

    run = trained(tmp_path, on_log=longer, **settings)
    assert seen[:4] == [4.0, 4.0, 8.0, 8.0]
    assert run.evaluation["mean_length"] == 8.0
    last = [row for row in rows_of(run) if row["finished"]][-1]
    assert {length for _, length, _, _ in last["finished"]} == {8}
    assert last["info/coins"] == 16.0


def test_calls_that_return_nothing_reach_the_evaluation(tmp_path):
    def longer(log, context):
        if log.learning_steps == 1:
            context.envs.call("lengthen")

    assert trained(tmp_path, on_log=longer).evaluation["mean_length"] == 5.0


@pytest.mark.full
def test_compiled_programs_refuse_by_name(tmp_path):
    seen = []
    run = trained(
        tmp_path, env="CartPole-v1", engine="jax", on_log=lambda log, context: seen.append(context.evaluate(1))
    )
    assert (run.status, len(seen)) == ("finished", 10)
    for reach in (lambda c: c.envs, lambda c: c.algorithm, lambda c: c.buffer):
        with pytest.raises(BadInput, match=r"compiled program; use --vectorization sync"):
            trained(tmp_path, env="CartPole-v1", engine="jax", on_log=lambda log, context, reach=reach: reach(context))
    with pytest.raises(BadInput, match="info_keys is not for environments inside a compiled program"):
        trained(tmp_path, env="CartPole-v1", engine="jax", vectorization="jax", info_keys=["coins"])


def test_a_number_of_the_user_is_in_every_file(tmp_path, capsys):
    def count(log):
        log.add("level (new)", np.float32(log.learning_steps))
        log.add("nothing", math.nan)

    run = trained(tmp_path, on_log=count, plots=True)
    rows = rows_of(run)
    assert [row["custom/level (new)"] for row in rows] == [row["learning_steps"] for row in rows]
    assert "custom/nothing" not in rows[0]
    assert "custom/level (new)" in (run.folder / "progress.csv").read_text().splitlines()[0]
    assert {"info.png", "custom.png"} <= {path.name for path in (run.folder / "plots").iterdir()}
    assert main(["plot", str(run.folder), "--metric", "info/coins", "--out", str(tmp_path / "a.png")]) == 0


def test_a_name_that_is_taken_is_refused(tmp_path):
    for name, said in (
        ("mean_ep_return", "is in recent of this log"),
        ("", "expected a text"),
        ("env_steps", "counters"),
    ):
        with pytest.raises(BadInput, match=said):
            trained(tmp_path, on_log=lambda log, name=name: log.add(name, 1))
    with pytest.raises(BadInput, match="expected a number"):
        trained(tmp_path, on_log=lambda log: log.add("x", "much"))


def test_only_the_chosen_numbers_of_an_info_are_logged(tmp_path):
    rows = rows_of(trained(tmp_path))
    assert rows[-1]["info/coins"] == 8.0
    assert rows[-1]["info/rare"] == 1.0
    rows = rows_of(trained(tmp_path, info_keys=["rare"]))
    assert "info/coins" not in rows[-1]
    assert rows[-1]["info/rare"] == 1.0


def test_stop_ends_a_run_that_counts_as_finished(tmp_path):
    run = trained(tmp_path, on_log=lambda log, context: context.stop() if log.learning_steps == 2 else None)
    assert (run.status, len(rows_of(run)), run.evaluation["mean_length"]) == ("finished", 2, 4.0)


def test_evaluating_changes_nothing_in_training(tmp_path):
    plain = trained(tmp_path)
    watched = trained(tmp_path, on_log=lambda log, context: context.evaluate(1, attributes={"length": 9}, explore=True))
    same = lambda row: {name: value for name, value in row.items() if not name.startswith("time/")}  # noqa: E731
    assert [same(row) for row in rows_of(plain)] == [same(row) for row in rows_of(watched)]


@pytest.mark.parametrize("form", ["one argument", "two", "named", "default", "partial", "stage"])
def test_a_context_is_given_to_those_who_take_it(form, tmp_path):
    got = []

    def stage(logs, context):
        for log in logs:
            got.append(context)
            yield log

    functions = {
        "one argument": lambda log: got.append(None),
        "two": lambda log, run: got.append(run),
        "named": lambda log, every=3, *, context: got.append(context),
        "default": lambda log, every=3: got.append(None),
        "partial": functools.partial(lambda scale, log, context: got.append(context), 3),
    }
    run = trained(tmp_path, **({"stages": [stage]} if form == "stage" else {"on_log": functions[form]}))
    expected = type(None) if form in ("one argument", "default") else drl.Context
    assert {type(each) for each in got} == {expected}
    assert len(read_record(run.folder)["stages"]) == 1


def test_what_is_no_function_is_refused(tmp_path):
    with pytest.raises(BadInput, match="on_log is 3; expected a function of a log"):
        trained(tmp_path, on_log=3)


@pytest.mark.default("stages-sync", "on_log-jax")
@pytest.mark.parametrize("where", ["sync", "async", "jax"])
@pytest.mark.parametrize("kind", ["on_log", "stages"])
def test_a_resumed_run_is_the_run_that_was_not_interrupted(kind, where, tmp_path):
    """Its environments, the stage's own numbers and the learning rate continue."""

    class Interrupted(Curriculum):
        until = None

        def __call__(self, log, context):
            super().__call__(log, context)
            if self.until is not None and log.learning_steps == self.until:
                raise KeyboardInterrupt

    class AsStage(Interrupted):
        def __call__(self, logs, context):
            for log in logs:
                Interrupted.__call__(self, log, context)
                yield log

    def given(curriculum, until=None):
        curriculum.until = until
        return {"on_log": curriculum} if kind == "on_log" else {"stages": [curriculum]}

    make = Interrupted if kind == "on_log" else AsStage
    settings = VECTORIZED[where] | {"checkpoint_every": 64, "seed": 3}
    whole = trained(tmp_path, **given(make()), **settings)
    broken = trained(tmp_path, **given(make(), until=5), **settings)
    assert broken.status == "interrupted"
    for path in (broken.folder / "checkpoints").iterdir():  # what was saved at the interruption
        if path.name > "step_000000000128":
            shutil.rmtree(path)
    with pytest.raises(BadInput, match="holds the state of stage 0"):
        drl.resume(broken.folder, env=Steps, console=False)
    resumed = drl.resume(broken.folder, env=Steps, console=False, **given(make()))
    same = lambda row: {name: value for name, value in row.items() if not name.startswith("time/")}  # noqa: E731
    assert [same(row) for row in rows_of(whole)] == [same(row) for row in rows_of(resumed)]
    assert "inexact" not in str(read_record(resumed.folder).get("resumed"))
    assert rows_of(resumed)[-1]["trainer/learning_rate"] == pytest.approx(3e-4 * 0.9**9)


def test_a_fork_has_the_state_of_the_stage(tmp_path):
    run = trained(tmp_path, on_log=Curriculum(), checkpoint_every=64)
    curriculum = Curriculum()
    drl.fork(run.folder, {"total_timesteps": 640}, env=Steps, on_log=curriculum, console=False)
    assert curriculum.seen == 20


def test_a_state_that_no_file_can_hold_is_refused_at_once(tmp_path):
    curriculum = Curriculum()
    curriculum.state_dict = lambda: {"seen": {1, 2}}
    with pytest.raises(BadInput, match=r"the state_dict of stage 0 \(Curriculum\) holds a set"):
        trained(tmp_path, on_log=curriculum)


@pytest.mark.default("sync")
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_episodes_are_played_again_with_what_was_set(vectorization, tmp_path, capsys):
    """Set between two steps of running episodes; the film shows it, too."""

    def longer(log, context):
        if log.learning_steps % 3 == 0:
            context.envs.set("length", 4 + log.learning_steps)

    run = trained(tmp_path, on_log=longer, vectorization=vectorization, rollout_length=3, total_timesteps=120)
    finished = [episode for row in rows_of(run) for episode in row["finished"]]
    assert len({length for _, length, _, _ in finished}) == 4
    for number, (total, length, _, _) in enumerate(finished, start=1):
        assert main(["replay", str(run.folder), "--episode", str(number), "--trust"]) == 0
        assert f"{length} steps, return {total:g}\n" in capsys.readouterr().out
    assert main(["replay", str(run.folder), "--episode", "last", "--trust", "--video"]) == 0


def test_an_episode_after_a_call_cannot_be_played_again(tmp_path, capsys):
    run = trained(tmp_path, on_log=lambda log, context: context.envs.call("lengthen"))
    assert main(["replay", str(run.folder), "--episode", "last", "--trust"]) == EnvFailed.exit_code
    assert "lengthen() was called" in capsys.readouterr().err


def test_the_film_is_made_in_changed_environments(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(session, "film", lambda *arguments, changes, **options: seen.append(changes))
    trained(tmp_path, video=True, on_log=lambda log, context: context.envs.set("length", 6))
    assert {(change.name, change.value) for change in seen[0]} == {("length", 6)}
