"""Bugs put back in on purpose (`make mutants`): each must fail the tests that `mutants.yaml` names for it.

Works on copies of the tree in a temporary folder, one per job. A mutant is killed if pytest ends with exit code 1:
tests ran and failed. Those of its tests that `make test` runs come first. Only if they pass, or if there are none, the
others follow, which `make test-all` runs. At least nine of ten mutants must be killed by `make test`.
"""

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen

import yaml

TREE = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.yaml")
JOBS = 2
PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m")
DEFAULT, FULL, ALL = "not slow and not full", "full and not slow", "not slow"  # what `-m` selects
LEAST_DEFAULT = 0.9  # the share of mutants that `make test` must kill
MOST_SECONDS = 300  # per mutant; a default test that hangs must say so itself


@dataclass(frozen=True)
class Mutant:
    """One bug."""

    name: str  # a sentence
    file: str
    old: str  # occurs exactly once in the file
    new: str
    tests: tuple[str, ...]  # files or node ids, of which at least one must fail

    def applied(self, source: str) -> str:
        """The source with the bug."""
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"{self.name!r}: {self.file} has its old text {count} times, expected once: {self.old!r}")
        return source.replace(self.old, self.new)


def read_mutants(path: Path = LIST) -> list[Mutant]:
    """All mutants of the list, in its order; its sections are for readers."""
    sections = yaml.safe_load(path.read_text())
    return [Mutant(**entry | {"tests": tuple(entry["tests"])}) for section in sections.values() for entry in section]


def copy_tree(to: Path) -> None:
    """All files that git knows or would add."""
    names = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(names, cwd=TREE, capture_output=True, check=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (TREE / name).is_file():  # not deleted since
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TREE / name, to / name)


def python(copy: Path, *words: str, seconds: float = MOST_SECONDS) -> subprocess.CompletedProcess[str]:
    """Run Python in a copy of the tree, whose package comes before the installed one."""
    # Compiled files are never written: two versions of a source within one second would look alike.
    own = {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "NUMBA_CACHE_DIR": str(copy.parent / "numba")}
    command = [sys.executable, *words]
    env = os.environ | {"OMP_NUM_THREADS": "1"} | own
    with Popen(command, cwd=copy, env=env, stdout=PIPE, stderr=STDOUT, text=True, start_new_session=True) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except BaseException:  # the time is up, or Ctrl-C: end the tests and all that they started
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output)


def check_copy(copy: Path, tests: list[str]) -> str | None:
    """Why mutants in this copy would prove nothing; None: they do. The tests must pass without a bug."""
    found = python(copy, "-c", "import drl; print(drl.__file__)").stdout.strip()
    if found != str(copy / "drl" / "__init__.py"):
        return f"Python imports {found}, not the copy in {copy}"
    ended = python(copy, *PYTEST, ALL, *tests, seconds=10 * MOST_SECONDS)
    return None if ended.returncode == 0 else f"the tests fail without any mutant:\n{ended.stdout[-3000:]}"


def verdict(mutant: Mutant, copy: Path) -> str:
    """`killed` (by `make test`), `killed by test-all`, `SURVIVED` or what went wrong."""
    file = copy / mutant.file
    source = file.read_text()
    try:
        file.write_text(mutant.applied(source))
        code = python(copy, *PYTEST, DEFAULT, *mutant.tests).returncode
        if code == 1:
            return "killed"
        if code in (0, 5):  # none failed, or none is a default test
            code = python(copy, *PYTEST, FULL, *mutant.tests).returncode
    except subprocess.TimeoutExpired:
        return f"ERROR: no end within {MOST_SECONDS} s"
    finally:
        file.write_text(source)
    answers = {0: "SURVIVED", 1: "killed by test-all", 5: "SURVIVED"}
    return answers.get(code, f"ERROR: pytest ended with exit code {code}")


def judge(mutants: list[Mutant], copies: list[Path]) -> dict[Mutant, str]:
    """The verdict on every mutant, as many at a time as there are copies; printed as they come."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(mutant: Mutant) -> tuple[str, float]:
        copy, started = free.get(), time.monotonic()
        try:
            return verdict(mutant, copy), time.monotonic() - started
        finally:
            free.put(copy)

    verdicts: dict[Mutant, str] = {}
    with ThreadPoolExecutor(len(copies)) as pool:
        running = {pool.submit(one, mutant): mutant for mutant in mutants}
        try:
            for future in as_completed(running):
                verdicts[running[future]], seconds = future.result()
                print(f"{verdicts[running[future]]:18} {seconds:5.1f} s  {running[future].name}", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="the mutants with this text in their name or file")
    only = parser.parse_args().only
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves no folder behind
    mutants = [mutant for mutant in read_mutants() if only in mutant.name or only in mutant.file]
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    with tempfile.TemporaryDirectory(prefix="drl-mutants-") as folder:
        copies = [Path(folder).resolve() / str(number) / "tree" for number in range(min(JOBS, len(tests)))]
        for copy in copies:
            copy_tree(copy)
        with ThreadPoolExecutor(JOBS) as pool:
            parts = [tests[number :: len(copies)] for number in range(len(copies))]
            if wrong := next(filter(None, pool.map(check_copy, copies, parts)), None):
                sys.exit(wrong)
        print(f"{len(tests)} tests pass without a mutant; {len(mutants)} mutants follow", flush=True)
        verdicts = judge(mutants, copies) if copies else {}
    alive = {mutant: word for mutant, word in verdicts.items() if not word.startswith("killed")}
    late = [mutant.name for mutant, word in verdicts.items() if word == "killed by test-all"]
    share = 1 - len(late) / max(len(verdicts), 1)
    for mutant, word in alive.items():
        print(f"\n{word}: {mutant.name}\n  {mutant.file}: {mutant.old!r} → {mutant.new!r}\n  {' '.join(mutant.tests)}")
    print("".join(f"\nkilled by `make test-all` only: {name}" for name in late))
    print(f"{len(verdicts) - len(alive)} killed ({len(late)} by `make test-all` only), {len(alive)} not")
    return int(bool(alive) or not verdicts or (not only and share < LEAST_DEFAULT))


if __name__ == "__main__":
    sys.exit(main())
