"""The hooks of the documentation site. `make docs` builds it strictly: links, anchors and references."""

import importlib.util
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.full
pytest.importorskip("mkdocs")

DOCS = Path(__file__).parents[1] / "docs"
spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
assert spec is not None
assert spec.loader is not None
hooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hooks)


@pytest.mark.parametrize(
    ("page", "link", "moved"),
    [
        ("runs.md", "[a](zoo.md#x)", "[a](zoo.md#x)"),  # within docs/
        ("runs.md", "[a](README.md)", "[a](index.md)"),  # what GitHub shows for the folder
        ("runs.md", "[a](../benchmarks/RESULTS.md#b)", "[a](source/benchmarks/RESULTS.md#b)"),
        ("algorithms/ppo.md", "[a](../../drl/core/specs.py)", "[a](../source/drl/core/specs.py.md)"),
        ("runs.md", "[a](../drl/envs)", "[a](source/drl/envs/README.md)"),  # a folder is its README
        ("runs.md", "[a](../drl/settings/presets)", "[a](source/drl/settings/presets/index.md)"),  # or a list
        ("../drl/envs/README.md", "[a](../../docs/runs.md)", "[a](../../../runs.md)"),
        ("../drl/envs/README.md", "[a](atari.py)", "[a](atari.py.md)"),
        ("runs.md", "[a](https://example.org/x)", "[a](https://example.org/x)"),
        ("runs.md", "[a](nothing.md)", "[a](nothing.md)"),  # mkdocs warns of it
        ("runs.md", "`[a](../drl/envs)`", "`[a](../drl/envs)`"),
        ("runs.md", "```python\nx[0](../drl/envs)\n```", "```python\nx[0](../drl/envs)\n```"),
    ],
)
def test_links_are_moved_to_where_the_site_has_them(page, link, moved):
    assert hooks.with_links(link, (DOCS / page).resolve()) == moved


def test_code_and_folders_become_pages():
    code = hooks.page_of(hooks.ROOT / "drl" / "core" / "seeding.py")
    assert "# drl/core/seeding.py" in code
    assert "class Seeds" in code
    assert "- `ppo/CartPole-v1.yaml`" in hooks.page_of(hooks.ROOT / "drl" / "settings" / "presets")


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<script src="https://unpkg.com/x"></script>', True),
        ('<link rel="stylesheet" href="https://fonts.example/x.css">', True),
        ('<img alt="a" src=https://example.org/x.png>', True),
        ('<a href="https://example.org">a link is not loaded</a>', False),
        ('<script src="assets/katex.min.js"></script><img src="x.png">', False),
    ],
)
def test_what_is_loaded_from_the_network_is_found(html, found):
    assert bool(hooks.LOADED.search(html)) is found


def test_our_own_assets_load_nothing_from_the_network():
    files = [path for path in (DOCS / "assets").rglob("*") if path.suffix in (".css", ".js")]
    assert len(files) > 3
    assert [
        path.name for path in files if re.search(r"url\(['\"]?https?:|import\s*['\"]https?:", path.read_text())
    ] == []


def test_the_site_is_built_strictly():
    """Without --quiet, with which mkdocs does not count warnings."""
    assert "-m mkdocs build --strict\n" in (DOCS.parent / "Makefile").read_text()
