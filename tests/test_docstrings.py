"""Every public name of the package has a docstring: the API reference and `help()` are made of them.

Public: classes, functions and methods without a leading underscore, in every module. A method needs none of its own if
a base class or a contract (a Protocol or ABC of the package, or Gymnasium's and PyTorch's interfaces) documents its
name, or if it is an overload or a setter.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import drl

ROOT = Path(__file__).parents[1]
SOURCES = {path: path.read_text() for path in sorted((ROOT / "drl").rglob("*.py"))}
ELSEWHERE = {"forward", "reset", "step", "render", "extra_repr"}  # torch.nn.Module and gymnasium.Env document these
Named = ast.ClassDef | ast.FunctionDef


def public(node: ast.Module | ast.ClassDef) -> Iterator[Named]:
    for child in node.body:
        if isinstance(child, Named) and not child.name.startswith("_"):
            marks = [ast.unparse(mark) for mark in getattr(child, "decorator_list", ())]
            if not any(mark == "overload" or mark.endswith(".setter") for mark in marks):
                yield child


def base_names(node: ast.ClassDef) -> list[str]:
    """Without modules and parameters: `Generic[T]` → Generic."""
    return [re.sub(r"\[.*|.*\.", "", ast.unparse(base)) for base in node.bases]


def without_docstring(sources: dict[Path, str]) -> list[str]:
    """Public names that nothing documents, as file:name."""
    modules = {path: ast.parse(text) for path, text in sources.items()}
    classes = {n.name: n for module in modules.values() for n in ast.walk(module) if isinstance(n, ast.ClassDef)}
    contracts = {
        method.name
        for each in classes.values()
        if {"Protocol", "ABC"} & set(base_names(each))
        for method in public(each)
        if ast.get_docstring(method)
    }

    def inherited(node: ast.ClassDef, name: str) -> bool:
        bases = [classes[base] for base in base_names(node) if base in classes and base != node.name]
        return any(
            inherited(base, name) or any(each.name == name and ast.get_docstring(each) for each in public(base))
            for base in bases
        )

    def missing(node: ast.Module | ast.ClassDef, before: str) -> Iterator[str]:
        for child in public(node):
            told = isinstance(node, ast.ClassDef) and (
                child.name in contracts | ELSEWHERE or inherited(node, child.name)
            )
            if not ast.get_docstring(child) and not told:
                yield before + child.name
            if isinstance(child, ast.ClassDef):
                yield from missing(child, f"{before}{child.name}.")

    return [name for path, module in modules.items() for name in missing(module, f"{path.name}:")]


def test_every_public_name_has_a_docstring():
    assert without_docstring(SOURCES) == []


def test_what_drl_exports_has_a_docstring():
    assert [name for name in drl.__all__ if name != "__version__" and not getattr(drl, name).__doc__] == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def f(): ...", ["a.py:f"]),
        ("def f():\n    'Does.'", []),
        ("def _f(): ...", []),
        ("class A:\n    'Is.'\n    def m(self): ...", ["a.py:A.m"]),
        ("class A:\n    'Is.'\n    def forward(self): ...", []),
        ("class P(Protocol):\n    'Is.'\n    def m(self): 'Does.'\nclass A:\n    'Is.'\n    def m(self): ...", []),
        ("class P(Protocol):\n    'Is.'\n    def m(self): ...", ["a.py:P.m"]),
        ("class B:\n    'Is.'\n    def m(self): 'Does.'\nclass A(B):\n    def m(self): ...", ["a.py:A"]),
        ("class A:\n    'Is.'\n    @x.setter\n    def x(self, y): ...", []),
    ],
)
def test_a_missing_docstring_is_found(code, found):
    assert without_docstring({Path("a.py"): code}) == found


REFERENCES = re.findall(
    r"^::: (drl\.[\w.]+)$", "\n".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md")), re.MULTILINE
)


def test_the_reference_shows_what_drl_exports():
    from drl import _MODULE_OF

    assert [name for name, module in _MODULE_OF.items() if not {module, f"{module}.{name}"} & set(REFERENCES)] == []
