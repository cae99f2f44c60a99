"""Runs of this account: a signature in `run.json` shows that this account started a run with these settings.

The key is a private file of the account, so nobody else can sign. A signature covers `config.yaml` and the place of
every file and module that the settings name: the same name elsewhere may stand for other code. The user may edit these
files. One inside the experiment folder does not count: files of others may arrive there, also beside it.
"""

import contextlib
import hashlib
import hmac
import importlib.util
import json
import os
import secrets
import stat
import sys
from pathlib import Path

from drl.core.named_objects import IN_MEMORY, given_objects
from drl.core.network_parts import function_modules
from drl.core.specs import PlainDict
from drl.envs.parallel_games import PREFIX, game_module
from drl.envs.wrapper_names import split_wrapper

SIGNATURE = "signature"  # its entry in run.json
KEY_BYTES = 32


class NoKey(Exception):
    """Why this account has no key."""


def sign(config_checksum: str, settings: PlainDict) -> PlainDict | None:
    """The signature of a run that this account starts; None where no key can be kept."""
    try:
        key = account_key(create=True)
    except NoKey:
        return None
    code = _mac(key, "code", config_checksum, _sources(settings))
    return {"config": _mac(key, "config", config_checksum), "code": code}


def why_foreign(folder: Path, record: PlainDict, settings: PlainDict) -> str | None:
    """Why a run does not count as one of this account; None: it does. `record` is the content of its run.json, and
    `settings` that of the config.yaml whose checksum the record has."""
    given, checksum = record.get(SIGNATURE), record.get("config_checksum")
    if not isinstance(given, dict) or not isinstance(checksum, str):
        return "it has no signature of your account"
    try:
        key = account_key()
    except NoKey as error:
        return str(error)
    if not _same(given.get("config"), _mac(key, "config", checksum)):
        return "your account did not start it with this config.yaml"
    if not _same(given.get("code"), _mac(key, "code", checksum, _sources(settings))):
        return "the files that it names are not where they were when it was started"
    if any(_is_beside(name, folder) for name in _named_code(settings)):
        return "the files that it names are in its experiment folder, where files of others may arrive"
    return None


def _mac(key: bytes, *content: object) -> str:
    return hmac.new(key, json.dumps(["drl run", 1, *content]).encode(), hashlib.sha256).hexdigest()


def _same(given: object, expected: str) -> bool:
    return isinstance(given, str) and given.isascii() and hmac.compare_digest(given, expected)


def _sources(settings: PlainDict) -> list[object]:
    return [[name, *_source(name)] for name in _named_code(settings)]


def _named_code(settings: PlainDict) -> list[str]:
    """Every `module:NAME`, `file.py:NAME` and module that settings name. They may be of any type."""
    wrappers, plugins = (settings.get(name) or [] for name in ("wrappers", "plugins"))
    texts = [split_wrapper(text)[0] for text in wrappers if isinstance(text, str)] if isinstance(wrappers, list) else []
    names = [name for name in (str(settings.get("env")), *texts) if ":" in name]
    modules = [*(plugins if isinstance(plugins, list) else []), *function_modules(settings, unknown=False)]
    return sorted({*names, *(f"{module}:" for module in modules)})


def _source(name: str) -> tuple[str, int | None]:
    """Where the code of a name is: its file, and the owner of the file. Nothing is imported."""
    path = _place(name)
    try:
        return str(path), path.stat().st_uid if path is not None and path.is_file() else None
    except OSError:
        return str(path), None


def _is_beside(name: str, folder: Path) -> bool:
    path = _place(name)
    return path is not None and path.is_relative_to(folder.resolve().parent)


def _place(name: str) -> Path | None:
    module = game_module(name) if name.startswith(PREFIX) else name.rpartition(":")[0]
    if module == IN_MEMORY:
        return None
    if module.endswith(".py"):
        # A class of a script has the name of its file without its folder.
        script = getattr(given_objects().get(name), "__module__", None) or ""
        return Path(getattr(sys.modules.get(script), "__file__", None) or module).resolve()
    package = module.partition(".")[0]
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        found = importlib.util.find_spec(package)  # imports nothing for a top-level name
        if found is not None:
            places = [found.origin] if found.has_location else [*(found.submodule_search_locations or [])]
            return next((Path(place).resolve() for place in places if place), None)
    here = Path.cwd() / package  # searched last, as imports do
    return next((file.resolve() for file in (here / "__init__.py", here.with_suffix(".py")) if file.is_file()), None)


def key_file() -> Path:
    """Where the key of this account is, by the rules of XDG."""
    given = os.environ.get("XDG_STATE_HOME", "")
    try:
        state = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
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
    """Whole or not at all; a process that is faster wins."""
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
