"""Hooks of the documentation site: files of the repository that a page links to become pages below `source/`.

So every link works without a network, and documents that lie elsewhere, such as benchmarks/RESULTS.md, are read at each
build.
"""

import logging
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.hooks")
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Code stays as it is; in a link: text with "](", path, anchor.
PIECES = re.compile(
    r"(?P<code>```.*?^```|`[^`\n]*`)|(?P<text>\]\()(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)", re.DOTALL | re.MULTILINE
)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".cff": "yaml", ".toml": "toml", ".txt": "text"}
LOADED = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?\s(?:src|href)=[\"']?(https?:[^\s\"'>]+)")
HIDDEN = "---\nsearch:\n  exclude: true\n---\n"


def file_behind(link: str, page: Path) -> Path | None:
    """What a link means in the repository; of a folder its README, if it has one. None: the web, or nothing."""
    target = (page.parent / link).resolve()
    if ":" in link or not target.is_relative_to(ROOT) or not target.exists():
        return None
    readme = target / "README.md"
    return readme if readme.is_file() else target


def place_of(target: Path) -> str:
    """Where the site has a file of the repository."""
    if target == DOCS / "README.md":
        return "index.md"
    if target.is_relative_to(DOCS) and target.suffix != ".py":
        return target.relative_to(DOCS).as_posix()
    place = f"source/{target.relative_to(ROOT).as_posix()}"
    if target.is_dir():
        return f"{place}/index.md"
    return f"{place}.md" if target.suffix in LANGUAGES else place


def links_of(page: Path) -> set[Path]:
    """Files of the repository that a page links to."""
    found = (file_behind(piece["path"], page) for piece in PIECES.finditer(page.read_text()) if piece["path"])
    return {target for target in found if target is not None}


def with_links(markdown: str, page: Path) -> str:
    """The text of a page with its links as the site has them."""
    folder = posixpath.dirname(place_of(page))

    def moved(piece: re.Match[str]) -> str:
        target = None if piece["code"] else file_behind(piece["path"], page)
        if target is None:
            return piece[0]
        return f"{piece['text']}{posixpath.relpath(place_of(target), folder or '.')}{piece['anchor'] or ''})"

    return PIECES.sub(moved, markdown)


def page_of(target: Path) -> str:
    """A file of the repository as a page: a document with its links moved, code as it is, a folder as a list."""
    if target.suffix == ".md":
        return with_links(target.read_text(), target)
    name, fence = target.relative_to(ROOT).as_posix(), "`" * 6
    if target.is_dir():
        files = sorted(path.relative_to(target).as_posix() for path in target.rglob("*.*") if path.is_file())
        return f"{HIDDEN}# {name}\n\n" + "\n".join(f"- `{file}`" for file in files if "__pycache__" not in file)
    language = LANGUAGES[target.suffix]
    return f'{HIDDEN}# {name}\n\n{fence} {{ .{language} linenums="1" }}\n{target.read_text()}\n{fence}\n'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds every file of the repository that the pages link to, directly or through each other."""
    waiting = [DOCS / file.src_uri for file in files.documentation_pages()]
    added: set[Path] = set()
    while waiting:
        for target in sorted(links_of(waiting.pop()) - added):
            place = place_of(target)
            if not place.startswith("source/"):
                continue
            added.add(target)
            if target.suffix == ".md":
                waiting.append(target)
            if place.endswith(".md"):
                files.append(File.generated(config, place, content=page_of(target)))
            else:
                files.append(File.generated(config, place, abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Pages of docs/ link as they do in the repository; the site has these links moved."""
    if page.file.src_uri.startswith(("source/", "api/")):
        return markdown
    return with_links(markdown, DOCS / page.file.src_uri)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Warns of what a browser would load from the network; a strict build then fails."""
    for found in LOADED.finditer(output):
        log.warning("%s loads %s; put it into docs/assets", page.file.src_uri, found[1])
    return output
