"""Safe file access in untrusted folders: nothing is written through a link or read from outside the folder.

A run or an agent can come from anywhere. New content goes into an exclusively created draft with a random name, which
then replaces the target atomically, or takes its name if the name is free. A file that is read must be a plain file
inside its folder, with a size limit. YAML is read without aliases and Python objects.
"""

import contextlib
import functools
import importlib.metadata
import os
import platform
import re
import secrets
import stat
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import BinaryIO

import yaml

from drl.core.errors import BadInput, UnusableFile
from drl.core.specs import PlainValue

MOST_TEXT = 64 << 20  # bytes of a card, a state or a record
MOST_WEIGHTS = 2 << 30  # bytes of a file of weights
ARRIVING = ".arriving"  # folder in a run's folder for files from another machine that are not in place yet
DRAFT = re.compile(r"\..+\.[0-9a-f]{16}\.\w+")  # names of drafts, see `draft_of`
MOST_SETTINGS = 1 << 20  # bytes of a YAML file
CACHE = "DRL_CACHE_DIR"  # environment variable: folder of caches
RECORDED = ("torch", "numpy", "gymnasium", "jax", "envpool")  # packages whose versions affect results


@contextlib.contextmanager
def draft_of(path: Path, suffix: str = ".part", overwrite: bool = True) -> Iterator[Path]:
    """Create an empty file beside `path` to write into. At the end it replaces `path`, even if that is a link; without
    `overwrite`, an existing file raises `FileExistsError`. If the block raises, the draft is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _new_draft(path, suffix)
    try:
        yield draft
        if overwrite:
            os.replace(draft, path)
        else:
            _place_new(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def _new_draft(path: Path, suffix: str) -> Path:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}{suffix}")
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    return draft


def _place_new(draft: Path, path: Path) -> None:
    """Give a draft its name in one step: another process cannot take the name after a check."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # the file system has no hard links
        with open(path, "xb") as file:
            try:
                _write(file, draft.read_bytes())
            except BaseException:
                path.unlink()
                raise
    os.unlink(draft)


def check_out(path: Path, overwrite: bool | None = None) -> None:
    """Raise unless the path that a user names with --out can be written and replaces nothing. Missing folders above it
    will be created. `overwrite` is the value of that flag; None: there is no such flag."""
    if path.name in ("", "..") or not str(path).isprintable():
        raise BadInput(f"--out is {str(path)!r:.80}; expected the name of something new")
    if os.path.lexists(path) and not overwrite:
        advice = "choose another --out" + ("" if overwrite is None else ", or add --overwrite")
        raise BadInput(f"{path} exists and is not overwritten; {advice}")
    if os.path.isdir(path):
        raise BadInput(f"{path} is a folder; choose another --out")
    above = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not above.is_dir():
        raise BadInput(f"{above} is not a folder; choose another --out")
    try:
        os.unlink(_new_draft(above / path.name, ".part"))
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError) -> BadInput:
    """Return the error for an --out that cannot be written."""
    return BadInput(f"{path} cannot be written ({error.strerror}); choose another --out")


def remove_drafts(folder: Path) -> None:
    """Delete the drafts of killed processes, in a folder that no other process writes into."""
    for file in folder.glob(".*"):
        if DRAFT.fullmatch(file.name) and not file.is_dir():
            file.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file; readers see the old content or the new content, never a part."""
    with draft_of(path) as draft, open(draft, "wb") as file:
        _write(file, content)


def write_new(path: Path, content: bytes) -> None:
    """Write a new file; raise `FileExistsError` if it exists."""
    with draft_of(path, overwrite=False) as draft, open(draft, "wb") as file:
        _write(file, content)


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def check_folder(folder: Path, foreign: str) -> None:
    """Raise if a folder holds a link that leads out of it, a pipe or a device. The subfolder `foreign` is skipped."""
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:  # another process trains this run
                continue
            if stat.S_ISLNK(mode) and not is_inside(folder, path):
                raise UnusableFile(f"{path} is a link that leads out of {folder}; remove it")
            if not (stat.S_ISLNK(mode) or stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise UnusableFile(f"{path} is neither a plain file nor a folder; remove it")
        folders[:] = [name for name in folders if Path(parent, name) != folder / foreign]


def stay_inside(folder: Path, path: Path) -> Path:
    """Return `path`; raise if a link on the way leads out of `folder`. The last part may be missing, or a link that
    `draft_of` will replace."""
    if not is_inside(folder, path.parent):
        raise UnusableFile(f"{path.parent} is a link that leads out of {folder}; nothing is written there")
    return path


def is_inside(folder: Path, path: Path) -> bool:
    """Whether a path is inside a folder after links are resolved."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # circular links
        return False


def read_inside(folder: Path, path: Path, most: int = MOST_TEXT) -> bytes:
    """Read a plain file of at most `most` bytes that is inside `folder` after links are resolved."""
    try:
        if not path.resolve(strict=True).is_relative_to(folder.resolve()):
            raise UnusableFile(f"{path} leads out of {folder}; it is not read")
        return read_plain(path, most)
    except FileNotFoundError:
        raise UnusableFile(f"{path} does not exist") from None
    except OSError as error:
        raise UnusableFile(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RuntimeError) as error:  # a name with a zero byte; circular links
        raise UnusableFile(f"{str(path)!r} cannot be read: {error}") from None


def read_plain(path: Path, most: int = MOST_TEXT) -> bytes:
    """Read a plain file of at most `most` bytes; raise for pipes and devices."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UnusableFile(f"{path} is not a plain file; it is not read")
    if status.st_size > most:
        raise UnusableFile(f"{path} has {status.st_size:,} bytes, more than the {most:,} that are read")
    return path.read_bytes()


class _PlainLoader(yaml.SafeLoader):
    """A safe loader without aliases: a few hundred bytes of them can expand to billions of values."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not taken")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, PlainValue]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(names)) < len(names):
            raise yaml.YAMLError(f"{max(names, key=names.count)} is given twice")
        return super().construct_mapping(node, deep)


# YAML 1.1 reads 1e-3 as a text, because it has no dot.
_PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+"), list("-+0123456789")
)


def parse_yaml(text: str | bytes) -> PlainValue:
    """Parse a text; raise `ValueError` if it is not plain YAML.

    >>> parse_yaml("{gravity: -5, rate: 1e-3}")
    {'gravity': -5, 'rate': 0.001}
    """
    try:
        return yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split())[:300] or type(error).__name__) from None


def read_yaml_file(path: str | Path) -> PlainValue:
    """Parse a YAML file."""
    return parse_yaml(read_plain(Path(path), MOST_SETTINGS))


def cache_folder(name: str) -> Path:
    """Return `~/.cache/drl/NAME`; `DRL_CACHE_DIR` and `XDG_CACHE_HOME` change the folder."""
    if given := os.environ.get(CACHE):
        return Path(given) / name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "drl" / name


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of this process, by name. Do not modify the dict."""
    from drl import __version__  # which imports this module

    found = {"drl": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in RECORDED:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
