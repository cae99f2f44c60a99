"""A C file of an agent, compiled and called from here."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from drl.core.errors import BadInput
from drl.core.specs import MASK_KEY, Array
from drl.deploy.parity import Run
from drl.deploy.policy_graph import PolicyGraph, port_name

STRICT = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror")


def find_compiler() -> str | None:
    """The path of a C compiler, if there is one."""
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def run_c(source: str, graph: PolicyGraph, compiler: str) -> Run:
    """The compiled `drl_act`, row by row."""
    with TemporaryDirectory() as folder:
        file, library = Path(folder, "agent.c"), Path(folder, "agent.so")
        file.write_text(source)
        built = subprocess.run(
            [compiler, *STRICT, "-shared", "-fPIC", "-o", str(library), str(file), "-lm"],
            capture_output=True,
            text=True,
        )
        if built.returncode:
            raise BadInput(f"{compiler} does not compile the C file: {' '.join(built.stderr.split())[:300]}")
        function = ctypes.CDLL(str(library)).drl_act  # stays loaded after the file is gone
    spec = graph.action_spec
    function.restype = ctypes.c_int if spec.kind == "discrete" else None
    number = ctypes.c_float if spec.kind == "box" else ctypes.c_int

    def run(inputs: dict[str, Array]) -> dict[str, Array]:
        leaves = [inputs[port_name(path)] for path in graph.obs_spec.leaves]
        rows = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1).astype(np.float32)
        actions = []
        for row, obs in enumerate(rows):
            arguments = [obs.ctypes.data_as(ctypes.c_void_p)]
            if graph.masked:
                legal = inputs[MASK_KEY][row].astype(np.uint8)
                arguments.append(legal.ctypes.data_as(ctypes.c_void_p))
            if spec.kind == "discrete":
                actions.append(function(*arguments))
            else:
                action = (number * spec.entries)()
                function(*arguments, action)
                actions.append(np.array(action))
        return {"action": np.array(actions).reshape(len(rows), *spec.shape)}

    return run
