"""`--out`: what cannot be written is refused before the work, in one line, and nothing is replaced."""

import re
from pathlib import Path

import pytest

from drl.cli.entry import main
from drl.core.errors import BadInput
from drl.core.safe_files import check_out
from tests.report.written_runs import write_run


def test_what_can_be_written_is_not_refused(tmp_path):
    check_out(tmp_path / "new.png")
    check_out(tmp_path / "no" / "folder" / "yet.png", overwrite=False)
    (tmp_path / "old.png").write_text("mine")
    check_out(tmp_path / "old.png", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["old.png"]


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("old.json", "exists and is not overwritten; choose another --out"),
        ("dangling.json", "exists and is not overwritten; choose another --out"),
        ("old.json/x.json", "old.json is not a folder; choose another --out"),
        ("x" * 300 + ".json", "cannot be written (File name too long); choose another --out"),
        ("old.json/deep/x.json", "old.json is not a folder; choose another --out"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, capsys, out, words):
    (tmp_path / "old.json").write_text("mine")
    (tmp_path / "dangling.json").symlink_to(tmp_path / "nothing")
    with pytest.raises(BadInput, match=re.escape(words)):
        check_out(tmp_path / out)
    runs = [str(write_run(tmp_path / "results" / name / "run").parent) for name in ("a", "b")]
    assert main(["compare", *runs, "--out", str(tmp_path / out)]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert (tmp_path / "old.json").read_text() == "mine"
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("out", ["x/..", "..", "/", "a\0b"])
def test_what_is_no_name_is_refused(out):
    with pytest.raises(BadInput, match="expected the name of something new"):
        check_out(Path(out))


def test_a_folder_is_not_replaced(tmp_path):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(BadInput, match="is a folder; choose another --out"):
        check_out(tmp_path / "folder.png", overwrite=True)


@pytest.mark.filterwarnings("default")
def test_a_run_that_has_logged_nothing_does_not_stop_the_plot_of_the_others(tmp_path, capsys):
    write_run(tmp_path / "a" / "run-1")
    empty = write_run(tmp_path / "a" / "run-2")
    (empty / "metrics.jsonl").unlink()
    assert main(["plot", str(tmp_path / "a"), "--out", str(tmp_path / "x.png")]) == 0
    assert "run-2 has logged nothing yet" in capsys.readouterr().err
    assert (tmp_path / "x.png").exists()
    assert main(["plot", str(empty)]) == 2
    assert "metrics.jsonl does not exist" in capsys.readouterr().err
