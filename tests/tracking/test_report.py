import base64
import re

import pytest

from drl.core.errors import BadInput
from drl.core.log import Log
from drl.tracking.files import JsonlTracker
from drl.tracking.report import write_report

EVIL = "<script>alert('1')</script>"


def make_run(folder):
    tracker = JsonlTracker(folder / "metrics.jsonl")
    for step in range(1, 4):
        evaluation = {EVIL: 12.5 * step} if step > 1 else {}
        recent = {"mean_ep_return": 321.0, "success_rate": 0.5, "window": 10.0}
        tracker.write(Log(1000 * step, step, step, recent=recent, evaluation=evaluation))
    tracker.close()
    (folder / "plots").mkdir()
    (folder / "plots" / "loss.png").write_bytes(b"second")
    (folder / "plots" / "return.png").write_bytes(b"first")
    (folder / "config.yaml").write_text(f'ppo: {{gamma: 0.987}}\nnote: "{EVIL}"\n')
    (folder / "run.json").write_text('{"status": "finished", "seed": 7, "command": "a && b"}')
    return folder


def test_the_report_holds_the_run_and_nothing_unescaped(tmp_path):
    page = write_report(make_run(tmp_path / "<exp>" / "run-1")).read_text()
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 2  # in the configuration and as an evaluation's name
    assert "&lt;exp&gt;" in page
    assert "<exp>" not in page
    assert "a &amp;&amp; b" in page
    for text in ("ppo.gamma", "0.987", "finished", "321", "3,000", "37.5"):
        assert text in page, text
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert [base64.b64decode(image) for image in images] == [b"first", b"second"]
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "http://" not in page
    assert "https://" not in page
    evaluations = page[page.index("<h2>Evaluation") : page.index("Configuration")]
    assert evaluations.count("<tr>") == 3  # head and two evaluations


def test_what_is_missing_is_left_out(tmp_path):
    page = write_report(tmp_path).read_text()
    assert "<h2>" not in page
    (tmp_path / "config.yaml").write_text("a: [1, <b>")  # not YAML: shown as it is
    assert "a: [1, &lt;b&gt;" in write_report(tmp_path).read_text()
    with pytest.raises(BadInput, match="not a folder"):
        write_report(tmp_path / "nowhere")
