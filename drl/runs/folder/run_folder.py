"""A run's folder: created once, never overwritten, complete whenever training stops."""

import contextlib
import datetime
import fcntl
import hashlib
import hmac
import importlib.util
import json
import os
import secrets
import shutil
import stat
import sys
import weakref
from pathlib import Path

import yaml

from drl.core.agent_files import find_agent
from drl.core.contracts import Tracker
from drl.core.errors import BadInput, UnusableFile
from drl.core.network_parts import IN_MEMORY, function_modules, given_objects
from drl.core.safe_files import (
    ARRIVING,
    MOST_SETTINGS,
    check_folder,
    is_inside,
    parse_yaml,
    read_inside,
    remove_drafts,
    versions,
    write_atomically,
)
from drl.core.specs import PlainDict
from drl.core.state_files import SEAL, read_sealed, write_sealed
from drl.envs.env_names import PREFIX, game_module, split_wrapper
from drl.runs.folder.checkpoints import Checkpoints
from drl.tracking.files import MOST_METRICS, CsvTracker, JsonlTracker, read_metrics
from drl.trainer.trainer_loop import TrainerLoop

SIGNATURE = "signature"  # its entry in run.json
KEY_BYTES = 32
RUN_FORMAT = 2  # of run.json
LOCK_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # neither a link nor a pipe
_OWN: list[tuple[int, int]] = []  # lock files that this process holds
UNFINISHED = "unfinished"  # status while a run is in progress, and for ever if its process is killed
PARTS = ("models", "plots", "videos")
KEPT = {"final": "agent", "best": "models/best_agent", "best-evaluated": "models/best_evaluated_agent"}


class Run:
    """`results/<experiment>/<run-id>/` and its files. One process at a time may write into it."""

    def __init__(self, folder: Path, record: PlainDict):
        self.folder: Path = folder
        self.record: PlainDict = record
        self.checkpoints: Checkpoints = Checkpoints(folder / "checkpoints")
        self.config: bytes = (folder / "config.yaml").read_bytes()
        self._locks = contextlib.ExitStack()
        # Lets other processes write.
        self.close: weakref.finalize[[], Run] = weakref.finalize(self, self._locks.close)
        self._lock = self._locked()

    @classmethod
    def create(cls, name: str, config: PlainDict, results_dir: str | Path = "results", seed: int = 0) -> "Run":
        """A new folder, named by time and seed, with its settings."""
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        folder = new_folder(Path(results_dir) / name, f"{stamp}-s{seed}")
        for part in PARTS:
            (folder / part).mkdir()
        settings = yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode()
        write_atomically(folder / "config.yaml", settings)
        checksum = hashlib.sha256(settings).hexdigest()
        record = {
            "config_checksum": checksum,
            SIGNATURE: sign(checksum, config),
            "status": UNFINISHED,
            "seed": seed,
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "started": _now(),
            "versions": versions(),
        }
        run = cls(folder, record)
        run.note()
        return run

    @classmethod
    def reopen(cls, folder: str | Path) -> "Run":
        """Open a run to continue it: `folder` is a run, or an experiment for its newest run."""
        folder = find_run(folder)
        check_folder(folder, foreign="wandb")
        for file in ("metrics.jsonl", "episodes.jsonl"):
            if os.path.lexists(folder / file):
                read_metrics(folder / file)  # a tracker that cannot continue its file would be switched off
        if os.path.lexists(folder / "progress.csv"):
            read_inside(folder, folder / "progress.csv", MOST_METRICS)
        run = cls(folder, read_record(folder))
        for part in PARTS:
            (folder / part).mkdir(exist_ok=True)
        for part in (".", *PARTS):
            remove_drafts(folder / part)
        shutil.rmtree(folder / ARRIVING, ignore_errors=True)
        return run

    def note(self, **entries: object) -> None:
        """Add entries to `run.json`."""
        self.record |= entries
        _write_record(self.folder, self.record)

    def note_resumed(self, env_steps: int, inexact: str | None) -> None:
        """Record that the run continues from `env_steps`, and how exactly."""
        how = "exact" if inexact is None else f"inexact: {inexact}"
        entry = {"at": _now(), "env_steps": env_steps, "resumed": how, "versions": versions()}
        self.note(status=UNFINISHED, resumed=[*self.record.get("resumed", []), entry])

    def save(self, trainer: TrainerLoop) -> None:
        """Save a checkpoint of a trainer; the newest two are kept."""
        self.checkpoints.save(trainer.env_steps, trainer.state_dict(), keep=2)

    def load(self, trainer: TrainerLoop) -> None:
        """Continue from the newest checkpoint, if there is one."""
        if (state := self.checkpoints.load_newest()) is not None:
            trainer.load_state_dict(state)

    def trackers(self) -> list[Tracker]:
        """Trackers of all metrics: `metrics.jsonl`, which plots are drawn from, and the table `progress.csv`."""
        return [JsonlTracker(self.folder / "metrics.jsonl"), CsvTracker(self.folder / "progress.csv")]

    @property
    def models(self) -> Path:
        """The folder of plain `.pth` files."""
        return self.folder / "models"

    def is_there(self) -> bool:
        """Whether the folder was neither moved nor deleted."""
        return _is_file(self._lock, self.folder / ".lock")

    def moved_to(self) -> Path | None:
        """The new place of a folder that was moved, if the system knows it."""
        with contextlib.suppress(OSError):
            lock = Path(os.readlink(f"/proc/self/fd/{self._lock}"))
            return lock.parent if _is_file(self._lock, lock) else None
        return None

    def write_into(self, folder: Path) -> None:
        """Write the settings and the record of this run into another folder, too."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "config.yaml", self.config)
        _write_record(folder, self.record)

    def move(self, folder: Path) -> None:
        """Continue in another folder. The old one stays locked, so that nobody else continues it."""
        self.folder, self.checkpoints = folder, Checkpoints(folder / "checkpoints")
        if not self.is_there():
            self._lock = self._locked()

    def _locked(self) -> int:
        lock = lock_run(self.folder)
        self._locks.callback(unlock_run, lock)
        return lock


def _write_record(folder: Path, record: PlainDict) -> None:
    write_sealed(folder / "run.json", {"format": RUN_FORMAT} | record)


def read_record(folder: Path) -> PlainDict:
    """The content of `run.json`, verified."""
    record = read_sealed(folder / "run.json", RUN_FORMAT)
    for name, kind in (("seed", int), ("status", str), ("resumed", list)):
        if not isinstance(record.get(name, kind()), kind):
            raise UnusableFile(f"{folder}/run.json has {name} {record[name]!r:.80}; expected a {kind.__name__}")
    return {name: value for name, value in record.items() if name not in ("format", SEAL)}


def read_settings(folder: Path) -> PlainDict:
    """The content of `config.yaml`, to continue a run."""
    check_folder(folder, foreign="wandb")
    return settings_at_start(folder)


def settings_at_start(folder: Path) -> PlainDict:
    """The content of `config.yaml`, which must be what the run was started with."""
    return _settings_of(folder, read_record(folder))


def read_started(folder: Path) -> tuple[PlainDict, str | None]:
    """`read_settings`, and why this is not a run that this account started; None: it is."""
    check_folder(folder, foreign="wandb")
    record = read_record(folder)
    settings = _settings_of(folder, record)
    return settings, why_foreign(folder, record, settings)


def own_settings(path: Path) -> PlainDict | None:
    """The settings of the run that a file or an agent's folder is in, if this account started it."""
    for folder in (path.parent, path.parent.parent):
        with contextlib.suppress(UnusableFile):  # no run, or a damaged one
            record = read_record(folder)
            settings = _settings_of(folder, record)
            return settings if why_foreign(folder, record, settings) is None else None
    return None


def is_own_config(file: object, settings: PlainDict) -> bool:
    """Whether settings that were read from a file are those of a run that this account started."""
    path = Path(str(file))
    return path.name == "config.yaml" and settings == own_settings(path)


def adopt_run(folder: Path, settings: PlainDict) -> None:
    """Sign a run that a node of a cluster has made for this account, if its settings are those that it was sent."""
    stored, foreign = read_started(folder)
    sent = {name: value for name, value in settings.items() if name != "compile"}  # which the node decides
    if foreign is None or any(stored.get(name) != value for name, value in sent.items()):
        return
    record = read_record(folder)
    record[SIGNATURE] = sign(str(record.get("config_checksum")), stored)
    _write_record(folder, record)


def _settings_of(folder: Path, record: PlainDict) -> PlainDict:
    file, expected = folder / "config.yaml", record.get("config_checksum")
    content = read_inside(folder, file, MOST_SETTINGS)
    if expected is not None and hashlib.sha256(content).hexdigest() != expected:
        raise UnusableFile(
            f"{file} differs from what the run was started with; restore it, and use `drl fork {folder} --set "
            "NAME=VALUE` to change settings"
        )
    try:
        settings = parse_yaml(content)
    except ValueError as error:
        raise UnusableFile(f"{file} is not valid YAML: {error}") from None
    if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
        raise UnusableFile(f"{file} does not hold settings as NAME: VALUE, one per line")
    return settings


def _now() -> str:
    return datetime.datetime.now().isoformat(timespec="seconds")


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def lock_run(folder: Path) -> int:
    """Lock a run's folder for this process. The lock ends with the process; child processes do not inherit it."""
    try:
        file = os.open(folder / ".lock", LOCK_FLAGS | os.O_CREAT, 0o666)
    except OSError as error:
        raise UnusableFile(f"{folder}/.lock cannot be opened: {error.strerror}") from None
    if not _lock(file):
        os.close(file)
        raise BadInput(f"{folder} is in use: another process trains it")
    _OWN.append(_identity(os.fstat(file)))
    return file


def unlock_run(file: int) -> None:
    """Release a lock of `lock_run`."""
    _OWN.remove(_identity(os.fstat(file)))
    os.close(file)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def is_in_use(folder: Path) -> bool:
    """Whether a process trains this run."""
    try:
        if _identity(os.lstat(folder / ".lock")) in _OWN:  # closing the file again would give up our own lock
            return True
        file = os.open(folder / ".lock", LOCK_FLAGS)
    except OSError:
        return False
    free = _lock(file)
    os.close(file)
    return not free


def _lock(file: int) -> bool:
    """Whether no other process holds the lock; then this one does, where the file system has locks."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        pass  # a file system without locks
    return True


def new_folder(parent: Path, run_id: str) -> Path:
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


def runs_in(experiment: Path) -> list[Path]:
    """The runs of an experiment folder, by name. Links that lead outside it are skipped."""
    return [file.parent for file in sorted(experiment.glob("*/run.json")) if is_inside(experiment, file)]


def find_agent_folder(path: str | Path, which: str | int | None = None) -> Path:
    """The folder of an agent. `path` is that folder, a run, or an experiment for its newest run.

    `which` is final, best (by the window of training), best-evaluated, or the step of a kept checkpoint, which has no
    folder: that of the final agent. None: final, or best if the run was killed before there was one.
    """
    folder = Path(path)
    if which is not None:
        if os.path.lexists(folder / "card.json"):
            raise BadInput(f"{folder} is one agent; {str(which)!r} is for a run, which keeps several")
        run = find_run(folder)
        kept = [name for name, place in KEPT.items() if os.path.lexists(run / place / "card.json")]
        kept += [str(step) for step in Checkpoints(run / "checkpoints").steps()]
        if str(which) not in kept:
            raise BadInput(f"{run} keeps no agent {str(which)!r}; it has {', '.join(kept) or 'none'}")
        return find_agent(run / KEPT.get(str(which), KEPT["final"]))
    if not folder.is_dir() or os.path.lexists(folder / "card.json") or (folder / "agent").exists():
        return find_agent(folder)
    if not os.path.lexists(folder / "run.json") and not runs_in(folder):
        expected = f"expected {folder}/card.json, {folder}/agent/card.json or runs inside"
        raise BadInput(f"{folder} is not a run folder and holds no agent: {expected}")
    run = find_run(folder)
    if not (run / "agent" / "card.json").is_file() and (run / "models" / "best_agent" / "card.json").is_file():
        return find_agent(run / "models" / "best_agent")  # killed before its first checkpoint
    return find_agent(run)


def find_run(path: str | Path) -> Path:
    """The run folder at `path`, or the newest one inside an experiment folder."""
    folder = Path(path)
    if os.path.lexists(folder / "run.json"):
        return folder
    if runs := runs_in(folder):
        return max(runs, key=lambda run: (run / "run.json").stat().st_mtime)
    raise BadInput(f"{folder} is not a run folder: expected {folder}/run.json; see `ls results/`")


class NoKey(Exception):
    """This account has no key; the reason."""


def sign(config_checksum: str, settings: PlainDict) -> PlainDict | None:
    """The signature of a run that this account starts; None where no key can be kept."""
    try:
        key = account_key(create=True)
    except NoKey:
        return None
    code = _mac(key, "code", config_checksum, _sources(settings))
    return {"config": _mac(key, "config", config_checksum), "code": code}


def why_foreign(folder: Path, record: PlainDict, settings: PlainDict) -> str | None:
    """Why a run does not count as one of this account; None: it does. `record` is the content of its run.json,
    `settings` that of its config.yaml."""
    signature, checksum = record.get(SIGNATURE), record.get("config_checksum")
    if not isinstance(signature, dict) or not isinstance(checksum, str):
        return "it has no signature of your account"
    try:
        key = account_key()
    except NoKey as error:
        return str(error)
    if not _same(signature.get("config"), _mac(key, "config", checksum)):
        return "your account did not start it with this config.yaml"
    if not _same(signature.get("code"), _mac(key, "code", checksum, _sources(settings))):
        return "the files that it names are not where they were when it was started"
    places = [_place(name) for name in _named_code(settings)]
    if any(place is not None and place.is_relative_to(folder.resolve().parent) for place in places):
        return "the files that it names are in its experiment folder, where files of others may arrive"
    return None


def _mac(key: bytes, *content: object) -> str:
    return hmac.new(key, json.dumps(["drl run", 1, *content]).encode(), hashlib.sha256).hexdigest()


def _same(code: object, expected: str) -> bool:
    return isinstance(code, str) and code.isascii() and hmac.compare_digest(code, expected)


def _sources(settings: PlainDict) -> list[object]:
    """Names of code with its file and the owner of the file. Nothing is imported."""
    sources = list[object]()
    for name in _named_code(settings):
        path, owner = _place(name), None
        with contextlib.suppress(OSError):
            owner = path.stat().st_uid if path is not None and path.is_file() else None
        sources.append([name, str(path), owner])
    return sources


def _named_code(settings: PlainDict) -> list[str]:
    """Every `module:NAME`, `file.py:NAME` and module that settings name. They may be of any type."""
    wrappers, plugins = (settings.get(name) or [] for name in ("wrappers", "plugins"))
    texts = [split_wrapper(text)[0] for text in wrappers if isinstance(text, str)] if isinstance(wrappers, list) else []
    names = [name for name in (str(settings.get("env")), *texts) if ":" in name]
    modules = [*(plugins if isinstance(plugins, list) else []), *function_modules(settings, unknown=False)]
    return sorted({*names, *(f"{module}:" for module in modules)})


def _place(name: str) -> Path | None:
    """The file or folder with the code of a name."""
    module = game_module(name) if name.startswith(PREFIX) else name.rpartition(":")[0]
    if module == IN_MEMORY:
        return None
    if module.endswith(".py"):
        # A class of a script has the name of its file without its folder.
        script = getattr(given_objects().get(name), "__module__", None) or ""
        return Path(getattr(sys.modules.get(script), "__file__", None) or module).resolve()
    package = module.partition(".")[0]
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(package)  # imports nothing for a top-level name
        if spec is not None:
            places = [spec.origin] if spec.has_location else [*(spec.submodule_search_locations or [])]
            return next((Path(place).resolve() for place in places if place), None)
    here = Path.cwd() / package  # searched last, as imports do
    return next((file.resolve() for file in (here / "__init__.py", here.with_suffix(".py")) if file.is_file()), None)


def key_file() -> Path:
    """The file with the key of this account, by the rules of XDG."""
    folder = os.environ.get("XDG_STATE_HOME", "")
    try:
        state = Path(folder) if os.path.isabs(folder) else Path.home() / ".local" / "state"
    except RuntimeError:
        raise NoKey("your account has no home folder for a key") from None
    return state / "drl" / "run_key"


def account_key(create: bool = False) -> bytes:
    """The key of this account; `NoKey` if there is none, or if others could read it or have written it."""
    path = key_file()
    try:
        if create and not os.path.lexists(path):
            _create_key(path)
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise NoKey(f"the key of your account, {path}, cannot be read ({error.strerror})") from None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise NoKey(f"{path} is not a plain file of your account; remove it")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise NoKey(f"the key {path} can be read by others; remove it, and new runs get a new one")
        key = os.read(file, KEY_BYTES + 1)
    finally:
        os.close(file)
    if len(key) != KEY_BYTES:
        raise NoKey(f"{path} is not a key of {KEY_BYTES} bytes; remove it, and new runs get a new one")
    return key


def _create_key(path: Path) -> None:
    """Write the key atomically; the first of several processes wins."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(file, secrets.token_bytes(KEY_BYTES))
            os.fsync(file)
        finally:
            os.close(file)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
