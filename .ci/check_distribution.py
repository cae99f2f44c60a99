"""Whether a wheel and a source distribution are whole: `python .ci/check_distribution.py dist`, run by `make release`.

Every file below drl/ that git tracks must be in both, whatever kind of file it is, and the metadata must be complete.
"""

import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDED = ("Name", "Version", "Summary", "Requires-Python", "License-Expression", "License-File", "Keywords")
BESIDE = ("pyproject.toml", "README.md", "LICENSE")  # in a source distribution


def tracked() -> set[str]:
    """Files of the package, from the repository's root."""
    listed = subprocess.run(["git", "ls-files", "drl"], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(listed.stdout.split())


def wrong_metadata(text: str, version: str) -> list[str]:
    """Complaints about METADATA or PKG-INFO."""
    told: Message = Parser().parsestr(text)
    complaints = [f"no {name}" for name in NEEDED if not told[name]]
    if told["Version"] != version:
        complaints.append(f"version {told['Version']}; expected {version}")
    if told["Description-Content-Type"] != "text/markdown" or len(told.get_payload()) < 1000:
        complaints.append("no README as the description")
    return complaints


def wrong_wheel(path: Path, files: set[str], version: str) -> list[str]:
    """Complaints about a wheel."""
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        (info,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        (entry,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
        complaints = wrong_metadata(wheel.read(info).decode(), version)
        if "drl = drl.cli.entry:main" not in wheel.read(entry).decode():
            complaints.append("no command drl")
    others = {name for name in names - files if ".dist-info/" not in name}
    return complaints + [f"lacks {name}" for name in sorted(files - names)] + [f"has {name}" for name in sorted(others)]


def wrong_sdist(path: Path, files: set[str], version: str) -> list[str]:
    """Complaints about a source distribution."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2]: name for name in archive.getnames()}
        stored = archive.extractfile(names["PKG-INFO"])
        assert stored is not None
        complaints = wrong_metadata(stored.read().decode(), version)
    return complaints + [f"lacks {name}" for name in sorted({*files, *BESIDE} - set(names))]


def main(folder: Path) -> int:
    """Check the one wheel and the one source distribution of a folder."""
    sys.path.insert(0, str(ROOT))
    from drl import __version__

    files = tracked()
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    complaints = [f"{wheel.name}: {each}" for each in wrong_wheel(wheel, files, __version__)]
    complaints += [f"{sdist.name}: {each}" for each in wrong_sdist(sdist, files, __version__)]
    print(
        "\n".join(complaints) or f"{wheel.name} and {sdist.name}: {len(files)} files of the package, metadata complete"
    )
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
