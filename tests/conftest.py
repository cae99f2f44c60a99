"""One thread per process: small tensors only lose by sharing, and results must not depend on the machine."""

import importlib.util
import os

import pytest

os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("OMP_NUM_THREADS", "1")

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
