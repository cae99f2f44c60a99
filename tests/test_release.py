"""What a release needs: one version everywhere, a citation, and a check that finds what a wheel lacks."""

import importlib.util
import re
import zipfile
from pathlib import Path

import yaml

import drl

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("check_distribution", ROOT / ".ci" / "check_distribution.py")
assert spec is not None
assert spec.loader is not None
check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)

METADATA = (
    """Metadata-Version: 2.4
Name: drl-workshop
Version: 1.0
Summary: RL
Requires-Python: >=3.11
License-Expression: MIT
License-File: LICENSE
Keywords: rl
Description-Content-Type: text/markdown

"""
    + 100 * "words words words "
)


def wheel(folder, files, metadata=METADATA):
    path = folder / "drl.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in files:
            archive.writestr(name, "")
        archive.writestr("drl-1.0.dist-info/METADATA", metadata)
        archive.writestr("drl-1.0.dist-info/entry_points.txt", "[console_scripts]\ndrl = drl.cli.entry:main\n")
    return path


def test_the_version_is_in_the_changelog():
    headings = re.findall(r"^## \[(.+?)\] - (\d{4}-\d\d-\d\d|unreleased)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0][0] == drl.__version__
    assert len(dict(headings)) == len(headings)


def test_the_citation_is_complete():
    told = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert told["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "license"} <= told.keys()
    assert all(author.get("name") or author.get("family-names") for author in told["authors"])
    assert str(told["version"]) == drl.__version__


def test_a_whole_wheel_is_accepted(tmp_path):
    assert check.wrong_wheel(wheel(tmp_path, ["drl/a.py", "drl/b.html"]), {"drl/a.py", "drl/b.html"}, "1.0") == []


def test_what_a_wheel_lacks_is_found(tmp_path):
    path = wheel(tmp_path, ["drl/a.py", "tests/x.py"], METADATA.replace("License-Expression: MIT\n", ""))
    complaints = check.wrong_wheel(path, {"drl/a.py", "drl/b.html"}, "2.0")
    assert complaints == ["no License-Expression", "version 1.0; expected 2.0", "lacks drl/b.html", "has tests/x.py"]


def test_the_package_has_files_that_are_not_code():
    assert {".py", ".yaml", ".md", ".typed"} <= {Path(name).suffix for name in check.tracked()}
