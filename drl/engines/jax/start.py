"""Settings of JAX, to be made before its first use."""

import os
import warnings

import jax

from drl.core.errors import BadInput
from drl.core.safe_files import cache_folder


def start_jax(device: str = "auto", threads: int | None = None) -> None:
    """Choose the device and cache compiled programs on disk, so that the second start of a run compiles nothing.

    XLA flags set by the user are kept. Calling it again changes nothing.
    """
    # JAX warns about every fork; our child processes step environments or write videos and never use JAX.
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
    flags = os.environ.get("XLA_FLAGS", "")
    # Level 2 compiles a quarter faster than the default and runs as fast. The small programs here gain nothing from
    # threads within one operation.
    wanted = {"--xla_backend_optimization_level": "2"}
    if (threads or 1) == 1:
        wanted["--xla_cpu_multi_thread_eigen"] = "false"
    added = [f"{name}={value}" for name, value in wanted.items() if name not in flags]
    os.environ["XLA_FLAGS"] = " ".join([flags, *added]).strip()
    # Programs are short and their results are needed at once; another thread that runs them costs a twentieth.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        jax.config.update("jax_compilation_cache_dir", str(cache_folder("jax")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if device != "auto":
        try:
            jax.config.update("jax_default_device", jax.devices(device.split(":")[0])[0])
        except RuntimeError:
            raise BadInput(f"device {device!r} is not available to JAX; use --device auto or --device cpu") from None
