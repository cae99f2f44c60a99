"""The blocks, and the two ways they reach a stream."""

import io
import os
import re
import subprocess
import sys
import textwrap

import pytest

from drl.core.errors import BadInput
from drl.core.log import Log
from drl.tracking.console import ConsoleTracker, QuietConsole, blocks, plain_text


def full_log(step: int = 1, **changes) -> Log:
    log = Log(
        env_steps=2048 * step,
        episodes=9 * step,
        learning_steps=step,
        rollout={"mean_ep_len": 21.0, "mean_ep_return": 22.0, "mean_reward": 1.0, "rollout_len": 2048.0},
        learn={"mean_clipped_ratio": 1.0012, "approx_kl": 0.0123, "entropy": 0.69},
        recent={
            "mean_ep_len": 31.0,
            "mean_ep_return": 32.0,
            "terminated_rate": 0.25,
            "success_rate": 0.5,
            "window": 9.0,
        },
        trainer={"total_timesteps": 100_000.0, "clip_range": 0.2, "learning_rate": 3e-4},
        time={"time_elapsed": 1.5, "steps_per_second": 1365.0},
    )
    for name, value in changes.items():
        setattr(log, name, value)
    return log


def fields(found):
    return {block.title: list(block.fields) for block in found}


def test_a_ppo_log_fills_the_three_blocks_in_order():
    assert fields(blocks(full_log())) == {
        "ROLLOUT STATISTICS": [
            "mean_ep_len",
            "mean_ep_return",
            "mean_reward",
            "mean_clipped_ratio",
            "approx_kl",
            "rollout_len",
            "time_elapsed",
        ],
        "RECENT 9 EPISODES": ["mean_ep_len", "mean_ep_return", "terminated_rate", "success_rate"],
        "TRAINER STATISTICS": [
            "episodes_count",
            "timesteps_count",
            "rollouts_count",
            "total_timesteps",
            "clip_range",
            "steps_per_second",
        ],
    }


def test_fields_that_do_not_apply_are_left_out():
    found = blocks(Log(8, 0, 1, rollout={"mean_reward": 0.0, "rollout_len": 8.0}, learn={"loss": 0.5}), 100)
    assert fields(found) == {
        "ROLLOUT STATISTICS": ["mean_reward", "rollout_len"],
        "TRAINER STATISTICS": ["episodes_count", "timesteps_count", "rollouts_count", "total_timesteps"],
    }


def test_an_evaluation_is_a_fourth_block():
    assert fields(blocks(full_log(evaluation={"mean_return": 40.0})))["EVALUATION"] == ["mean_return"]


def test_counters_and_numbers_are_legible():
    trainer = blocks(full_log(step=600))[2].fields
    assert trainer["timesteps_count"] == "1,228,800"
    assert trainer["total_timesteps"] == "100,000"
    assert blocks(full_log(learn={"approx_kl": float("nan")}))[0].fields["approx_kl"] == "nan"
    assert blocks(full_log(learn={"approx_kl": 1.5e-7}))[0].fields["approx_kl"] == "1.50e-07"


def test_plain_text_lines_up():
    lines = [line for line in plain_text(blocks(full_log())).splitlines() if line.startswith("  ")]
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split() == ["mean_ep_len:", "21.00"]


def shown_steps(text: str) -> list[int]:
    return [int(n.replace(",", "")) for n in re.findall(r"rollouts_count:? +([\d,]+)", text)]


def test_every_k_shows_the_first_each_kth_evaluated_and_last():
    stream = io.StringIO()
    tracker = ConsoleTracker(stream=stream, every=4)
    for step in range(1, 12):
        tracker.write(full_log(step, evaluation={"mean_return": 1.0} if step == 6 else {}))
    assert shown_steps(stream.getvalue()) == [1, 4, 6, 8]
    tracker.close()
    tracker.close()
    assert shown_steps(stream.getvalue()) == [1, 4, 6, 8, 11]


def test_the_clock_throttles(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("drl.tracking.console.time.monotonic", lambda: now[0])
    stream = io.StringIO()
    tracker = ConsoleTracker(stream=stream, seconds=5.0)
    for step in range(1, 9):
        tracker.write(full_log(step))
        now[0] += 2.0
    assert shown_steps(stream.getvalue()) == [1, 4, 7]


def test_a_file_gets_plain_text_and_zero_is_refused():
    stream = io.StringIO()
    assert not ConsoleTracker(stream=stream).live
    with pytest.raises(BadInput, match="every=0"):
        ConsoleTracker(stream=stream, every=0)


@pytest.mark.parametrize("width", [30, 80, 200])
def test_live_panel_shows_the_numbers_and_gives_the_cursor_back(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    stream, before = io.StringIO(), (sys.stdout, sys.stderr)
    tracker = ConsoleTracker(100_000, stream=stream, live=True)
    tracker.write(full_log(1, evaluation={"mean_return": 41.5}))
    tracker.write(full_log(20))
    assert "\x1b[?25l" in stream.getvalue()  # the cursor is hidden while the panel lives
    tracker.close()
    assert stream.getvalue().rstrip().endswith("\x1b[?25h")
    assert (sys.stdout, sys.stderr) == before
    screen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    last = screen[screen.rfind("ROLLOUT STATISTICS") :]
    assert "40,960" in last
    assert "41%" in last
    assert "0:00:43 left" in last  # 59,040 steps at 1,365 per second
    assert "EVALUATION at 2,048" in last
    assert "41.50" in last


def test_time_left_follows_the_budget_that_ends_first():
    tracker = ConsoleTracker(None, 18, stream=io.StringIO())
    log = full_log(1, trainer={}, time={"steps_per_second": 1024.0})
    assert tracker._share(log) == 0.5
    assert tracker._seconds_left(log) == 2.0
    tracker.total_timesteps = 3072
    assert tracker._share(log) == pytest.approx(2 / 3)
    assert tracker._seconds_left(log) == 1.0


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_on_a_real_terminal_prints_pass_and_an_interrupt_restores_it():
    import pty

    script = textwrap.dedent("""
        import sys, warnings
        from drl.core.log import Log
        from drl.tracking.console import ConsoleTracker
        tracker = ConsoleTracker(100)
        assert tracker.live
        try:
            tracker.write(Log(10, 1, 1))
            print("a word from elsewhere")
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            if "forget" not in sys.argv:
                tracker.close()
                print("and after")
    """)
    for extra in ([], ["forget"]):  # `forget`: nobody calls close()
        master, slave = pty.openpty()
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
        process = subprocess.Popen([sys.executable, "-c", script, *extra], stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        output = b""
        while True:
            try:
                chunk = os.read(master, 4096)
            except OSError:  # Linux says EIO when the other side is closed
                break
            if not chunk:
                break
            output += chunk
        os.close(master)
        assert process.wait() == 0, output.decode()
        text = output.decode()
        lines = re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text))
        assert "a word from elsewhere" in [line.strip() for line in lines]  # not glued to the panel
        assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0
        assert extra or text.rstrip().endswith("and after")


def test_quiet_is_one_line_at_the_end():
    stream = io.StringIO()
    console = QuietConsole(stream)
    for step in (1, 2):
        console.write(full_log(step))
    assert stream.getvalue() == ""
    console.close()
    console.close()
    assert stream.getvalue() == (
        "4,096 steps · 18 episodes · mean_ep_return 32.00 · success_rate 0.5000 over the last 9 · 3.00 s\n"
    )
