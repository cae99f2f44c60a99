"""Lint, types and tests of the packages that changed: `python .ci/quick.py`, run by `make quick`. Less than a minute.

Changed files are those of the work tree and of the commits since the merge base with `origin/main` (or `main`). A
package `drl/envs` has its tests in `tests/envs`. Only default tests run, and they stop at the first failure.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 45  # for the tests; the rest of them is for `make test`
ALWAYS = ["tests/test_import_direction.py", "tests/test_house.py"]


def git(*words: str) -> list[str]:
    """Lines of git's answer; none if it fails."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()


def changed_files() -> list[str]:
    """Files that exist and differ from the merge base with the main branch, new ones included."""
    base = git("merge-base", "HEAD", "origin/main") or git("merge-base", "HEAD", "main") or ["HEAD"]
    names = git("diff", "--name-only", base[0]) + git("ls-files", "--others", "--exclude-standard")
    return sorted({name for name in names if (ROOT / name).is_file()})


def tests_of(files: list[str]) -> list[str]:
    """Tests of the changed files: of `drl/a/b.py` the folder tests/a, of a test file the file itself.

    >>> tests_of(["drl/envs/spaces.py", "tests/core/test_log.py", "README.md"])
    ['tests/core/test_log.py', 'tests/envs']
    """
    found = set()
    for name in files:
        parts = Path(name).parts
        if parts[0] == "tests" and Path(name).name.startswith("test_"):
            found.add(name)
        for folder in (Path("tests", *parts[1:3]), Path("tests", *parts[1:2])) if parts[0] == "drl" else ():
            if len(parts) > 2 and (ROOT / folder).is_dir():
                found.add(folder.as_posix())
                break
    return sorted(found)


def run(*words: str, seconds: float | None = None) -> bool:
    """Whether a Python module ends well. One whose time is up has found nothing wrong."""
    print("$", " ".join(words), flush=True)
    try:
        return subprocess.run([sys.executable, "-m", *words], cwd=ROOT, timeout=seconds).returncode in (0, 5)
    except subprocess.TimeoutExpired:
        print(f"stopped after {seconds:.0f} s; `make test` runs all of them")
        return True


def main() -> int:
    files = changed_files()
    python = [name for name in files if name.endswith(".py")]
    good = run("ruff", "check", ".") and run("ruff", "format", "--check", ".")
    if typed := [name for name in python if name.startswith(("drl/", "experiments/", "benchmarks/"))]:
        good = run("mypy", "--follow-imports=silent", *typed) and good
    tests = tests_of(files) + (ALWAYS if python else [])
    return int(not (good and (not tests or run("pytest", "-x", "-n", "2", *tests, seconds=SECONDS))))


if __name__ == "__main__":
    sys.exit(main())
