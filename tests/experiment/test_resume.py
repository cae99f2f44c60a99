"""A run that was stopped goes on as if it had not been: same metrics, same weights."""

import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from drl.cli.entry import main
from drl.core.errors import BadInput, UnusableFile
from drl.core.state_files import RowFiles, read_state, write_state
from drl.runs import launch
from drl.runs.building import open_trainer
from drl.runs.folder.checkpoints import Checkpoints, DamagedCheckpoint
from drl.runs.folder.run_folder import Run, is_in_use
from drl.runs.launch import fork, is_unfinished, resume, train, train_seeds
from drl.settings.experiment import Experiment
from drl.tracking.curves import grouped_runs
from drl.trainer.trainer_loop import Stopped
from tests.run_files import rows, weights

LEAN = {"total_timesteps": 4000, "num_envs": 2, "compile": "off", "quiet": True}
LEAN |= {"plots": False, "video": False, "tensorboard": False}
REPLAY = {"warmup": 60, "batch_size": 16, "capacity": 150, "updates_per_log": 30, "hidden_sizes": [16]}
ROLLOUT = {"rollout_length": 32, "hidden_sizes": [16], "minibatches": 2}


def experiment(algorithm, **settings):
    return Experiment.from_flat(LEAN | {"algorithm": algorithm} | settings, "test")


def row(log):
    """Everything but the clock."""
    plain = {name: float(value) for name, value in log.flat().items() if not name.startswith("time/")}
    return plain | {"finished": [list(map(float, (e.episode_return, e.length, e.terminated))) for e in log.finished]}


def table(folder):
    with (folder / "progress.csv").open() as file:
        lines = list(csv.DictReader(file))
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


CASES = {
    "ppo": experiment("ppo", **ROLLOUT, normalize_obs=True, normalize_reward=True, seed=1),
    "ppo async": experiment("ppo", **ROLLOUT, vectorization="async"),
    "ppo native": experiment("ppo", **ROLLOUT, vectorization="native"),
    "ppo MovieRec": experiment("ppo", **ROLLOUT, vectorization="native", env="MovieRec-v1"),
    "ppo Prisoner's Dilemma": experiment("ppo", **ROLLOUT, vectorization="native", env="IteratedPrisonersDilemma-v0"),
    "ppo recurrent": experiment("ppo", **ROLLOUT, env="drl/CartPoleNoVelocity-v1", recurrent="gru", recurrent_size=8),
    "ppo Box": experiment("ppo", **ROLLOUT, env="Pendulum-v1"),
    "a2c": experiment("a2c", rollout_length=16, hidden_sizes=[16], env="Acrobot-v1"),
    "reinforce": experiment("reinforce", episodes_per_step=2, hidden_sizes=[16]),
    "rainbow": experiment(
        "dqn",
        **REPLAY,
        n_step=3,
        prioritized=True,
        noisy=True,
        dueling=True,
        double=True,
        distributional="c51",
    ),
    "dqn frames": experiment("dqn", **REPLAY, frame_stack=3),
    "dqn hindsight": experiment("dqn", **REPLAY, env="drl/BitFlip-v0", her="future", n_step=2, prioritized=True),
    "dqn Dict": experiment("dqn", **REPLAY, env="drl/BitFlip-v0"),
    "sac": experiment("sac", **REPLAY, env="Pendulum-v1"),
    "td3": experiment("td3", **REPLAY, env="Pendulum-v1"),
    "tqc": experiment("tqc", **REPLAY, env="Pendulum-v1"),
    "crossq": experiment("crossq", **REPLAY, env="Pendulum-v1", critic_hidden_sizes=[16]),
    "normalized_sac": experiment("normalized_sac", **REPLAY, env="Pendulum-v1"),
    "ppo jax": experiment("ppo", **ROLLOUT, engine="jax", vectorization="sync"),
    "sac jax": experiment("sac", **REPLAY, engine="jax", vectorization="sync", env="Pendulum-v1"),
    "ppo game": experiment("ppo", **ROLLOUT, env="tests.envs.roster_game:Masked", normalize_obs=True),
    "rainbow game": experiment("dqn", **REPLAY, env="tests.envs.roster_game:Roster", n_step=3, prioritized=True),
    "ppo hosted": experiment("ppo", **ROLLOUT, env="gymnax:CartPole-v1"),
    "ppo fused": experiment("ppo", **ROLLOUT, engine="jax"),
    "dqn fused": experiment("dqn", **REPLAY, engine="jax", prioritized=True),
}


@pytest.mark.default("sac", "ppo jax", "ppo", "rainbow", "dqn hindsight", "ppo recurrent")
@pytest.mark.parametrize("case", CASES)
def test_a_trainer_continues_exactly(case, tmp_path):
    settings, count = CASES[case], 6
    with open_trainer(settings) as trainer:
        whole = [row(log) for log in itertools.islice(trainer(), count)]
    with open_trainer(settings) as trainer:
        parts = [row(log) for log in itertools.islice(trainer(), 2)]
        write_state(tmp_path / "state", trainer.state_dict())
    for number in range(2):  # resumed twice
        with open_trainer(settings) as trainer:
            trainer.load_state_dict(read_state(tmp_path / "state"))
            assert trainer.inexact is None
            parts += [row(log) for log in itertools.islice(trainer(), 2)]
            write_state(tmp_path / f"state{number}", trainer.state_dict())
            (tmp_path / "state").rename(tmp_path / f"old{number}")
            (tmp_path / f"state{number}").rename(tmp_path / "state")
    assert parts == whole


def assert_finished_exactly(case, folder, leave):
    """The third learning step is left in the middle by `leave(trainer)` and finished by another trainer."""
    settings = CASES[case]
    with open_trainer(settings) as trainer:
        whole = [row(log) for log in itertools.islice(trainer(), 4)]
    with open_trainer(settings) as trainer:
        parts = [row(log) for log in itertools.islice(trainer(), 2)]
        leave(trainer)
        write_state(folder / "state", trainer.state_dict())
    with open_trainer(settings) as trainer:
        trainer.load_state_dict(read_state(folder / "state"))
        parts += [row(log) for log in itertools.islice(trainer(), 2)]
    assert parts == whole


@pytest.mark.default("sac", "ppo")
@pytest.mark.parametrize("case", ["ppo", "ppo recurrent", "reinforce", "rainbow", "sac"])
def test_a_learning_step_that_was_left_in_the_middle_is_finished_exactly(case, tmp_path):
    def leave(trainer):
        questions = itertools.count()
        trainer.should_stop = lambda: next(questions) >= 9
        assert list(trainer()) == []  # ends without a log
        with pytest.raises(Stopped):
            trainer.step()

    assert_finished_exactly(case, tmp_path, leave)


@pytest.mark.parametrize("case", ["ppo", "ppo recurrent", "sac"])
def test_an_action_that_was_decided_is_taken(case, tmp_path):
    """An exception inside the environment's step leaves the trainer as it was before: deciding again would draw other
    random numbers."""

    def leave(trainer):
        trainer.collector.envs.step = lambda action: (_ for _ in ()).throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            trainer.step()

    assert_finished_exactly(case, tmp_path, leave)


def test_a_session_remembers_the_best_model_and_its_time(tmp_path):
    settings = CASES["ppo"].to_flat() | {"results_dir": str(tmp_path), "total_timesteps": 400}
    folder = train(Experiment.from_flat(settings, "test"), console=False).folder
    state = Checkpoints(folder / "checkpoints").load_newest()
    card = json.loads((folder / "models" / "best_agent" / "card.json").read_text())
    assert state["best"]["mean_return"] == card["notes"]["mean_return"]
    assert state["seconds"] > 0


def test_a_checkpoint_comes_after_the_row_of_its_learning_step(tmp_path, monkeypatch):
    """A kill between the two must not leave a gap: a row that is written twice is dropped, a missing one is lost."""
    settings = CASES["ppo"].to_flat() | {"results_dir": str(tmp_path), "total_timesteps": 400, "checkpoint_every": 100}
    saved, save = [], Checkpoints.save

    def noted(self, env_steps, state, *rest):
        saved.append((len(rows(self.folder.parent)), state["trainer"]["stats"]["counters"][1]))
        save(self, env_steps, state, *rest)

    monkeypatch.setattr(Checkpoints, "save", noted)
    train(Experiment.from_flat(settings, "test"), console=False)
    assert len(saved) >= 4
    assert all(written == learned for written, learned in saved)


@pytest.mark.full
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (experiment("ppo", **ROLLOUT, vectorization="envpool"), "EnvPool does not tell"),
        (experiment("dqn", **REPLAY, checkpoint_rows=40), "the checkpoint has 40 (--checkpoint-rows)"),
        (experiment("dqn", **REPLAY, checkpoint_rows=0, prioritized=True), "has 0"),
        (
            experiment("dqn", **REPLAY, env="drl/BitFlip-v0", her="future", checkpoint_rows=40, prioritized=True),
            "has 40",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_what_cannot_be_exact_says_why_and_goes_on(settings, why, tmp_path):
    with open_trainer(settings) as trainer:
        done = list(itertools.islice(trainer(), 1))[-1]
        write_state(tmp_path / "state", trainer.state_dict())
    with open_trainer(settings) as trainer:
        trainer.load_state_dict(read_state(tmp_path / "state"))
        assert why in trainer.inexact
        later = list(itertools.islice(trainer(), 3))
        assert [log.learning_steps for log in later] == [done.learning_steps + i for i in (1, 2, 3)]


def test_an_environment_that_does_not_repeat_itself_is_found_out(tmp_path):
    settings = experiment("ppo", **ROLLOUT, env="tests.experiment.unrepeatable_env:Unrepeatable-v0")
    with open_trainer(settings) as trainer:
        next(trainer())
        write_state(tmp_path / "state", trainer.state_dict())
    with open_trainer(settings) as trainer:
        trainer.load_state_dict(read_state(tmp_path / "state"))
        assert "shows another observation than before" in trainer.inexact
        assert next(trainer()).learning_steps == 2


def whole_and_stopped(tmp_path, settings, after=3, **changes):
    """Two runs with the same settings: a finished one, and one that an exception has torn down after some logs."""
    here = {"results_dir": str(tmp_path), "checkpoint_every": 300, "evaluate_every": 500, "evaluation_episodes": 2}
    flat = settings.to_flat() | here | changes
    finished = train(Experiment.from_flat(flat | {"name": "whole"}, "test"), console=False)

    class Killed(BaseException):
        """Nothing is saved any more, as after SIGKILL."""

    class Bomb:
        count = 0

        def write(self, log):
            self.count += 1
            if self.count == after:
                raise Killed

        def close(self):
            pass

    own = launch._trackers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "_trackers", lambda *given: [*own(*given), Bomb()])
        with pytest.raises(Killed):
            train(Experiment.from_flat(flat | {"name": "stopped"}, "test"), console=False)
    (stopped,) = (tmp_path / "stopped").iterdir()
    return finished.folder, stopped


@pytest.mark.default("ppo-1")
@pytest.mark.parametrize("after", [1, 9])  # before the first checkpoint, and later
@pytest.mark.parametrize("case", ["ppo", "rainbow"])
def test_a_run_is_resumed_without_a_gap_or_a_doubled_row(case, after, tmp_path):
    settings = CASES[case].to_flat() | {"total_timesteps": 1000, "tensorboard": True}
    whole, stopped = whole_and_stopped(tmp_path, Experiment.from_flat(settings, "test"), after)
    assert is_unfinished(stopped)
    resumed = resume(tmp_path / "stopped", console=False)
    assert (resumed.folder, resumed.status) == (stopped, "finished")
    assert rows(stopped) == rows(whole)
    assert table(stopped) == table(whole)
    assert weights(stopped) == weights(whole)
    for best in ("best_agent", "best_evaluated_agent"):
        one, two = ((folder / "models" / best / "card.json").read_text() for folder in (whole, stopped))
        assert one == two
    record = json.loads((stopped / "run.json").read_text())
    assert (record["status"], record["resumed"][0]["resumed"]) == ("finished", "exact")
    assert record["final_evaluation"] == json.loads((whole / "run.json").read_text())["final_evaluation"]
    assert not is_unfinished(stopped)


@pytest.mark.full
def test_evaluations_that_are_left_out_are_left_out_by_a_resumed_run(tmp_path):
    """By default: a few short episodes fit into a tenth of the steps so far, others do not."""
    settings = Experiment.from_flat(CASES["ppo"].to_flat() | {"total_timesteps": 2000}, "test")
    changes = {"evaluate_every": None, "evaluation_episodes": 1}
    whole, stopped = whole_and_stopped(tmp_path, settings, 12, **changes)
    resume(stopped, console=False)
    assert rows(stopped) == rows(whole)
    evaluated = [row["env_steps"] for row in rows(whole) if "evaluation/mean_return" in row]
    assert 0 < len(evaluated) < 10
    newest = [Checkpoints(folder / "checkpoints").load_newest()["evaluation_steps"] for folder in (whole, stopped)]
    assert newest[0] == newest[1]
    assert newest[0]["total"] >= len(evaluated)


@pytest.mark.full
def test_seeds_of_one_program_continue_together(tmp_path):
    flat = CASES["dqn fused"].to_flat() | {"num_seeds": 2, "total_timesteps": 1000, "checkpoint_every": 300}
    whole = train_seeds(Experiment.from_flat(flat | {"results_dir": str(tmp_path / "a")}, "test"), console=False)
    train_seeds(Experiment.from_flat(flat | {"results_dir": str(tmp_path / "b")}, "test"), console=False)
    (other,) = (tmp_path / "b").iterdir()
    folders = sorted(path for path in other.iterdir() if path.is_dir())
    for folder in folders:  # as if it had been killed after its second checkpoint
        checkpoints = Checkpoints(folder / "checkpoints")
        for newer in checkpoints.stored()[-1:]:
            newer.rename(newer.with_name(f".{newer.name}"))
        run = Run.reopen(folder)
        run.note(status="unfinished")
        run.close()
    assert resume(folders[1], console=False).folder == folders[1]
    for folder, finished in zip(folders, whole, strict=True):
        assert rows(folder) == rows(finished.folder)
        assert weights(folder) == weights(finished.folder)
        assert json.loads((folder / "run.json").read_text())["status"] == "finished"


@pytest.mark.full
def test_sigkill_and_the_command(tmp_path, capsys):
    """A process of its own, killed as soon as it has a checkpoint; the same command in one piece is the oracle."""
    flags = (
        "--env CartPole-v1 --num-envs 2 --rollout-length 32 --hidden-sizes 16 --minibatches 2 --total-timesteps 6000"
    )
    lean = "--quiet --no-plots --no-video --checkpoint-every 500 --evaluate-every 0"
    words = ["train", "ppo", "--no-preset", *flags.split(), *lean.split(), "--results-dir", str(tmp_path)]
    assert main([*words, "--name", "whole"]) == 0
    command = [sys.executable, "-m", "drl.cli.entry", *words, "--name", "killed"]
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(tmp_path.glob("killed/*/checkpoints/step_*")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (killed,), (whole,) = (tmp_path / "killed").iterdir(), (tmp_path / "whole").iterdir()
    assert json.loads((killed / "run.json").read_text())["status"] == "unfinished"
    assert main(["evaluate", str(killed), "--episodes", "1"]) == 0  # the newest agent there is
    assert main(["resume", str(tmp_path / "killed")]) == 0
    assert rows(killed) == rows(whole)
    assert weights(killed) == weights(whole)
    capsys.readouterr()
    assert main(["resume", str(killed)]) == 0
    assert "nothing to resume" in capsys.readouterr().out


def test_a_run_in_use_is_not_resumed(tmp_path):
    """The lock belongs to a process, so another process must hold it."""
    run = Run.create("x", CASES["ppo"].to_flat(), tmp_path)
    run.close()
    hold = "import sys; from drl.runs.folder.run_folder import Run; from pathlib import Path; "
    hold += "run = Run.reopen(Path(sys.argv[1])); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(run.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"ready\n"
        assert not is_unfinished(run.folder)
        with pytest.raises(BadInput, match="in use"):
            resume(run.folder, console=False)
        other.kill()
    assert is_unfinished(run.folder)


def test_a_damaged_checkpoint_is_set_aside_and_an_older_one_is_used(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (10, 20):
        checkpoints.save(step, {"step": step, "array": np.arange(4)}, keep=2)
    content = bytearray((tmp_path / "step_000000000020" / "state.json").read_bytes())
    content[content.index(b'"step": 20') + 8] ^= 1
    (tmp_path / "step_000000000020" / "state.json").write_bytes(bytes(content))
    with pytest.warns(DamagedCheckpoint, match="set aside"):
        assert Checkpoints(tmp_path).load_newest()["step"] == 10
    assert [path.name for path in checkpoints.stored()] == ["step_000000000010"]


def test_a_checkpoint_of_another_format_is_refused_by_name(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(10, {"step": 10}, keep=2)
    file = tmp_path / "step_000000000010" / "state.json"
    file.write_text(file.read_text().replace('"format": 2', '"format": 1'))
    with pytest.raises(UnusableFile, match="has format 1, this drl reads format 2"):
        checkpoints.load_newest()


def test_rows_are_written_once_and_old_ones_are_deleted(tmp_path):
    from drl.core.state_files import RowLog

    ring = np.zeros((50, 3), np.float32)
    checkpoints, written = Checkpoints(tmp_path), 0
    for step in range(1, 12):
        for _ in range(13):
            ring[written % 50] = written
            written += 1
        before = {file.name for file in (tmp_path / "rows").glob("*")} if step > 1 else set()
        checkpoints.save(step, {"ring": RowLog(ring, written)}, keep=2)
        files = {file.name for file in (tmp_path / "rows").glob("*")}
        new = sum(int(name.split("-")[1]) - int(name.split("-")[0]) for name in files - before)
        assert new == 13  # only the rows since the last checkpoint
        total = sum(int(name.split("-")[1]) - int(name.split("-")[0]) for name in files)
        assert total <= 50 + 13 + 5  # what the older checkpoint needs as well, and parts of chunks
    again = np.zeros_like(ring)
    Checkpoints(tmp_path).load_newest()["ring"].into(again)
    np.testing.assert_array_equal(again, ring)


def test_a_damaged_row_file_is_detected(tmp_path):
    from drl.core.state_files import RowLog

    files = RowFiles(tmp_path)
    chunks = files.write("ring", RowLog(np.arange(1000, dtype=np.int64), 1000))
    path = tmp_path / chunks[3].file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))
    with pytest.raises(UnusableFile, match="its checksum differs"):  # not "damaged", which is in the path as well
        files.read(chunks, 0)
    path.unlink()
    with pytest.raises(UnusableFile, match="does not exist"):
        files.read(chunks, 0)


def test_a_signal_stops_within_an_episode(tmp_path):
    """REINFORCE waits for whole episodes; a signal does not."""
    words = "train reinforce --no-preset --env Pendulum-v1 --env-kwargs max_episode_steps=1000000"
    lean = "--total-timesteps 100000000 --hidden-sizes 8 --num-envs 1 --quiet --no-plots --no-video --evaluate-every 0"
    command = [sys.executable, "-m", "drl.cli.entry", *words.split(), *lean.split(), "--results-dir", str(tmp_path)]
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(tmp_path.glob("*/*/run.json")):
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 143
    (folder,) = tmp_path.glob("*/*/")
    record = json.loads((folder / "run.json").read_text())
    assert (record["status"], record["episodes"]) == ("terminated", 0)
    assert Checkpoints(folder / "checkpoints").load_newest()["trainer"]["obs"].shape == (1, 3)


def test_a_fork_begins_where_the_other_run_was(tmp_path, capsys):
    settings = CASES["rainbow"].to_flat() | {"total_timesteps": 600, "checkpoint_every": 200, "keep_checkpoints": 9}
    parent = train(Experiment.from_flat(settings | {"results_dir": str(tmp_path), "name": "family"}, "test")).folder
    steps = [int(path.name.removeprefix("step_")) for path in Checkpoints(parent / "checkpoints").stored()]
    same = fork(parent, at=steps[0], console=False)
    assert same.folder.parent == parent.parent
    checkpoints = Checkpoints(same.folder / "checkpoints")
    assert checkpoints.stored()[0].name == f"step_{steps[0]:012d}"
    spent = [each.load(steps[0])["evaluation_steps"] for each in (checkpoints, Checkpoints(parent / "checkpoints"))]
    assert spent[0] == spent[1]
    assert rows(same.folder) == [row for row in rows(parent) if row["env_steps"] > steps[0]]  # nothing was changed
    assert main(["fork", str(parent), "--at", str(steps[1]), "--set", "learning_rate=1e-2", "total_timesteps=900"]) == 0
    record = json.loads((max(parent.parent.iterdir()) / "run.json").read_text())
    assert record["forked_from"]["run"] == parent.name
    assert record["forked_from"]["env_steps"] == steps[1]
    assert record["forked_from"]["changes"] == {"learning_rate": 0.01, "total_timesteps": 900}
    assert record["env_steps"] == 900
    assert len(grouped_runs(sorted(parent.parent.iterdir()))) == 3
    capsys.readouterr()
    before = sorted(parent.parent.iterdir())
    for words, message in (
        (["--at", "17"], "no checkpoint at step 17"),
        (["--set", "hidden_sizes=[7]"], "does not fit hidden_sizes=[7]"),
        (["--set", "capacity=40"], "capacity"),
        (["--set", "seed=3"], "cannot change seed"),
        (["--set", "nonsense=3"], "unknown setting"),
        (["--set", "learning_rate=1e-2"], "nothing to train; add --set total_timesteps=1200, or begin earlier"),
    ):
        assert main(["fork", str(parent), *words]) == 2
        assert message in capsys.readouterr().err
    assert sorted(parent.parent.iterdir()) == before


def test_a_run_without_collectors_is_not_resumed_on_a_cluster(tmp_path):
    run = Run.create("x", CASES["ppo"].to_flat(), tmp_path)
    run.close()
    with pytest.raises(BadInput, match="leave --cluster out"):
        resume(run.folder, scaling={"cluster": "local"})


def test_looking_at_a_run_does_not_give_up_its_lock(tmp_path):
    run = Run.create("x", CASES["ppo"].to_flat(), tmp_path)
    assert is_in_use(run.folder)
    look = "import sys, pathlib; from drl.runs.folder.run_folder import is_in_use; "
    command = [sys.executable, "-c", look + "sys.exit(is_in_use(pathlib.Path(sys.argv[1])))", str(run.folder)]
    assert subprocess.run(command).returncode == 1
    run.close()
    assert not is_in_use(run.folder)
    assert subprocess.run(command).returncode == 0


def test_settings_that_were_edited_are_not_resumed(tmp_path, capsys):
    run = Run.create("x", CASES["ppo"].to_flat(), tmp_path)
    run.close()
    file = run.folder / "config.yaml"
    file.write_text(file.read_text().replace("total_timesteps: 4000", "total_timesteps: 8000"))
    assert main(["resume", str(run.folder)]) == 3
    said = capsys.readouterr().err
    assert "differs from what the run was started with" in said
    assert "drl fork" in said


def test_runs_without_a_format_are_refused(tmp_path):
    run = Run.create("x", CASES["ppo"].to_flat() | {"results_dir": str(tmp_path)}, tmp_path)
    run.close()
    (run.folder / "run.json").write_text('{"status": "unfinished", "seed": 1}')
    with pytest.raises(UnusableFile, match="has format None, this drl reads format 2"):
        resume(run.folder, console=False)


def test_a_damaged_run_does_not_keep_the_others_from_going_on(tmp_path, capsys):
    settings = CASES["ppo"].to_flat() | {"total_timesteps": 64, "evaluation_episodes": 1, "results_dir": str(tmp_path)}
    runs = [Run.create("x", settings, tmp_path) for _ in range(2)]
    for run in runs:
        run.close()
    (runs[0].folder / "run.json").write_text("")
    assert main(["resume", str(tmp_path / "x")]) == 3
    assert str(runs[0].folder) in capsys.readouterr().err
    assert not is_unfinished(runs[1].folder)
