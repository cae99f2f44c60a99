"""A second copy of a run's folder at a URL that fsspec knows: s3://, gs://, sftp://, file:// …"""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from drl.core.errors import BadInput, one_line


class UrlCopy:
    """`URL/<experiment>/<run-id>`, updated file by file.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "experiment" / "run"
    >>> folder.mkdir(parents=True)
    >>> _ = (folder / "metrics.jsonl").write_text("{}")
    >>> copy = UrlCopy("memory://runs", folder)
    >>> copy.update(["metrics.jsonl"])
    []
    >>> copy.files.cat("/runs/experiment/run/metrics.jsonl")
    b'{}'
    """

    files: Any

    def __init__(self, url: str, folder: Path):
        self.folder = folder
        self.files, root = _open(url)
        self.root: str = f"{root.rstrip('/')}/{folder.parent.name}/{folder.name}"
        self.error: str = ""  # of the last attempt
        self._missing: list[str] = []

    def update(self, paths: Iterable[str]) -> list[str]:
        """Copy the files at these paths, and those that could not be copied before; delete those that are gone. Returns
        what could not be copied: training goes on without."""
        wanted, self._missing = dict.fromkeys([*self._missing, *paths]), []
        for path in wanted:
            try:
                self._copy(path)
            except Exception as error:  # every file system has its own
                self._missing.append(path)
                self.error = one_line(error)
        return self._missing

    def _copy(self, path: str) -> None:
        target = f"{self.root}/{path}"
        if (self.folder / path).is_file():
            self.files.makedirs(target.rpartition("/")[0], exist_ok=True)
            self.files.put_file(str(self.folder / path), target)
        else:
            with contextlib.suppress(FileNotFoundError):
                self.files.rm_file(target)


def check_url(url: str) -> None:
    """Raise if nothing can be written there, before anything is trained."""
    _open(url)


def _open(url: str):  # type: ignore[no-untyped-def]  # fsspec has no types
    import fsspec  # type: ignore[import-untyped]

    try:
        return fsspec.core.url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        said = " ".join(str(error).split())[:200]
        raise BadInput(f"results_url is {url!r}, which cannot be opened: {said}") from None
