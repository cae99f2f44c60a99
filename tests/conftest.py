"""One thread per process: small tensors only lose by sharing, and results must not depend on the machine."""

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

# What the extra `dev` installs and tests import. One that is there but broken fails the tests that need it.
DEV = [
    "ale_py", "axelrod", "Box2D", "brax", "cv2", "envpool", "gymnax", "httpx", "huggingface_hub", "jax", "mlflow",
    "mpe2", "numba", "onnx", "onnxruntime", "onnxscript", "optuna", "playwright", "ray", "starlette", "uvicorn",
    "wandb", "xdist",
]  # fmt: skip


def pytest_configure():
    if missing := [name for name in DEV if importlib.util.find_spec(name) is None]:
        raise pytest.UsageError(
            f"the tests need the development tools (missing: {', '.join(missing)}); install them with: "
            "pip install -c constraints.txt -e '.[dev]'"
        )


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
