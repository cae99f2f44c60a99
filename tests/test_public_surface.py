"""`drl`, `drl.torch` and `drl.jax`: what they export, and that a type checker sees the same."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import drl


def _imports_for_type_checkers() -> dict[str, str]:
    tree = ast.parse(Path(drl.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    names = {alias.asname or alias.name: str(node.module) for node in imports for alias in node.names}
    return {name: module for name, module in names.items() if name not in drl._MODULES}


def test_a_type_checker_sees_the_names_that_run():
    assert _imports_for_type_checkers() == drl._MODULE_OF


@pytest.mark.parametrize("name", sorted(drl._MODULE_OF))
def test_a_public_name_is_defined_in_its_module(name: str):
    assert getattr(drl, name).__module__ == drl._MODULE_OF[name]


def _exported(module) -> set[str]:
    """What a user's script can import: names, but not modules that happen to be loaded."""
    tree = ast.parse(Path(module.__file__).read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname for node in imports for alias in node.names if alias.asname}


def test_both_engines_export_the_same_names():
    """Except what JAX needs for parameters outside of the model and for compiled programs, and target networks of
    PyTorch, which are plain parameters in JAX."""
    import drl.jax
    import drl.torch

    assert _exported(drl.jax) - _exported(drl.torch) == {"FlaxModel", "ModelState", "compile_trainer", "make_jax_env"}
    assert _exported(drl.torch) - _exported(drl.jax) == {"Target"}
    for name in _exported(drl.torch) & _exported(drl.jax):
        ours, theirs = getattr(drl.torch, name), getattr(drl.jax, name)
        assert ours.__module__.replace(".torch.", ".jax.") == theirs.__module__ if name != "ops" else ours is not theirs


def test_import_drl_loads_neither_framework():
    code = "import drl, sys; print(sorted({'torch', 'jax', 'optuna', 'ray'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def test_an_unknown_name_is_refused_with_the_names_there_are():
    with pytest.raises(AttributeError, match=r"no attribute .trian.; it offers .*train"):
        drl.trian  # noqa: B018
