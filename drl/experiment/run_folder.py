"""A run's folder: created once, never overwritten, complete whenever training stops."""

import datetime
import importlib.metadata
import platform
import shutil
import sys
from pathlib import Path

import yaml

import drl
from drl.core.agent_files import find_agent
from drl.core.errors import BadInput
from drl.core.safe_files import is_inside, write_atomically
from drl.core.state_files import PlainDict, StateDict, write_json, write_state

RECORDED = ("torch", "numpy", "gymnasium", "jax", "envpool")  # packages whose versions affect results


class Run:
    """`results/<experiment>/<run-id>/` and its files."""

    def __init__(self, folder: Path, record: PlainDict):
        self.folder, self.record = folder, record

    @classmethod
    def create(cls, name: str, config: PlainDict, results_dir: str | Path = "results", seed: int = 0) -> "Run":
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        folder = _new_folder(Path(results_dir) / name, f"{stamp}-s{seed}")
        for part in ("models", "plots", "videos"):
            (folder / part).mkdir()
        write_atomically(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode())
        record = {
            "status": "running",
            "seed": seed,
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "started": datetime.datetime.now().isoformat(timespec="seconds"),
            "versions": _versions(),
        }
        run = cls(folder, record)
        run.note()
        return run

    def note(self, **entries: object) -> None:
        """Add entries to `run.json`."""
        self.record |= entries
        write_json(self.folder / "run.json", self.record)

    @property
    def models(self) -> Path:
        return self.folder / "models"

    def save_checkpoint(self, env_steps: int, state: StateDict, keep: int) -> None:
        """Save everything needed to continue; keep only the newest `keep` checkpoints."""
        if not keep:
            return
        root = self.folder / "checkpoints"
        whole, unfinished = root / f"step_{env_steps:012d}", root / f".step_{env_steps:012d}"
        if whole.exists():  # the final save may follow a periodic one at the same step
            return
        write_state(unfinished, state)
        unfinished.replace(whole)
        for old in sorted(root.glob("step_*"))[:-keep]:
            shutil.rmtree(old)


def _new_folder(parent: Path, run_id: str) -> Path:
    """Create a new folder; runs that start in the same second get a number."""
    for attempt in range(1000):
        folder = parent / (run_id if attempt == 0 else f"{run_id}-{attempt + 1}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise BadInput(f"cannot create {folder}: {error.strerror}; choose another --results-dir") from None
        return folder
    raise BadInput(f"cannot find a free name for {run_id} in {parent}")


def _versions() -> dict[str, str]:
    versions = {"drl": drl.__version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in RECORDED:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def runs_in(experiment: Path) -> list[Path]:
    """The runs of an experiment folder, by name. Links that lead outside it are skipped."""
    return [file.parent for file in sorted(experiment.glob("*/run.json")) if is_inside(experiment, file)]


def find_agent_folder(path: str | Path) -> Path:
    """The agent's folder, given that folder, its run, or an experiment: its newest run."""
    given = Path(path)
    if not given.is_dir() or (given / "card.json").exists() or (given / "agent").exists():
        return find_agent(given)
    if not (given / "run.json").is_file() and not runs_in(given):
        expected = f"expected {given}/card.json, {given}/agent/card.json or runs inside"
        raise BadInput(f"{given} is not a run folder and holds no agent: {expected}")
    return find_agent(find_run(given))


def find_run(path: str | Path) -> Path:
    """The run folder at `path`, or the newest one inside an experiment folder."""
    given = Path(path)
    if (given / "run.json").is_file():
        return given
    if runs := runs_in(given):
        return max(runs, key=lambda run: (run / "run.json").stat().st_mtime)
    raise BadInput(f"{given} is not a run folder: expected {given}/run.json; see `ls results/`")
