"""The code of the documentation runs: python blocks and `drl` commands of a page, in order, at a tiny size.

Pages that are not here: extending.md and flat_command_line.md have tests of
their own; of the others every command is parsed (test_docs.py).
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from drl.algorithms import ALGORITHMS
from drl.core.configs import ReplayConfig

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BESIDE = re.compile(r"^\*\*([^*\n]+)\*\*\n\n```python\n(.*?)^```", re.DOTALL | re.MULTILINE)

# What makes a command small; given ones are replaced.
PICTURES = {"--no-plots": (), "--no-video": (), "--no-tensorboard": (), "--quiet": ()}
SMALL = {
    "train": {"--total-timesteps": ("600",), "--evaluation-episodes": ("1",), **PICTURES},
    "search": {"--n-trials": ("2",), "--num-timesteps-per-trial": ("300",), "--evaluation-episodes": ("1",)}
    | {"--n-jobs": ("0",), "--rerun-seeds": ("0",), "--no-plots": (), "--quiet": ()},
    "evaluate": {"--episodes": ("1",)},
    "replay": {},
    "plot": {},
    "compare": {},
    "resume": {},
    "fork": {},
    "list": {},
    "doctor": {"--steps": ("300",)},
}
OFF_POLICY = [name for name, record in ALGORITHMS.items() if issubclass(record.parts["buffer"], ReplayConfig)]
FOUND = {"doctor": (0, 1)}  # exit codes that are answers; a run of 600 steps is none to be proud of
BEGINNING = f"""
import sys
from drl.settings.experiment import RunConfig

RunConfig.__init__.__kwdefaults__.update(plots=False, video=False, tensorboard=False, evaluation_episodes=1)

def command(*words):
    from drl.cli.entry import main
    if (code := main(list(words))) and code not in {FOUND}.get(words[0], ()):
        sys.exit(f"drl {{' '.join(words)}}: exit code {{code}}")

"""


def small_command(line: str) -> list[str]:
    """The words of a command after `drl`, with small budgets.

    >>> small_command("drl evaluate results/a --episodes 100   # many")
    ['evaluate', 'results/a', '--episodes', '1']
    """
    _, name, *words = shlex.split(line, comments=True)
    for flag, values in SMALL[name].items():
        if flag in words:
            del words[(place := words.index(flag)) : place + 1 + len(values)]
        words += [flag, *values]
    if "--num-seeds" in words:  # several are processes
        words[words.index("--num-seeds") + 1] = "1"
    if name == "train" and words[0] in OFF_POLICY and "--warmup" not in words:
        words += ["--warmup", "100"]  # else there would be no update
    if name == "fork":  # where the run began, and a few steps more
        words = [re.sub(r"total_timesteps=\d+", "total_timesteps=1300", word) for word in words]
    return [name, *words]


def small_code(code: str) -> str:
    """Python with small budgets."""
    code = re.sub(r"\b(100|50|20)_000\b", "600", code)
    theirs = re.compile(r'PPO\("MlpPolicy", (?!.*n_steps)[^,\n]*?(, n_envs=\d\))?(?=[,)])')  # of 2,048 steps otherwise
    code = theirs.sub(r"\g<0>, n_steps=64", code)
    return code.replace("2_000", "300").replace("4_000", "400").replace("n_trials=20", "n_trials=2, plots=False")


def program(text: str, without: str = "$.") -> str:
    """A page as one program. A block that begins with the name of a file is that file. Commands in which the pattern
    `without` is found are left out."""
    lines = [BEGINNING]
    for kind, code in BLOCK.findall(text):
        if kind == "python" and (named := re.match(r'"""(\w+\.py): ', code)):
            lines.append(f"open({named[1]!r}, 'w').write({code!r})")
        elif kind == "python":
            lines.append(small_code(code))
        else:
            commands = [line for line in code.replace("\\\n", " ").splitlines() if line.startswith("drl ")]
            lines += [f"command(*{small_command(line)!r})" for line in commands if not re.search(without, line)]
    return "\n".join(lines)


def run(code: str, folder: Path) -> str:
    """Runs a program as `python -c`, so that processes that it starts do not run it again."""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


TOGETHER = [
    "index concepts four_classes own_network own_tracker",
    "inside_a_run",
    "tour",
    "tuning",
    "faq",
    "python",
]  # each is a process


@pytest.mark.full
@pytest.mark.parametrize("names", TOGETHER)
def test_the_pages_run(names, tmp_path):
    """Short pages share a process. JAX needs to compile, and an ablation is many runs: these commands are parsed, as
    those of the other pages are."""
    text = "\n".join((DOCS / f"{name}.md").read_text() for name in names.split())
    run(program(text, without="--engine jax|drl ablate"), tmp_path)


@pytest.mark.full
def test_the_page_on_environments_runs(tmp_path):
    """Its own example; the environments of other packages have tests/real_worlds."""
    run(program((DOCS / "environments.md").read_text(), without="^(?!.*my_dilemma)"), tmp_path)


@pytest.mark.full
def test_a_page_that_is_wrong_does_not_run(tmp_path):
    with pytest.raises(AssertionError, match="exit code 2"):
        run(program("```bash\ndrl evaluate results/nothing --episodes 3\n```"), tmp_path)
    with pytest.raises(AssertionError, match="NameError"):
        run(program("```python\nnothing\n```"), tmp_path)


COLUMNS = {"from_stable_baselines3": "Stable-Baselines3", "from_cleanrl": "CleanRL"}


@pytest.mark.full
@pytest.mark.parametrize("side", ["theirs", "ours"])
@pytest.mark.parametrize("page", COLUMNS)
def test_both_columns_of_a_migration_page_run(page, side, tmp_path):
    """Every piece of their code has one of ours beside it; each column is one program."""
    pieces = BESIDE.findall((DOCS / f"{page}.md").read_text())
    assert [name for name, _ in pieces] == [COLUMNS[page], "drl"] * (len(pieces) // 2)
    name = COLUMNS[page] if side == "theirs" else "drl"
    code = small_code("\n\n".join(code for owner, code in pieces if owner == name))
    run(code if side == "theirs" else BEGINNING + code, tmp_path)


# ── what the site must have ───────────────────────────────────────────────────────────────────────────────────────

ON_ANOTHER_PAGE = {"ddpg": "td3"}  # algorithm → the page that explains it, if not its own


def test_every_algorithm_has_a_page_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    for name in ALGORITHMS:
        page = DOCS / "algorithms" / f"{ON_ANOTHER_PAGE.get(name, name)}.md"
        assert f"drl train {name} " in page.read_text()
        assert f"algorithms/{page.name}" in navigation


def test_every_page_is_in_the_navigation():
    """mkdocs warns as well; this is faster."""
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if page.name != "README.md"]
    assert [page for page in pages if not re.search(rf"[ :]{re.escape(page)}$", navigation, re.MULTILINE)] == []


def test_every_page_with_code_runs():
    own_tests = {"deploy", "environments", "extending"}
    run = {*" ".join(TOGETHER).split(), *COLUMNS, *own_tests}
    assert {page.stem for page in DOCS.glob("*.md") if "```python" in page.read_text()} - run == set()


@pytest.mark.parametrize("page", sorted((DOCS / "algorithms").glob("*.md")), ids=lambda page: page.stem)
def test_code_on_an_algorithms_page_is_that_of_the_algorithm(page):
    """Line by line, in PyTorch's file of the same name."""
    lines = [line for kind, code in BLOCK.findall(page.read_text()) if kind == "python" for line in code.splitlines()]
    source = ROOT / "drl" / "engines" / "torch" / "algorithms" / page.with_suffix(".py").name
    assert set(lines) <= ({line.strip() for line in source.read_text().splitlines()} if lines else set())
