"""`drl report`: what is in the file, what is refused, and how large it is."""

import json
import os
import re

import numpy as np
import pytest
from written_runs import append_rows, metric_row, write_run

from drl.cli.entry import main
from drl.core.errors import BadInput, UnusableFile
from drl.report.board import BoardContent
from drl.report.report_page import MOST_BYTES, write_report
from drl.report.run_content import base_of, read_run, thinned_curve
from drl.settings.presets import PRESETS

EVIL = "</script><img src=x onerror=alert(1)><!-- {{data}} &amp;"


def data_of(path):
    """What the page draws."""
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)[1]
    return json.loads(text)["runs"]


def test_the_page_has_everything_about_the_run(run):
    (run / "videos").mkdir()
    (run / "videos" / "other.mp4").write_bytes(b"other")
    (run / "videos" / "final_agent.mp4").write_bytes(b"film")
    path = write_report([run])
    assert path == run / "report.html"
    (shown,) = data_of(path)
    assert shown["name"] == "first/run-1"
    assert shown["facts"]["environment steps"] == 4000
    assert shown["facts"]["final evaluation, mean return"] == 487.5
    assert shown["facts"]["training time"] == "0:01:00"
    assert len(shown["curves"]["return"]["x"]) == 80  # two episodes in each row
    assert shown["curves"]["learn/value_loss"]["y"][0] == pytest.approx(90)
    assert shown["evaluations"]["columns"] == ["mean_return", "std_return", "episodes"]
    assert shown["evaluations"]["rows"][0] == [1000, 97.625, 2.0, None]
    assert shown["evaluations"]["rows"][-1] == ["final agent", 487.5, None, 10]
    assert shown["versions"] == {"drl": "9.8.7", "torch": "2.8.0"}
    assert shown["command"] == "drl train ppo --env CartPole-v1"
    assert "rollout_length:" in shown["config"]
    assert shown["video"] == "data:video/mp4;base64,ZmlsbQ=="
    assert "video" not in data_of(write_report([run], video=False))[0]


def test_settings_stand_beside_those_of_the_preset(run):
    (shown,) = data_of(write_report([run]))
    assert shown["base"]["name"] == "preset of ppo for CartPole-v1"
    assert shown["base"]["settings"]["epochs"] != shown["settings"]["epochs"]  # this run has the defaults
    rainbow = base_of({"algorithm": "dqn", "env": "ALE/Pong-v5"}, ["drl", "train", "dqn", "--preset", "rainbow"])
    assert rainbow.name == "preset rainbow of dqn for ALE/Pong-v5"
    assert rainbow.settings["noisy"] is True
    assert base_of({"algorithm": "reinforce", "env": "None-v0"}, []).name == "defaults of reinforce"
    for algorithm in ("../presets/ppo", "mine", 5, None):
        assert base_of({"algorithm": algorithm, "env": "CartPole-v1"}, []) is None


def test_a_page_loads_nothing_and_runs_only_its_own_scripts(run):
    page = write_report([run]).read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    assert policy.startswith("default-src &#x27;none&#x27;; script-src &#x27;sha256-")
    assert "unsafe" not in policy
    assert "connect-src &#x27;none&#x27;" in policy
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page)


def test_nothing_of_a_run_becomes_markup(tmp_path):
    settings = {"env": EVIL, EVIL: EVIL}
    run = write_run(
        tmp_path / EVIL.replace("/", "") / "r<b>", settings=settings, command=[EVIL], status=EVIL, versions={EVIL: EVIL}
    )
    append_rows(run, [metric_row(41) | {EVIL: 1.0, f"evaluation/{EVIL}": 2.0}])
    path = write_report([run])
    page, (shown,) = path.read_text(), data_of(path)
    assert "<img src=x" not in page
    assert "<b>" not in page
    assert page.count("</script>") == page.count("<script")
    assert shown["facts"]["status"] == EVIL  # it is there, as text
    assert EVIL in shown["curves"]
    assert EVIL in shown["versions"]
    assert EVIL in shown["settings"]


def test_several_runs_share_a_page_in_the_folder_that_holds_them(tmp_path, capsys):
    for name in ("a/run", "b/run", "deep/search/trial"):
        write_run(tmp_path / "results" / name)
    assert main(["report", str(tmp_path / "results")]) == 0
    path = tmp_path / "results" / "report.html"
    assert capsys.readouterr().out.strip() == str(path)
    assert [run["name"] for run in data_of(path)] == ["a/run", "b/run", "search/trial"]
    both = [str(tmp_path / "results" / name / "run") for name in "ab"]
    assert main(["report", *both, both[0], "--out", str(tmp_path / "x.html")]) == 0
    assert len(data_of(tmp_path / "x.html")) == 2


def test_a_file_that_is_not_ours_is_never_replaced(run, tmp_path, capsys):
    write_report([run])
    write_report([run])  # its own page again
    mine = tmp_path / "mine.html"
    mine.write_text("<h1>mine</h1>")
    assert main(["report", str(run), "--out", str(mine)]) == 2
    assert "is not a report that drl wrote; choose another file with --out" in capsys.readouterr().err
    assert mine.read_text() == "<h1>mine</h1>"
    with pytest.raises(BadInput, match="is not a folder"):
        write_report([run], tmp_path / "nowhere" / "x.html")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "is not a folder; expected a run"),
        (["."], "holds no run"),
        ([".", "--out", "x.png"], "expected an HTML file"),
        ([], "give at least one run"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_cannot_be_read_is_left_out_of_many_and_refused_alone(run, tmp_path):
    broken = write_run(tmp_path / "results" / "second" / "run-2")
    append_rows(broken, [{"env_steps": "x"}, {"finished": 5}])
    with pytest.raises(UnusableFile, match="does not hold the records of a run"):
        write_report([broken])
    assert not (broken / "report.html").exists()
    with pytest.warns(UserWarning, match="left out: .*run-2"):
        page = write_report([run, broken])
    assert ["problem" in shown for shown in data_of(page)] == [False, True]


def test_a_run_without_rows_is_shown(tmp_path):
    (shown,) = data_of(write_report([write_run(tmp_path / "a" / "b", rows=0)]))
    assert shown["curves"] == {}


def test_long_runs_are_thinned_until_the_page_is_small(tmp_path, monkeypatch):
    assert MOST_BYTES == 5_000_000
    monkeypatch.setattr("drl.report.report_page.MOST_BYTES", 1_000_000)
    runs = [write_run(tmp_path / "long" / f"r{number}", rows=0) for number in range(2)]
    values = np.random.default_rng(1).normal(size=(1500, 20)).tolist()
    rows = [{"env_steps": step, "finished": []} for step in range(1, 1501)]
    rows = [row | {f"learn/m{k}": value for k, value in enumerate(of)} for row, of in zip(rows, values, strict=True)]
    for run in runs:
        append_rows(run, rows)
    path = write_report(runs)
    assert 300_000 < path.stat().st_size <= 1_000_000
    curve, numbers = data_of(path)[0]["curves"]["learn/m7"], [of[7] for of in values]
    assert len(curve["x"]) == 500  # half of the usual thousand
    assert curve["x"][-1] == 1500
    assert curve["each"] == 3
    assert curve["y"][0] == pytest.approx(np.mean(numbers[:3]), rel=1e-5)
    assert max(curve["high"]) == pytest.approx(max(numbers), rel=1e-5)
    assert min(curve["low"]) == pytest.approx(min(numbers), rel=1e-5)
    monkeypatch.setattr("drl.report.report_page.MOST_BYTES", 50_000)  # less than the scripts have
    with pytest.raises(BadInput, match=r"a report on 1 run is too large"):
        write_report([write_run(tmp_path / "short", rows=1)])


def test_thinning_sorts_and_leaves_out_what_is_not_finite():
    x, y = np.array([3.0, 1.0, np.nan, 2.0]), np.array([30.0, 10.0, 5.0, np.inf])
    assert thinned_curve(x, y, 10) == {"x": [1, 3], "y": [10, 30]}
    huge = thinned_curve(np.arange(4.0), np.full(4, 1e308), 1)  # their sum is infinite
    assert huge["y"] == [None]
    assert huge["high"] == [1e308]


def test_videos_that_would_make_the_page_too_large_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("drl.report.report_page.MOST_VIDEOS", 5)
    runs = [write_run(tmp_path / "a" / f"r{number}") for number in range(2)]
    for run in runs:
        (run / "videos").mkdir()
        (run / "videos" / "film.mp4").write_bytes(b"film")
    first, second = data_of(write_report(runs))
    assert "video" in first
    assert "video" not in second
    assert "is not on this page: the page would become too large" in second["notes"][0]
    monkeypatch.setattr("drl.report.report_page.MOST_VIDEOS", 3)
    assert "is not on this page" in data_of(write_report(runs[:1]))[0]["notes"][0]


def test_a_name_that_is_no_text_is_shown_with_question_marks(tmp_path):
    run = write_run(tmp_path / os.fsdecode(b"a\xff") / "run")
    assert "<title>a?/run</title>" in write_report([run]).read_text()
    assert list(BoardContent(tmp_path).runs()) == ["a?/run"]


def test_forks_and_resumed_runs_say_so(tmp_path):
    resumed = [{"at": "now", "env_steps": 800, "resumed": "exact"}]
    run = write_run(tmp_path / "a" / "b", forked_from={"run": "other", "env_steps": 500}, resumed=resumed)
    notes = read_run(run, "b", 100)["notes"]
    assert notes == ["forked from other at step 500; its curves begin there", "resumed at step 800 (exact)"]


def test_the_name_of_a_preset_is_no_path(tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "CartPole-v1.yaml").write_text("epochs: 77\n")
    outward = os.path.relpath(secret, PRESETS / "ppo")
    for name in (outward, str(secret), "x" * 300, "none\0"):
        assert base_of({"algorithm": "ppo", "env": "CartPole-v1"}, ["drl", "train", "ppo", "--preset", name]) is None


def test_a_folder_that_cannot_be_written_is_one_line(run, capsys):
    assert main(["report", str(run), "--out", "/proc/x.html"]) == 2
    assert "choose another file with --out" in capsys.readouterr().err
