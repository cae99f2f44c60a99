"""The documentation tells the truth: names, flags, commands and links in it exist.

Every check is a function from text to a list of complaints, so that it can be shown to complain.
"""

import ast
import contextlib
import re
import shlex
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from drl.algorithms import ALGORITHMS
from drl.cli.entry import main
from drl.cli.train import read_experiment
from drl.core.errors import BadInput
from drl.settings.experiment import RunConfig
from drl.settings.scaling import ScalingConfig

ROOT = Path(__file__).parents[1]
ALGORITHM_PAGES = sorted((ROOT / "docs" / "algorithms").glob("*.md"))
ROOMS = ("docs", "drl", "experiments", "benchmarks")
PAGES = sorted([*ROOT.glob("*.md"), *(page for room in ROOMS for page in (ROOT / room).rglob("*.md"))])

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`]+)`")
MATH = re.compile(r"\$\$.*?\$\$|\$[^$\n]+\$", re.DOTALL)


def title(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


# ── names ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def identifiers(source: Path) -> frozenset[str]:
    """Dotted names of a file: `Class.method.local`, `Class.attribute`, and chains such as `self.config.tau`.

    What a class's methods store on `self` counts as the class's.
    """
    found: set[str] = set()

    def visit(node: ast.AST, scope: tuple[str, ...], owner: tuple[str, ...]) -> None:
        match node:
            case ast.ClassDef(name=name):
                scope = owner = (*scope, name)
                found.add(".".join(scope))
            case ast.FunctionDef(name=name):
                scope = (*scope, name)
                found.add(".".join(scope))
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(".".join((*scope, name)))
            case ast.Attribute(attr=name, value=value, ctx=context):
                found.add(".".join((*scope, ast.unparse(node))))
                if isinstance(context, ast.Store) and isinstance(value, ast.Name) and value.id == "self":
                    found.add(".".join((*owner, name)))
        for child in ast.iter_child_nodes(node):
            visit(child, scope, owner)

    visit(ast.parse(source.read_text()), (), ())
    return frozenset(found)


def has_name(source: Path, name: str, inside: str = "") -> bool:
    """Whether a dotted name of the file is `name` or ends with it, with the dotted `inside` somewhere before it."""
    befores = (
        f".{known}".removesuffix(f".{name}") for known in identifiers(source) if f".{known}".endswith(f".{name}")
    )
    return any(f".{inside}." in f"{before}." if inside else True for before in befores)


def table_rows(text: str) -> list[tuple[str, str]]:
    """The cells (name in our code, file) of every table that has these columns."""
    rows: list[tuple[str, str]] = []
    columns: tuple[int, int] | None = None
    for line in text.splitlines():
        if not line.startswith("|"):
            columns = None
            continue
        cells = [cell.strip() for cell in line.strip("| \n").split("|")]
        if "name in our code" in cells:
            columns = cells.index("name in our code"), cells.index("file")
        elif columns and not set(line) <= set("|- "):
            assert len(cells) > max(columns), f"a bar too many or too few: {line}"
            rows.append((cells[columns[0]], cells[columns[1]]))
    return rows


def wrong_names(text: str, folder: Path) -> list[str]:
    """What the tables say is in a file but is not. "`a`, `b` in `f`" means local names or members of f."""
    complaints = []
    for names_cell, file_cell in table_rows(text):
        link = LINK.search(file_cell)
        source = (folder / link[1]).resolve() if link else None
        if source is None or not source.is_file():
            complaints.append(f"no such file: {file_cell}")
            continue
        names_part, _, scope_part = names_cell.partition(" in ")
        names, scope = CODE.findall(names_part), CODE.findall(scope_part)
        inside = scope[0] if scope else ""
        if not names or (inside and not has_name(source, inside)):
            complaints.append(f"no such name in {source.name}: {inside or names_cell!r}")
        complaints += [f"no such name in {source.name}: {name}" for name in names if not has_name(source, name, inside)]
    return complaints


@pytest.mark.parametrize("page", ALGORITHM_PAGES, ids=title)
def test_every_name_is_in_its_file(page):
    text = page.read_text()
    assert len(table_rows(text)) > 15
    assert wrong_names(text, page.parent) == []


OPS = "[ops.py](drl/engines/torch/ops.py)"
HEADS = "[models.py](drl/engines/torch/models.py)"


@pytest.mark.parametrize(
    ("row", "right"),
    [
        (f"`gae` | {OPS}", True),
        (f"`gaee` | {OPS}", False),
        (f"`ae` | {OPS}", False),  # part of a name is not a name
        (f"`delta`, `carry` in `gae` | {OPS}", True),
        (f"`carry` in `huber` | {OPS}", False),  # a local of another function
        (f"`delta` in `nothing` | {OPS}", False),
        (f"`gae` | {HEADS}", False),  # another file
        (f"`QHead.support` | {HEADS}", True),
        (f"`ValueHead.support` | {HEADS}", False),  # another class
        (f"`config.dueling` | {HEADS}", True),
        (f"`config.duelling` | {HEADS}", False),
        ("`gae` | [ops.py](drl/engines/torch/opps.py)", False),
        ("`gae` | ops.py", False),
        (f"gae | {OPS}", False),  # not marked as code
        (f"`Generalized` | {OPS}", False),  # a word of a docstring is not an identifier
    ],
)
def test_a_wrong_name_is_found(row, right):
    table = f"| symbol | name in our code | file |\n|---|---|---|\n| $x$ | {row} |\n"
    assert (wrong_names(table, ROOT) == []) is right


# ── flags and commands ────────────────────────────────────────────────────────────────────────────────────────────


def wrong_flags(text: str, algorithm: str) -> list[str]:
    """Flags in `backticks` that `drl train ALGORITHM` does not have."""
    configs = (RunConfig, ScalingConfig, *ALGORITHMS[algorithm].parts.values())
    known = {"--" + field.name.replace("_", "-") for config in configs for field in fields(config)}
    flags = {word for code in CODE.findall(text) for word in code.split() if word.startswith("--")}
    return sorted(flag for flag in flags if flag not in known and flag.replace("--no-", "--", 1) not in known)


@pytest.mark.parametrize("page", ALGORITHM_PAGES, ids=title)
def test_every_flag_is_a_flag(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    assert wrong_flags(prose, page.stem) == []


def test_a_wrong_flag_is_found():
    assert wrong_flags("`--double`, `--no-double` and `--loss squared`", "dqn") == []
    assert wrong_flags("`--duble`, `--gae-lambda 1`", "dqn") == ["--duble", "--gae-lambda"]


def train_commands(text: str) -> list[list[str]]:
    """The words after `drl train` or `drl ablate`, which takes the same flags, of every command in a bash block, except
    those that begin from a file of a run."""
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    ablations = [
        re.sub(r" --(seeds|episodes|workers) \d+", "", line) for line in lines if line.startswith("drl ablate ")
    ]
    lines = [line for line in lines if line.startswith("drl train ")] + ablations
    commands = [shlex.split(line, comments=True) for line in lines]
    return [words[2:] for words in commands if "--config" not in words]


def wrong_commands(text: str) -> list[str]:
    complaints = []
    for algorithm, *flags in train_commands(text):
        if algorithm not in ALGORITHMS:
            complaints.append(f"no such algorithm: {algorithm}")
            continue
        try:
            read_experiment(algorithm, flags)
        except BadInput as error:
            complaints.append(f"{algorithm} {shlex.join(flags)}: {error}")
    return complaints


WITH_COMMANDS = [page for page in PAGES if "drl train" in page.read_text() and page.stem != "extending"]  # runs itself


@pytest.mark.default("README.md", "docs/commands.md", "docs/tour.md", "docs/tuning.md", "docs/scaling.md")
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=title)
def test_every_command_is_understood(page):
    assert wrong_commands(page.read_text()) == []


def test_the_algorithm_pages_have_commands():
    assert {page.stem for page in ALGORITHM_PAGES} >= {"dqn", "ppo"}
    assert all(train_commands(page.read_text()) for page in ALGORITHM_PAGES)


@pytest.mark.parametrize(
    ("command", "right"),
    [
        ("drl train dqn --double \\\n    --n-step 3   # two lines", True),
        ("drl train dqn --duble", False),
        ("drl train dqn --double \\\n    --n-stepp 3", False),
        ("drl train dqn --n-step 0", False),
        ("drl train dqnn --env CartPole-v1", False),
    ],
)
def test_a_wrong_command_is_found(command, right):
    text = f"```bash\n{command}\n```"
    assert len(train_commands(text)) == 1
    assert (wrong_commands(text) == []) is right


OTHER_COMMANDS = re.compile(r"^drl (?:evaluate|plot|resume|fork|replay|convert|list|completion) .*$", re.MULTILINE)


def other_commands(text: str) -> list[list[str]]:
    """The words of every command in a bash block that reads what is there, without `drl`."""
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in OTHER_COMMANDS.findall(block.replace("\\\n", " "))]
    return [shlex.split(line.split(">")[0], comments=True)[1:] for line in lines]


def refused_flags(text: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Complaints of commands about themselves, and not about runs, which do not exist here."""
    complaints = []
    for words in other_commands(text):
        with contextlib.suppress(SystemExit):
            main(words)
        complaints += [line for line in capsys.readouterr().err.splitlines() if "--help`" in line]
    return complaints


@pytest.mark.parametrize("page", [page for page in PAGES if other_commands(page.read_text())], ids=title)
def test_every_other_command_is_understood(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused_flags(page.read_text(), capsys) == []


def test_a_wrong_flag_of_another_command_is_found(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused_flags("```bash\ndrl evaluate results/a --episodes 3  # right\n```", capsys) == []
    assert len(refused_flags("```bash\ndrl evaluate results/a --episods 3\n```", capsys)) == 1
    assert len(refused_flags("```bash\ndrl fork results/a --sett x=1\n```", capsys)) == 1


# ── links and formulas ────────────────────────────────────────────────────────────────────────────────────────────


def anchors(text: str) -> set[str]:
    """Where `#…` can point to: headings as GitHub spells them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(text: str, page: Path) -> list[str]:
    complaints = []
    for link in LINK.findall(without_code(text)):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", path):  # the web
            continue
        target = (page.parent / path).resolve() if path else page
        places = anchors(target.read_text() if path else text) if target.suffix == ".md" and target.is_file() else set()
        if not target.exists() or (anchor and places and anchor not in places):
            complaints.append(link)
    return complaints


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_every_link_leads_somewhere(page):
    assert broken_links(page.read_text(), page) == []


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("[a](README.md) and [b](drl/core) and [c](https://example.org/x)", True),
        ("[a](READYOU.md)", False),
        ("![picture](docs/nothing.png)", False),
        ("# Real place\n[a](#real-place)", True),
        ("# Real place\n[a](#other-place)", False),
        ("[a](docs/algorithms/dqn.md#n-step)", True),
        ("[a](docs/algorithms/dqn.md#m-step)", False),
        ("`x[0](y)` is code", True),
    ],
)
def test_a_broken_link_is_found(text, right):
    assert (broken_links(text, ROOT / "README.md") == []) is right


def broken_formulas(text: str) -> list[str]:
    """Formulas that GitHub's Markdown would change before they are set: `\\,` loses its backslash, an underscore after
    a brace and any asterisk may turn into emphasis."""
    spoiled = re.compile(r"\\[^a-zA-Z\s]|(?<![a-zA-Z0-9])_|\*")
    return [formula for formula in MATH.findall(without_code(text)) if spoiled.search(formula)]


@pytest.mark.parametrize("page", ALGORITHM_PAGES, ids=title)
def test_formulas_survive_markdown(page):
    text = page.read_text()
    assert len(MATH.findall(without_code(text))) > 15
    assert broken_formulas(text) == []


def test_a_broken_formula_is_found():
    assert broken_formulas(r"$\hat A_t + \sum_{k=0}^{n-1} \lvert x \rvert$ and `$\,$`") == []
    assert len(broken_formulas(r"$\hat{A}_t$, $a\,b$, $a^*$, $\{x\}$")) == 4
