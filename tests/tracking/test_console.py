"""The blocks, and the two ways they reach a stream."""

import io
import os
import re
import subprocess
import sys
import textwrap
import time

import pytest

from drl.core.errors import BadInput
from drl.core.log import Log
from drl.tracking.console import ConsoleTracker, QuietConsole, StartupProgress, blocks, plain_text


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


def test_a_ppo_log_fills_the_blocks_in_order():
    assert fields(blocks(full_log(), times={"total_time": 5.0})) == {
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
            "total_time",
        ],
        "LEARNING": ["entropy", "learning_rate"],
    }


def test_what_one_debugs_with_has_one_order_in_both_engines():
    """Compiled programs report names in alphabetical order; names that nobody knows follow."""
    learned = {"policy_loss": -0.1, "value_loss": 2.0, "entropy": 0.6, "explained_variance": 0.5, "clip_fraction": 0.1}
    learned |= {"grad_norm": 1.0, "z_own": 1.0, "b_own": 1.0, "approx_kl": 0.01}
    settings = {"learning_rate": 3e-4, "epsilon": 0.5, "gradient_steps": 40}
    shown = [
        fields(blocks(Log(8, 0, 1, learn=dict(names), trainer=settings)))["LEARNING"]
        for names in (learned.items(), sorted(learned.items()))
    ]
    assert shown[0] == shown[1] == [
        "policy_loss", "value_loss", "entropy", "explained_variance", "clip_fraction", "grad_norm", "learning_rate",
        "epsilon", "b_own", "z_own", "gradient_steps",
    ]  # fmt: skip


def test_fields_that_do_not_apply_are_left_out():
    found = blocks(Log(8, 0, 1, rollout={"mean_reward": 0.0, "rollout_len": 8.0}, learn={"loss": 0.5}), 100)
    assert fields(found) == {
        "ROLLOUT STATISTICS": ["mean_reward", "rollout_len"],
        "TRAINER STATISTICS": ["episodes_count", "timesteps_count", "rollouts_count", "total_timesteps"],
        "LEARNING": ["loss"],
    }


def test_an_evaluation_is_a_block():
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
    return [int(n.replace(",", "")) // 2048 for n in re.findall(r"^.*step ([\d,]+) ", text, re.MULTILINE)]


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when a test says so: `clock[0] += 1`."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_every_k_shows_the_first_each_kth_evaluated_and_last():
    stream = io.StringIO()
    tracker = ConsoleTracker(stream=stream, every=4)
    for step in range(1, 12):
        tracker.write(full_log(step, evaluation={"mean_return": 1.0} if step == 6 else {}))
    assert shown_steps(stream.getvalue()) == [1, 4, 6, 8]
    tracker.close()
    tracker.close()
    assert shown_steps(stream.getvalue()) == [1, 4, 6, 8]
    assert re.findall(r"rollouts_count: +(\d+)", stream.getvalue()) == ["11"]  # the last log, in blocks, once


@pytest.mark.parametrize(("every", "shown"), [(1, [1, 2, 3, 4, 5]), (2, [2, 3, 4, 5]), (9, [3, 5])])
def test_blocks_of_every_kth_step_evaluated_and_last_once_each(every, shown):
    """The three blocks of the fifth document after every rollout, in a file; the third log has an evaluation."""
    stream = io.StringIO()
    tracker = ConsoleTracker(stream=stream, blocks_every=every)
    for step in range(1, 6):
        tracker.write(full_log(step, evaluation={"mean_return": 1.0} if step == 3 else {}))
    tracker.close()
    tracker.close()
    text = stream.getvalue()
    assert [int(number) for number in re.findall(r"rollouts_count: +(\d+)", text)] == shown
    assert text.count("ROLLOUT STATISTICS\n") == text.count("RECENT 9 EPISODES\n") == len(shown)
    assert shown_steps(text) == []  # no lines in between
    assert all(line.startswith(("=", "-", " ")) or line.isupper() for line in text.splitlines() if line)


def test_the_clock_throttles(clock):
    stream = io.StringIO()
    tracker = ConsoleTracker(stream=stream, seconds=5.0)
    for step in range(1, 9):
        tracker.write(full_log(step))
        clock[0] += 2.0
    assert shown_steps(stream.getvalue()) == [1, 4, 7]


def test_a_line_in_a_file_has_the_share_and_the_time_left(clock):
    stream = io.StringIO()
    tracker = ConsoleTracker(100_000, stream=stream, every=1)
    tracker.write(full_log(1))
    clock[0] += 6.0
    tracker.write(full_log(5, evaluation={"mean_return": 40.0}))
    first, second = stream.getvalue().splitlines()
    assert first == "  2%  0:01:12 left  step 2,048 · 9 episodes · mean_ep_return 32 · entropy 0.69 · approx_kl 0.0123"
    assert second.startswith(" 10%  0:01:06 left  step 10,240 · ")  # 7.5 s for a tenth, the evaluation included
    assert second.endswith(" · evaluation mean_return 40")


def test_a_resumed_run_counts_its_own_speed_and_all_of_its_time(clock):
    """It begins at 88,064 of 102,400 steps. Earlier processes were slow: 1,000 seconds until here, 1.5 of them ours."""
    stream = io.StringIO()
    tracker = ConsoleTracker(None, stream=stream, every=1)
    log = full_log(44, time={"time_elapsed": 1.5, "steps_per_second": 2048 * 44 / 1000})
    log.trainer["total_timesteps"] = 102_400
    tracker.write(log)
    assert stream.getvalue().startswith(" 88%  0:00:09 left  step 90,112")  # six more rollouts of 1.5 s
    tracker.close()
    assert re.search(r"total_time: +0:16:40\n +time_left: +0:00:09\n", stream.getvalue())


def test_a_file_gets_plain_text_and_zero_is_refused():
    stream = io.StringIO()
    assert not ConsoleTracker(stream=stream).live
    with pytest.raises(BadInput, match="every=0"):
        ConsoleTracker(stream=stream, every=0)
    with pytest.raises(BadInput, match="blocks_every=0"):
        ConsoleTracker(stream=stream, blocks_every=0)
    with pytest.raises(BadInput, match="every=1 and blocks_every=2; give one of them"):
        ConsoleTracker(stream=stream, every=1, blocks_every=2)


@pytest.mark.parametrize(
    ("columns", "rows", "compact"),
    [(30, 50, True), (99, 50, True), (200, 39, True), (100, 40, False), (200, 50, False)],
)
def test_live_panel_shows_the_numbers_and_gives_the_cursor_back(monkeypatch, clock, columns, rows, compact):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(rows))
    stream, before = io.StringIO(), (sys.stdout, sys.stderr)
    tracker = ConsoleTracker(100_000, stream=stream, live=True, label="seed 0 of 8")
    tracker.write(full_log(1, evaluation={"mean_return": 41.5}))
    clock[0] += 28.5
    tracker.write(full_log(20))
    assert "\x1b[?25l" in stream.getvalue()  # the cursor is hidden while the panel lives
    tracker.close()
    assert stream.getvalue().rstrip().endswith("\x1b[?25h")
    assert (sys.stdout, sys.stderr) == before
    screen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    last = screen[screen.rfind("RECENT 9" if compact else "ROLLOUT STATISTICS") :]
    assert ("ROLLOUT STATISTICS" in screen) is ("─" in screen) is not compact
    assert len(last.splitlines()) <= (rows if compact else 37)
    joined = " ".join(last.split())
    for text in (
        ("40,960", "41%", "0:00:43 left", "0:00:30 so far", "41.50", "seed 0 of 8") if columns > 30 else ("40,960",)
    ):
        assert text in joined  # 59,040 steps at 1,365 per second
    assert "EVALUATION at 2,048" in joined


def test_a_log_without_an_update_keeps_the_numbers_of_the_latest():
    stream = io.StringIO()
    tracker = ConsoleTracker(stream=stream)
    tracker.write(Log(8, 0, 1, learn={"loss": 0.25}, trainer={"learning_rate": 0.5, "epsilon": 0.9}))
    tracker.write(Log(16, 0, 2, trainer={"epsilon": 0.8}))
    tracker.close()
    shown = dict(re.findall(r"(\w+): +(\S+)", stream.getvalue()))
    assert (
        shown.items()
        >= {"loss": "0.2500", "learning_rate": "0.5000", "epsilon": "0.8000", "timesteps_count": "16"}.items()
    )


def test_the_share_follows_the_budget_that_ends_first(clock):
    stream = io.StringIO()
    for steps in (None, 3072):
        tracker = ConsoleTracker(steps, 18, stream=stream, every=1)
        tracker.write(full_log(1, trainer={}, rollout={"rollout_len": 2048}, time={"time_elapsed": 2.0}))
    assert [line[:4] for line in stream.getvalue().splitlines()] == [" 50%", " 67%"]


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


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (io.StringIO(), r"before the first log, 0:00:00: step 12\n"),
        (Terminal(), r"(\r\x1b\[Kbefore the first log, 0:00:00: step 12)+\r\x1b\[K"),
    ],
)
def test_what_happens_before_the_first_log(stream, expected, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    waiting = StartupProgress(lambda: "step 12", stream, seconds=0.05)
    while not stream.getvalue():
        time.sleep(0.01)
    waiting.end()
    waiting.end()
    written = stream.getvalue()
    assert re.fullmatch(expected, written)
    time.sleep(0.1)
    assert stream.getvalue() == written  # nothing after its end


def test_a_first_log_that_comes_at_once_is_not_waited_for():
    stream = Terminal()
    StartupProgress(lambda: "step 12", stream).end()
    assert stream.getvalue() == ""


def test_a_closed_stream_does_not_end_a_run():
    stream = io.StringIO()
    waiting = StartupProgress(lambda: "step 12", stream, seconds=0.01)
    stream.close()
    time.sleep(0.05)
    waiting.end()


def test_one_episode_is_not_many():
    stream = io.StringIO()
    console = QuietConsole(stream)
    console.write(full_log(episodes=1, env_steps=1))
    console.close()
    assert stream.getvalue().startswith("1 step · 1 episode · ")
