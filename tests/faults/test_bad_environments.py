"""Environments that break: the run says which one, when and why, in one line and with its exit code."""

import json
import multiprocessing
import threading

import pytest
from broken_envs import DICTS, FIRSTS, OBS, RESULTS, VALUES, BrokenPool
from fault_cases import some

from drl.cli.entry import main

KIND = "bad environments"
pytestmark = pytest.mark.filterwarnings("default")  # those of a broken environment are shown, not raised

ENV = "tests.faults.broken_envs:Broken-v0"
TINY = "--num-envs 2 --total-timesteps 40 --evaluate-every 0 --evaluation-episodes 1 --compile off --threads 1 --quiet"
TINY += " --no-plots --no-video --no-tensorboard --hidden-sizes 8 --no-preset"
SETTINGS = {
    "ppo": "--rollout-length 8 --minibatches 1",
    "dqn": "--warmup 8 --batch-size 4 --capacity 100",
    "sac": "--warmup 8 --batch-size 4 --capacity 100",
}
VECTORIZATIONS = ("sync", "async", "native", "envpool")
NON_FINITE = ("nan", "inf", "minus_inf", "part_nan", "part_inf")

# PLACE:NAME of a fault → what the message must say.
RAISED = {
    "raise": "ValueError: the wheel came off",
    "unprintable": "Unprintable",
    "base": "Odd: the wheel came off",
    "exit": "SystemExit: 3",
    "exit0": "SystemExit",
    "keyboard": "KeyboardInterrupt",
    "generator": "GeneratorExit",
    "stop": "StopIteration",
    "recursion": "RecursionError: too deep",
    "memory": "MemoryError",
    "missing": "FileNotFoundError: no such level",
    "pipe": "BrokenPipeError: the simulator is gone",
    "timeout": "TimeoutError: the simulator is slow",
    "assert": "AssertionError",
    "long": "ValueError: line line",
}
FLAGS = [name for name in VALUES if name not in ("nan", "inf", "dict", "object", "complex")]
FAULTS = {f"step:{name}": said for name, said in RAISED.items()}
FAULTS |= {f"reset:{name}": RAISED[name] for name in ("raise", "exit", "keyboard", "base")}
FAULTS |= {f"reward:{name}": "reward" for name in VALUES if name != "number"}
FAULTS |= {f"terminated:{name}": "terminated" for name in FLAGS} | {f"truncated:{name}": "truncated" for name in FLAGS}
FAULTS |= {f"info:{name}": "info; expected a dict" for name in ("none", "word", "list")}
FAULTS |= {f"reset_info:{name}": "info; expected a dict" for name in ("none", "word")}
FAULTS |= {f"obs:{name}": "observation" for name in OBS} | {f"reset_obs:{name}": "observation" for name in OBS}
FAULTS |= {f"result:{name}": "" for name in RESULTS} | {f"first:{name}": "" for name in FIRSTS}
DICT_FAULTS = {f"{place}:{name}": "" for place in ("obs", "reset_obs") for name in DICTS}
DICT_FAULTS |= {"obs:missing": "lacks ['speed']", "obs:part_nan": "key 'speed' of the observation is nan at step 3"}
DICT_FAULTS |= {"obs:part_inf": "key 'speed' of the observation is inf", "obs:part_shape": "key 'speed': "}


def _cases():
    """Every fault with every vectorization; the algorithms take turns."""
    algorithms = list(SETTINGS)
    cases = []
    for keys, faults in ((False, FAULTS), (True, DICT_FAULTS)):
        for number, (how, said) in enumerate(faults.items()):
            for turn, vectorization in enumerate(VECTORIZATIONS):
                if vectorization == "envpool" and how.partition(":")[0] in ("info", "reset_info"):
                    continue  # EnvPool makes its own
                cases.append((algorithms[(number + turn) % 3], vectorization, how, keys, said))
    return cases


@pytest.fixture
def run(tmp_path, capfd, monkeypatch):
    """Trains; returns the exit code, the lines on stderr and the record of the run."""
    monkeypatch.setattr("drl.envs.async_vec_env.GRACE", 1.0)
    monkeypatch.setattr("drl.envs.make_vec_env.make_pool", lambda _, n, kwargs, seed: BrokenPool(n, **kwargs))
    before = set(multiprocessing.active_children()), threading.active_count()

    def run(algorithm, vectorization, how, *more, keys=False):
        kwargs = [f"how={how}", f"continuous={algorithm == 'sac'}", f"keys={keys}"]
        env = "Broken-v0" if vectorization == "envpool" else ENV
        tiny = [flag for flag in TINY.split() if flag.replace("no-", "") not in more]
        flags = [*tiny, *SETTINGS[algorithm].split(), "--vectorization", vectorization, *more]
        line = ["train", algorithm, "--env", env, "--env-kwargs", *kwargs, "--results-dir", str(tmp_path), *flags]
        code = main(line)
        out, err = capfd.readouterr()
        assert set(multiprocessing.active_children()) <= before[0]
        assert threading.active_count() <= before[1]
        assert {path.name for path in tmp_path.rglob(".*")} <= {".lock"}, "drafts are left"
        if "--debug" not in more:
            assert "Traceback" not in out + err
        records = [json.loads(path.read_text()) for path in tmp_path.rglob("run.json")]
        return code, err.splitlines(), records

    return run


@pytest.mark.default("*-sync-*", "*-native-*", "dqn-async-*")
@pytest.mark.parametrize(("algorithm", "vectorization", "how", "keys", "said"), some(_cases(), 26))
def test_it_is_named_with_its_reason(run, tally, algorithm, vectorization, how, keys, said):
    code, err, (record,) = run(algorithm, vectorization, how, keys=keys)
    finite = how.partition(":")[2] not in NON_FINITE or how.startswith(("terminated", "truncated"))
    assert code == (5 if finite else 6), err
    advice = ("drl: warning: ", "drl: the traceback: ", "drl: the episode again: ")
    problem = [line for line in err if not line.startswith(advice)]
    assert len(problem) == 1, err
    message = problem[0]
    assert len(message) < 900
    assert message.startswith("drl: environment 'Broken-v0'")
    assert said in message
    assert "learning rate" not in message
    assert "step" in message
    if vectorization in ("sync", "async"):
        assert ", environment 0" in message
    if not finite:
        wanted = (r"step 0", r"step 3")[how.startswith(("obs", "reward"))]
        assert wanted in message
        assert ", environment " in message
    assert record["status"] == "failed"
    assert record["error"].partition(": ")[2] in message
    tally(KIND)


HARMLESS = ["close:raise", "close:exit", "close:keyboard", "close:base", "close:unprintable"]


@pytest.mark.parametrize("algorithm", SETTINGS)
@pytest.mark.parametrize(("vectorization", "how"), some([(v, h) for v in VECTORIZATIONS for h in HARMLESS], 2))
def test_an_exception_in_close_costs_nothing(run, tally, algorithm, vectorization, how):
    code, err, (record,) = run(algorithm, vectorization, how)
    assert code == 0, err
    assert record["status"] == "finished"
    assert any("could not be closed" in line for line in err)
    tally(KIND)


PICTURES = [f"render:{name}" for name in ("raise", "exit", "keyboard", "base", "recursion", "missing")] + ["picture"]


@pytest.mark.parametrize("how", some(PICTURES, 2))
def test_an_exception_in_render_costs_nothing(run, tally, how):
    code, err, (record,) = run("ppo", "sync", how, "--video")
    assert code == 0, err
    assert record["status"] == "finished"
    assert any("the run has no video: " in line for line in err)
    tally(KIND)


MAKES = [(v, f"make:{name}") for name in (*RAISED, "no wheels=3") for v in ("sync", "async", "native")]
MAKES += [(v, f"space:{name}") for name in ("obs", "action") for v in ("sync", "async")]


@pytest.mark.parametrize(("vectorization", "how"), some(MAKES, 4))
def test_one_that_cannot_be_made_is_bad_input(run, tally, vectorization, how):
    how, *more = how.split()
    code, err, records = run("ppo", vectorization, how, *(["--env-kwargs", *more] if more else []))
    assert (code, records) == (2, [])
    assert len(err) == 1
    tally(KIND)


@pytest.mark.parametrize("raised", some(["SystemExit(3)", "KeyboardInterrupt", "ValueError('x')", "BaseException"], 1))
def test_a_module_that_cannot_be_imported_is_bad_input(run, tally, tmp_path, monkeypatch, raised, capfd):
    (tmp_path / "own_envs.py").write_text(f"raise {raised}\n")
    monkeypatch.syspath_prepend(tmp_path)
    code = main(["train", "ppo", "--env", "own_envs:Own-v0", *TINY.split(), "--results-dir", str(tmp_path)])
    err = capfd.readouterr().err
    assert code == 2, err
    assert "cannot import 'own_envs'" in err
    assert "Traceback" not in err
    tally(KIND)


EVERY_PAIR = [(list(SETTINGS)[i % 3], VECTORIZATIONS[i % 4]) for i in range(12)]


@pytest.mark.parametrize(("algorithm", "vectorization"), some(EVERY_PAIR, 2))
def test_debug_shows_the_traceback(run, tally, algorithm, vectorization):
    code, err, _ = run(algorithm, vectorization, "step:raise", "--debug")
    text = "\n".join(err)
    assert code == 5
    assert "Traceback" in text
    assert "broken_envs.py" in text, "also from a worker process"
    tally(KIND)


@pytest.mark.parametrize("algorithm", some(list(SETTINGS), 1))
def test_a_genuine_ctrl_c_stays_one(run, tally, algorithm):
    code, err, (record,) = run(algorithm, "sync", "step:ctrl_c")
    assert (code, record["status"]) == (130, "interrupted"), err
    tally(KIND)


def test_an_unexpected_error_is_one_line(run, tally, monkeypatch):
    def broken(*_):
        raise ValueError("a bug\nof ours")

    monkeypatch.setattr("drl.trainer.trainer.Trainer.step", broken)
    code, err, _ = run("ppo", "sync", "never")
    assert code == 1
    assert err[0].startswith("drl: unexpected ValueError at tests/faults/test_bad_environments.py:")
    assert err[0].endswith(": a bug of ours; add --debug for the traceback")
    assert [line.partition(": /")[0] for line in err[1:]] == ["drl: the traceback"]
    tally(KIND)
