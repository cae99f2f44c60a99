"""One thread per process: small tensors only lose by sharing, and results must not depend on the machine."""

import fnmatch
import importlib.util
import os
import signal
import tempfile

import pytest

os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Most time of tests with JAX is that of compiling; these halve it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")
# The key that signs runs; the workers of xdist inherit it.
if "drl-tests-" not in os.environ.get("XDG_STATE_HOME", ""):
    STATE = tempfile.TemporaryDirectory(prefix="drl-tests-")
    os.environ["XDG_STATE_HOME"] = STATE.name
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a job in the background, and so in the processes of tests
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Packages that the extras `test` and `dev` install and tests import. A broken one fails the tests that need it.
TEST = [
    "ale_py", "Box2D", "cv2", "httpx", "huggingface_hub", "jax", "minigrid", "mpe2", "numba", "onnx", "onnxruntime",
    "onnxscript", "optuna", "starlette", "uvicorn", "xdist",
]  # fmt: skip
DEV = [
    *TEST, "axelrod", "brax", "envpool", "gymnax", "mlflow", "nbclient", "playwright", "ray", "rliable",
    "stable_baselines3", "wandb",
]  # fmt: skip


def pytest_configure(config):
    extra, needed = ("test", TEST) if "not full" in config.getoption("-m") else ("dev", DEV)
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise pytest.UsageError(
            f"these tests need the extra {extra!r} (missing: {', '.join(missing)}); install it with: "
            f"pip install -c constraints.txt -e '.[{extra}]'"
        )


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config, items):
    """`@pytest.mark.default("a", "b-*")`: cases whose id fits a pattern are default tests, the others are `full`."""
    named, fitting = set(), set()
    for item in items:
        if mark := item.get_closest_marker("default"):
            test = item.nodeid.partition("[")[0]
            named |= {(test, pattern) for pattern in mark.args}
            if fits := [pattern for pattern in mark.args if fnmatch.fnmatchcase(item.callspec.id, pattern)]:
                fitting |= {(test, pattern) for pattern in fits}
            else:
                item.add_marker(pytest.mark.full)
    if named - fitting and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"no case fits these patterns of `default`: {sorted(named - fitting)}")


@pytest.fixture
def hub(monkeypatch):
    """A small Hugging Face Hub on this machine, which `drl push` and `drl pull` use."""
    import huggingface_hub

    from tests.experiment.hub_stand_in import TOKEN, StandIn

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with StandIn() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server
    huggingface_hub.close_session()
