"""Size of the package and length of the paths through it: `python .ci/measures.py [ROOT]` prints a table.

Counted are files and lines of `drl/`, and what a whole run and one iteration enter: files, and the deepest stack of our
functions. Imports, lambdas and comprehensions are not counted. `tests/test_measures.py` holds the limits.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

TREE = Path(__file__).parents[1]
ITERATIONS: dict[str, dict[str, Any]] = {
    "ppo": {"env": "CartPole-v1", "rollout_length": 128},
    "dqn": {"env": "CartPole-v1", "warmup": 64, "batch_size": 32, "updates_per_log": 200},
    "sac": {
        "env": "Pendulum-v1",
        "env_kwargs": {"max_episode_steps": 20},
        "warmup": 64,
        "batch_size": 32,
        "updates_per_log": 50,
    },
}
TRAIN = ["train", "ppo", "--env", "CartPole-v1", "--total-timesteps", "2048", "--results-dir", "results"]


# ── read from the files ───────────────────────────────────────────────────────────────────────────────────────────


def static_measures(root: Path) -> dict[str, float]:
    """Files, lines, imports; and the files that only one other file of their folder imports."""
    modules = {module_name(root, path): path for path in sorted((root / "drl").rglob("*.py"))}
    importers: dict[str, set[Path]] = defaultdict(set)
    folders: dict[Path, int] = defaultdict(int)
    lines = import_lines = 0
    for path in modules.values():
        text = path.read_text()
        lines += len(text.splitlines())
        folders[path.parent] += 1
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                import_lines += (node.end_lineno or node.lineno) - node.lineno + 1
                for name in imported(node):
                    if modules.get(name, path) != path:
                        importers[name].add(path)
    return {
        "files in drl/": len(modules),
        "lines in drl/": lines,
        "files with one importer, in their own package": sum(
            len(by) == 1 and next(iter(by)).parent == modules[name].parent and modules[name].name != "__init__.py"
            for name, by in importers.items()
        ),
        "files in one folder, at most": max(folders.values()),
        "imports, % of lines": round(100 * import_lines / lines, 1),
    }


def module_name(root: Path, path: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Modules that an import may load: `from a import b` is `a`, and `a.b` if that is one."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]


# ── traced ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Walk:
    """Our files that a call enters, the number of calls, and how deep they lie within each other."""

    def __init__(self, root: Path) -> None:
        self.root = f"{root / 'drl'}{os.sep}"
        self.files: set[str] = set()
        self.calls = self.depth = self.deepest = self.importing = 0

    def __call__(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if code.co_name == "<module>":
            self.importing += 1
            frame.f_trace_lines = False
            return self._module
        if self.importing or not code.co_filename.startswith(self.root) or code.co_name.startswith("<"):
            return None  # while importing, of another package, or a comprehension or lambda
        self.files.add(code.co_filename.removeprefix(self.root))
        self.calls += 1
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)
        frame.f_trace_lines = False
        return self._inside

    def _inside(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        if event == "return":
            self.depth -= 1
        return self._inside

    def _module(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        if event == "return":
            self.importing -= 1
        return self._module

    def follow(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """The call's result."""
        sys.settrace(self)
        try:
            return call(*arguments)
        finally:
            sys.settrace(None)


def iteration(root: Path, algorithm: str) -> Walk:
    """One learning step with its collecting. The first one, which also resets, is not counted."""
    import drl

    trainer = drl.make_trainer(algorithm, num_envs=4, seed=1, compile="off", **ITERATIONS[algorithm])
    walk = Walk(root)
    with trainer:
        trainer.step()
        log = walk.follow(trainer.step)
    assert log.finished, "an episode ended, so that resets are part of the walk"
    return walk


def command(root: Path) -> tuple[Walk, int]:
    """`drl train ppo` for 2,048 steps, and how many calls come before the first step of an environment."""
    import matplotlib.pyplot  # noqa: F401
    import torch  # noqa: F401 (to trace the imports of large packages would take long)
    from gymnasium.envs.classic_control.cartpole import CartPoleEnv

    from drl.cli.entry import main

    walk, before = Walk(root), []
    step = CartPoleEnv.step

    def first_step(self: Any, action: Any) -> Any:
        before.append(walk.calls)
        return step(self, action)

    CartPoleEnv.step = first_step  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        assert walk.follow(main, TRAIN) == 0
        os.chdir(root)
    return walk, before[0]


def traced_measures(root: Path) -> dict[str, float]:
    """In a process of its own, since what is imported or cached already is not walked through."""
    walk, calls = command(root)
    found: dict[str, float] = {
        "`drl train ppo`: files": len(walk.files),
        "`drl train ppo`: stack": walk.deepest,
        "calls before the first environment step": calls,
    }
    for name in ITERATIONS:
        walk = iteration(root, name)
        found |= {f"one iteration of {name}: files": len(walk.files), f"one iteration of {name}: stack": walk.deepest}
    return found


def measures(root: Path = TREE) -> dict[str, float]:
    """All of them."""
    words = [sys.executable, __file__, str(root), "--traced"]
    own = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    traced = subprocess.run(words, env=os.environ | own, capture_output=True, text=True, cwd=root)
    assert traced.returncode == 0, traced.stdout + traced.stderr
    return static_measures(root) | json.loads(traced.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=TREE, help="a checkout")
    parser.add_argument("--traced", action="store_true", help="only the traced ones, as JSON")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    if arguments.traced:
        print(json.dumps(traced_measures(root)))
        return 0
    for name, value in measures(root).items():
        print(f"{name:48} {value:>8,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
