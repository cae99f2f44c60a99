"""A search goes on through everything: failures, kills, other workers; and it is honest about what it found."""

import json
import os
import signal
import sys
import textwrap

import gymnasium as gym
import optuna
import pytest

import drl
from drl.agents.evaluation import Evaluation
from drl.algorithms import ALGORITHMS
from drl.cli.entry import main
from drl.core.errors import BadInput, EnvFailed, MissingExtra
from drl.core.log import Episode
from drl.envs.make_vec_env import make_vec_env
from drl.runs import building, session
from drl.runs.building import build_trainer
from drl.runs.launch import train
from drl.search import search_worker
from drl.search.run_search import FRESH_SEEDS, run_search
from drl.search.search_plan import SearchConfig, SearchPlan, as_settings, space_for, starting_point
from drl.search.study import Ledger, cut_torn_line
from drl.settings.experiment import Experiment, read_yaml

SMALL = {"num_envs": 2, "rollout_length": 16, "hidden_sizes": [8], "epochs": 1, "minibatches": 1}


def run(tmp_path, n_trials=3, settings=None, **changes):
    options = {"env": "drl/Match-v0", "num_timesteps_per_trial": 96, "reports": 3, "evaluation_episodes": 4}
    options |= {"rerun_best": 1, "rerun_seeds": 1, "plots": False, "quiet": True, "name": "study", "n_jobs": 0}
    options |= {"storage": str(tmp_path / f"{changes.get('name', 'study')}.log")}  # a journal is the fastest
    config = SearchConfig(n_trials=n_trials, results_dir=str(tmp_path), **options | changes)
    return run_search("ppo", config, SMALL | (settings or {}))


@pytest.fixture
def scored(monkeypatch):
    """Evaluations that say what a function of the trial's seed says; gives the seeds that were asked for."""

    def install(score):
        asked = []

        def evaluate(agent, env, episodes, seed, **_):
            asked.append(seed)
            return Evaluation([Episode(score(seed), 1, True, True, 0)])

        monkeypatch.setattr(session, "evaluate", evaluate)
        return asked

    return install


def states(result):
    return [trial.state.name for trial in result.study.trials]


@pytest.mark.parametrize("storage", [None, "kept.log"])
def test_the_same_command_runs_only_what_is_missing(tmp_path, scored, storage):
    asked = scored(float)
    options = {"storage": str(tmp_path / storage) if storage else None}
    first = run(tmp_path, 2, **options)
    assert states(first) == ["COMPLETE"] * 2
    assert (tmp_path / (storage or "study/study.db")).exists()
    asked.clear()
    second = run(tmp_path, 4, **options)
    assert states(second) == ["COMPLETE"] * 4
    assert set(asked) == {2, 3, FRESH_SEEDS}, "two trials more, and the new best once more"
    assert len({json.dumps(trial.params) for trial in second.study.trials}) == 4, "no point is drawn twice"
    asked.clear()
    run(tmp_path, 4, **options)
    assert not asked


def test_trials_go_to_the_boards_as_one_group(tmp_path, scored, monkeypatch):
    scored(float)
    seen = []

    def remote_boards(experiment, folder, name):
        config = experiment.run
        seen.append((config.wandb_project, config.mlflow_experiment, config.group, folder, name))
        return []

    monkeypatch.setattr(search_worker, "remote_boards", remote_boards)
    monkeypatch.setattr("drl.search.search_plan.check_boards", lambda run: None)
    result = run(tmp_path, 2, wandb_project="project")
    assert seen[:2] == [("project", None, "study", tmp_path / "study", f"trial {number}") for number in (0, 1)]
    assert "wandb_project" not in result.preset
    seen.clear()
    run(tmp_path, 3)  # without a board it is the same study
    assert (seen[0][:3], seen[0][4]) == ((None, None, None), "trial 2")


def test_a_study_is_not_mixed_with_another_search(tmp_path, scored):
    scored(float)
    run(tmp_path, 1)
    with pytest.raises(BadInput, match=r"search: total_timesteps was 96 and is now 64\. Give.*--name"):
        run(tmp_path, 2, num_timesteps_per_trial=64)
    with pytest.raises(BadInput, match=r"search: gae_lambda was None and is now 0\.5\. "):
        run(tmp_path, 2, settings={"gae_lambda": 0.5})


@pytest.mark.parametrize("fault", ["raises", "inf", "nan"])
def test_a_bad_trial_is_failed_and_the_search_goes_on(tmp_path, scored, fault):
    def score(seed):
        if seed == 1 and fault == "raises":
            raise RuntimeError("the environment broke")
        return float(fault) if seed == 1 else float(seed)

    scored(score)
    result = run(tmp_path, 4)
    assert states(result) == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert result.counts["failed"] == 1
    assert result.best.number == 3
    assert ("the environment broke" if fault == "raises" else fault) in result.study.user_attrs["error:1"]
    assert len(states(run(tmp_path, 4))) == 4, "a failed trial counts: it would fail again"


def test_when_every_trial_fails_the_reason_is_told(tmp_path, scored):
    def score(seed):
        raise RuntimeError("the environment broke")

    scored(score)
    with pytest.raises(EnvFailed, match="the environment broke"):
        run(tmp_path, 2)


def test_weak_trials_are_pruned(tmp_path, scored):
    asked = scored(lambda seed: 10.0 if seed < 5 else 0.0)
    result = run(tmp_path, 7, pruner="median")
    assert states(result) == ["COMPLETE"] * 5 + ["PRUNED"] * 2
    assert asked.count(4) == 3
    assert asked.count(6) == 1, "given up before its last evaluation"
    unpruned = run(tmp_path, 7, pruner="none", name="other")
    assert states(unpruned) == ["COMPLETE"] * 7
    assert "PRUNED" in states(run(tmp_path, 9, pruner="hyperband", name="third"))


def test_the_honest_score_comes_from_fresh_seeds_and_decides(tmp_path, scored, capsys):
    """Trial 2 was lucky in the search; on fresh seeds all are the same but trial 1, which is better."""
    luck = {0: 1.0, 1: 2.0, 2: 9.0, 3: 0.0}
    played = iter([4.0, 5.0, 6.0, 7.0])  # re-runs come by search score: trial 2 twice, then trial 1 twice
    scored(lambda seed: luck[seed] if seed in luck else next(played))
    result = run(tmp_path, 4, rerun_best=2, rerun_seeds=2, quiet=False)
    assert [(found.number, found.score, found.honest) for found in result.ranking] == [
        (1, 2.0, 6.5),
        (2, 9.0, 4.5),
        (0, 1.0, None),
        (3, 0.0, None),
    ]
    assert result.best.fresh == {FRESH_SEEDS: 6.0, FRESH_SEEDS + 1: 7.0}
    written = json.loads((result.folder / "best.json").read_text())["best"]
    assert [(row["trial"], row["search_score"], row["honest_score"]) for row in written[:2]] == [
        (1, 2, 6.5),
        (2, 9, 4.5),
    ]
    shown = capsys.readouterr().out
    assert "6.50 ± 0.50 (2)" in shown
    assert "9.00" in shown


@pytest.mark.full
def test_the_best_preset_trains_and_the_study_is_drawn(tmp_path):
    result = run(tmp_path, 5, plots=True, mode="all")
    names = {path.name for path in result.folder.iterdir()}
    assert {"best.yaml", "best.json", "history.png", "slices.png"} <= names
    settings = read_yaml(result.folder / "best.yaml")
    assert settings.items() >= result.best.settings.items()
    assert settings.items() >= {"algorithm": "ppo", "env": "drl/Match-v0", "num_envs": 2}.items()
    lean = {"results_dir": str(tmp_path), "quiet": True, "plots": False, "video": False, "tensorboard": False}
    assert train(Experiment.from_flat(settings | lean, "best.yaml")).status == "finished"
    assert not list(result.folder.glob("*/run.json")), "trials leave no run folders"


def test_a_preset_below_does_not_shine_through(tmp_path, scored):
    """CartPole has a preset for PPO. A search without it must give a file that trains without it, too."""
    scored(float)
    config = SearchConfig(n_trials=1, num_timesteps_per_trial=64, rerun_best=0, plots=False, quiet=True, reports=1)
    config = SearchConfig(
        **vars(config) | {"n_jobs": 0, "results_dir": str(tmp_path), "storage": str(tmp_path / "kept.log")}
    )
    without = run_search("ppo", config, {"num_envs": 2, "rollout_length": 16}, use_preset=False)
    assert without.preset["gae_lambda"] == 0.95
    assert without.preset["clip_range_end"] is None
    with_it = run_search("ppo", SearchConfig(**vars(config) | {"name": "with"}), {"num_envs": 2, "rollout_length": 16})
    assert with_it.preset["clip_range_end"] == 0.0
    assert with_it.preset["total_timesteps"] == 100_000
    assert with_it.best.settings["learning_rate"] == 1e-3, "the first trial is the preset itself"


def test_equal_searches_are_equal(tmp_path):
    scores = []
    for folder in ("a", "b"):
        result = run(tmp_path / folder, 3, rerun_best=0)
        scores.append([(trial.params, trial.intermediate_values, trial.value) for trial in result.study.trials])
    assert scores[0] == scores[1]


def test_a_signal_stops_and_the_next_command_goes_on(tmp_path, scored):
    def score(seed):
        if seed == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return float(seed)

    scored(score)
    stopped = run(tmp_path, 3)
    assert stopped.status == "interrupted"
    assert states(stopped) == ["COMPLETE", "FAIL"]
    assert stopped.counts["lost"] == 1
    scored(float)
    finished = run(tmp_path, 3)
    assert finished.status == "finished"
    assert finished.counts == {"complete": 3, "pruned": 0, "failed": 0, "lost": 1, "running": 0}
    lost, again = finished.study.trials[1:3]
    assert again.params == lost.params  # the trial that was stopped is run again, with its seed
    assert again.value == 1.0
    assert finished.study.trials[3].value == 3.0


def test_a_stopped_search_says_how_to_go_on(tmp_path, scored, capsys):
    scored(lambda seed: os.kill(os.getpid(), signal.SIGINT) or 1.0)
    flags = ["ppo", "--env", "drl/Match-v0", "--n-trials", "2", "--num-timesteps-per-trial", "96", "--n-jobs", "0"]
    assert main(["search", *flags, "--results-dir", str(tmp_path / "a b")]) == 130
    expected = f"resume: drl search {' '.join(flags)} --results-dir '{tmp_path}/a b'"
    assert capsys.readouterr().out.splitlines()[-1] == expected
    options = {"n_trials": 2, "num_timesteps_per_trial": 96, "n_jobs": 0, "results_dir": str(tmp_path / "c")}
    assert drl.search("ppo", "drl/Match-v0", **options).status == "interrupted"
    assert capsys.readouterr().out.splitlines()[-1].startswith("resume: the same drl.search(…) continues")


def test_trials_of_a_dead_search_are_lost_and_those_of_a_living_one_are_not(tmp_path, scored):
    scored(float)
    study = run(tmp_path, 1).study
    mine = Ledger(study)
    host, pid, started = mine.owner.split("|")
    for owner in (f"{host}|{pid}|{int(started) - 1}", f"elsewhere|{pid}|{started}", f"{host}|{os.getppid()}|0"):
        study.ask().set_user_attr("owner", owner)
    study.set_user_attr(f"alive:elsewhere|{pid}|{started}", 1e12)
    assert mine.fail_stale() == [1, 3]
    assert mine.taken() == 2
    result = run(tmp_path, 3)
    assert result.counts == {"complete": 2, "pruned": 0, "failed": 0, "lost": 2, "running": 1}


def test_a_torn_journal_is_repaired(tmp_path, scored):
    scored(float)
    path = tmp_path / "kept.log"
    run(tmp_path, 1, storage=str(path))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"op_code": 4, "work')
    assert states(run(tmp_path, 2, storage=str(path))) == ["COMPLETE"] * 2
    path.write_bytes(whole + b'{"op_code\n')
    assert cut_torn_line(path)
    assert path.read_bytes() == whole
    assert not cut_torn_line(path)


ENVS = '''
import os, signal
from pathlib import Path
import gymnasium as gym
from drl.games.probes import MatchEnv

class Deadly(MatchEnv):
    """Kills the first worker that plays in it for a while, and notes who plays."""
    def __init__(self, folder, render_mode=None):
        super().__init__()
        self.folder, self.steps = Path(folder), 0
    def step(self, action):
        self.steps += 1
        (self.folder / f"pid{os.getpid()}").touch()
        if self.steps == 20:
            try:
                (self.folder / "killed").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)

gym.register("Deadly-v0", entry_point=Deadly)
'''


@pytest.mark.full
def test_two_workers_share_a_study_and_a_killed_one_is_replaced(tmp_path, monkeypatch):
    (tmp_path / "deadly_worlds.py").write_text(textwrap.dedent(ENVS))
    notes = tmp_path / "notes"
    notes.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"env_kwargs": [f"folder={notes}"], "vectorization": "sync"}  # auto would try the environment out here
    result = run(tmp_path, 4, settings, env="deadly_worlds:Deadly-v0", n_jobs=2)
    assert result.counts == {"complete": 4, "pruned": 0, "failed": 0, "lost": 1, "running": 0}
    assert result.best.honest is not None
    pids = {path.name for path in notes.glob("pid*")}
    assert len(pids) == 3, "two workers and one in place of the killed"
    assert f"pid{os.getpid()}" not in pids
    assert "exit code -9" in next(v for k, v in result.study.user_attrs.items() if k.startswith("lost:"))


@pytest.mark.default("*-all")
@pytest.mark.parametrize("mode", ["base", "all"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_point_of_every_space_builds(algorithm, mode):
    space = space_for(algorithm, mode, num_envs=2, budget=4000)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    study.enqueue_trial(starting_point(space, Experiment(algorithm=algorithm).to_flat()))
    env = "CartPole-v1" if "discrete" in ALGORITHMS[algorithm].action_spaces else "Pendulum-v1"
    replays = ALGORITHMS[algorithm].buffer.replays
    with make_vec_env(env, 2) as envs:
        for _ in range(5):
            trial = study.ask()
            for name, dimension in space.items():
                dimension.suggest(trial, name)
            chosen = as_settings(trial.params)
            flat = {"algorithm": algorithm, "num_envs": 2} | ({"capacity": 600} if replays else {}) | chosen
            experiment = Experiment.from_flat(flat, "space")
            assert experiment.to_flat().items() >= chosen.items()
            build_trainer(experiment, envs)


def test_all_goes_beyond_base_as_the_command_line_promises():
    base, more = ALGORITHMS["dqn"].search_base, ALGORITHMS["dqn"].search_all
    assert set(base) == {"learning_rate", "gamma", "tau"}
    assert set(more) >= {"double", "dueling", "prioritized", "noisy", "distributional", "n_step", "batch_size", "width"}


def test_without_optuna_the_cure_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"drl-workshop\[search\]"):
        run(tmp_path)


def test_a_storage_that_cannot_be_opened_is_bad_input_without_its_password(tmp_path):
    for storage in ("what://me:secret@nowhere/x", "study.txt"):
        with pytest.raises(BadInput, match="storage") as caught:
            run(tmp_path, storage=storage)
        assert "secret" not in str(caught.value)


def test_the_function_is_still_there_when_its_package_is_imported():
    import drl

    assert callable(drl.search)  # imports the package, which Python then puts in its place
    for _ in range(2):
        with pytest.raises(BadInput, match="unknown algorithm 'nothing'"):
            drl.search("nothing")


def test_a_trial_is_one_run(tmp_path):
    for name, value in (("num_seeds", 3), ("cluster", "local"), ("fallback_dir", "x")):
        with pytest.raises(BadInput, match=f"{name} is .* a trial cannot have it"):
            run(tmp_path, settings={name: value})


@pytest.mark.full
def test_the_environment_of_a_jax_package_is_that_of_the_package():
    plan = SearchPlan("ppo", SearchConfig(env="gymnax:CartPole-v1"), SMALL, {}, False, None)
    opened = []
    real = building.open_vec_env
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "open_vec_env", lambda *a, **k: opened.append(real(*a, **k)) or opened[-1])
        outcome = search_worker.run_job(plan.job(0, {}, 0, 1), lambda *_: False, lambda: bool(opened))
    assert outcome.state == "stopped"
    assert type(opened[0]).__name__ == "HostedVecEnv"


class Halved(gym.RewardWrapper):
    def reward(self, reward):
        return reward / 2


def test_objects_of_this_process_are_searched_in_it(tmp_path, capsys):
    """A worker process does not know them."""
    own = {"wrappers": [Halved], "activation": lambda x: x.clamp(min=0.0)}
    common = SMALL | {"n_trials": 1, "num_timesteps_per_trial": 64, "reports": 1, "rerun_seeds": 0, "plots": False}
    result = drl.search("ppo", "CartPole-v1", results_dir=str(tmp_path), **common, **own)
    assert states(result) == ["COMPLETE"]
    assert "because a worker process cannot" in capsys.readouterr().out


def test_the_config_file_names_the_environment_and_needs_trust(tmp_path, capsys, monkeypatch):
    seen = []
    monkeypatch.setattr("drl.search.run_search.run_search", lambda *given, **_: seen.append(given) or Finished())
    file, module = tmp_path / "x.yaml", tmp_path / "evil.py"
    module.write_text(f"open({str(tmp_path / 'marker')!r}, 'w')\nclass W: ...\n")
    file.write_text("env: Acrobot-v1\n")
    assert main(["search", "ppo", "--config", str(file)]) == 0
    assert main(["search", "ppo", "--config", str(file), "--env", "Pendulum-v1"]) == 0
    assert [given[1].env for given in seen] == ["Acrobot-v1", "Pendulum-v1"]
    for text in (f'wrappers: ["{module}:W"]', f"env: {module}:W", "plugins: [evil]"):
        file.write_text(text + "\n")
        assert main(["search", "ppo", "--config", str(file)]) == 2
        assert "trust" in capsys.readouterr().err
    assert not (tmp_path / "marker").exists()


class Finished:
    status = "finished"
