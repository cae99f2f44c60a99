"""The pages of `drl report` and `drl board` in a real browser: nothing on the console, curves drawn, controls work."""

import numpy as np
import pytest
from written_runs import append_rows, metric_row, write_run

from drl.report.report_page import write_report
from drl.tracking.video import write_video

pytestmark = pytest.mark.full

PIXELS = """() => [...document.querySelectorAll("canvas")].map((canvas) => {
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const data = copy.getImageData(0, 0, canvas.width, canvas.height).data;
  const colors = new Set();
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200) colors.add(data.slice(i, i + 3).join());
  return [...colors];
})"""  # the opaque colors of each chart
BLUE, ORANGE = "0,114,178", "213,94,0"  # of the first and the second run


@pytest.fixture
def page_of(chromium):
    """Opens a page; at the end it must have had no complaint."""
    opened = []

    def open_page(address, **options):
        opened.append(chromium(address if isinstance(address, str) else address.as_uri(), **options))
        return opened[-1]

    yield open_page
    complaints = [page.complaints for page in opened]
    for page in opened:
        page.close()
    assert complaints == [[]] * len(opened)


def wide(page):
    """How many pixels the page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


def wait_until(page, script):
    """Wait for a script to be true; Playwright's own way would need a policy that lets the page evaluate texts."""
    for _ in range(500):
        if page.evaluate(script):
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"not within ten seconds: {script}")


def charts(page):
    return page.locator(".chart h3").all_text_contents()


def test_curves_video_and_tables_of_one_run(run, page_of):
    frames = np.zeros((12, 32, 48, 3), np.uint8)
    frames[:, :, :24] = 200
    write_video(run / "videos" / "final_agent.mp4", frames, fps=10)
    page = page_of(write_report([run]))
    assert charts(page)[:2] == ["return", "evaluation/mean_return"]
    drawn = page.evaluate(PIXELS)
    assert len(drawn) == len(charts(page)) == 5
    assert all(BLUE in colors for colors in drawn)
    wait_until(page, "document.querySelector('video').readyState >= 2")
    page.evaluate("document.querySelector('video').play()")
    wait_until(page, "document.querySelector('video').currentTime > 0.1")
    for words in ("487.5", "drl train ppo --env CartPole-v1", "9.8.7", "final agent", "preset of ppo for CartPole-v1"):
        assert page.get_by_text(words, exact=True).first.is_visible(), words
    assert page.locator("#settings tbody tr").count() < 15
    page.select_option("#which", "all")
    assert page.locator("#settings tbody tr").count() > 50
    assert not page.locator("#runs").is_visible()


def test_metrics_are_filtered_and_chosen(run, page_of):
    page = page_of(write_report([run]))
    page.get_by_label("Filter").fill("LOSS value")
    assert page.locator("#metrics label").all_text_contents() == [" learn/value_loss"]
    page.get_by_role("button", name="Hide all of these").click()
    assert "learn/value_loss" not in charts(page)
    page.get_by_label("learn/value_loss").check()
    assert "learn/value_loss" in charts(page)
    page.get_by_label("Filter").fill("nothing like this")
    assert "No metric" in page.locator("#metrics").text_content()
    page.get_by_label("Filter").fill("")
    page.get_by_role("button", name="Show all of these").click()
    assert len(charts(page)) == 9
    assert all(BLUE in colors for colors in page.evaluate(PIXELS))


def test_smoothing_and_the_log_axis_change_what_is_drawn(run, page_of):
    page = page_of(write_report([run]))
    chart = page.locator("[data-metric='return']")

    def last_of_table():
        return float(chart.locator("tbody tr").last.locator("td").first.text_content())

    chart.locator("summary").click()
    assert last_of_table() == 400  # the table beside the curve
    before = chart.locator("canvas").screenshot()
    page.get_by_label("Smoothing").fill("0.9")
    assert page.locator("#smoothing-value").text_content() == "0.9"
    assert last_of_table() < 380  # a mean of what came before
    assert chart.locator("canvas").screenshot() != before
    page.get_by_label("Smoothing").fill("0")
    assert last_of_table() == 400

    loss = page.locator("[data-metric='learn/value_loss']")
    linear = loss.locator("canvas").screenshot()
    page.get_by_label("Log axis").check()
    assert loss.locator("canvas").screenshot() != linear
    assert not loss.locator("p").is_visible()
    mixed = page.locator("[data-metric='learn/policy_loss'] p")
    assert mixed.text_content().startswith("20 of 40 values are not above 0")
    page.get_by_label("Log axis").uncheck()
    assert not mixed.is_visible()


def test_zooming_with_the_mouse_and_the_keyboard(run, page_of):
    page = page_of(write_report([run]))
    chart = page.locator("[data-metric='return']")
    chart.locator("summary").click()

    def steps():
        found = chart.locator("tbody th").all_text_contents()
        return int(found[0].replace(",", "")), int(found[-1].replace(",", ""))

    whole = steps()
    assert whole == (50, 4000)
    box = chart.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
    assert "step 2," in chart.locator(".values").text_content()  # hovering shows the value there
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 60, steps=3)
    page.mouse.up()
    first, last = steps()
    assert 1900 < first < 2200
    assert 2900 < last < 3100
    page.get_by_role("button", name="Reset zoom").click()
    assert steps() == whole
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 50)
    page.get_by_role("button", name="Zoom in").click()  # around the place that was pointed at
    assert 1900 < steps()[0] < 2200
    assert steps()[1] == whole[1]
    page.get_by_role("button", name="Zoom out").click()
    assert steps() == whole
    chart.locator(".plot").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#said").text_content().startswith("step 3,")
    page.keyboard.press("+")
    assert steps()[0] > 1900
    page.keyboard.press("0")
    assert steps() == whole


@pytest.mark.parametrize(("least", "most"), [(1e-30, 1.0), (2e-45, 1.0), (1e-40, 1e-35), (0.3, 0.9), (5.0, 5.0)])
def test_a_log_axis_of_any_range_is_drawn(tmp_path, page_of, least, most):
    run = write_run(tmp_path / "results" / "first" / "run-1", rows=0)
    append_rows(run, [metric_row(step) | {"learn/tiny": least if step % 2 else most} for step in range(1, 40)])
    page = page_of(write_report([run]))
    page.get_by_label("Filter").fill("learn/tiny")
    page.get_by_role("button", name="Show all of these").click()
    page.get_by_label("Log axis").check()
    chart = charts(page).index("learn/tiny")
    assert BLUE in page.evaluate(PIXELS)[chart]


def test_many_runs_are_compared(run, tmp_path, page_of):
    second = write_run(tmp_path / "results" / "second" / "run-2", rows=60, settings={"learning_rate": 0.5})
    page = page_of(write_report([run, second]))
    assert {BLUE, ORANGE} <= set(page.evaluate(PIXELS)[0])
    assert page.locator("#settings tbody th").all_text_contents() == ["learning_rate"]  # what differs between them
    assert "aria-label" in page.locator(".plot").first.evaluate("(plot) => plot.getAttributeNames()")
    page.get_by_role("checkbox", name="first/run-1").uncheck()
    assert not any(BLUE in colors for colors in page.evaluate(PIXELS))
    assert "run-1" not in page.locator(".plot").first.get_attribute("aria-label")


def test_colors_follow_the_system_and_the_button(run, page_of):
    page = page_of(write_report([run]), scheme="dark")

    def background():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    assert background() == "rgb(23, 25, 28)"
    dark = page.evaluate(PIXELS)[0]
    page.get_by_role("button", name="Use light colors").click()
    assert background() == "rgb(255, 255, 255)"
    wait_until(page, f"({PIXELS})()[0].includes('{BLUE}')")
    assert BLUE not in dark
    page.emulate_media(color_scheme="light")
    assert background() == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_a_phone_and_a_desktop(tmp_path, page_of, width):
    runs = [write_run(tmp_path / ("a-long-name-of-an-experiment_" * 3) / f"run-{k}") for k in range(3)]
    for some in (runs[:1], runs):
        page = page_of(write_report(some), width=width)
        page.get_by_role("button", name="Show all of these").click()
        page.locator("summary").first.click()
        page.select_option("#which", "all")
        assert wide(page) == 0


def test_the_keyboard_reaches_every_control_in_order(run, page_of):
    page = page_of(write_report([run]))
    reached = []
    for _ in range(24):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("(e => e.id || e.className || e.tagName)(document.activeElement)"))
    wanted = ["skip", "theme", "filter", "show-all", "show-none", "smoothing", "log", "zoom-in", "zoom-out", "reset"]
    wanted.append("plot")
    assert [name for name in dict.fromkeys(reached) if name in wanted] == wanted
    unnamed = """() => [...document.querySelectorAll("input, select, button, video, [role=application], [role=region]")]
      .filter((e) => !e.labels?.length && !e.getAttribute("aria-label") && !e.textContent.trim()).length"""
    assert page.evaluate(unnamed) == 0


def test_a_hostile_run_is_only_text(tmp_path, page_of):
    evil = "</script><img src=x onerror=window.hit=1><script>window.hit=1</script>"
    run = write_run(
        tmp_path / "<img src=x onerror=window.hit=1>" / "run", settings={evil: evil}, status=evil, command=[evil]
    )
    append_rows(run, [metric_row(41) | {evil: 1.0, "__proto__": 2.0, f"evaluation/{evil}": 3.0}])
    page = page_of(write_report([run]))
    page.get_by_role("button", name="Show all of these").click()
    page.select_option("#which", "all")
    assert evil in charts(page)
    assert page.evaluate("window.hit") is None
    assert page.locator("img").count() == 0


def test_the_board_lists_filters_compares_and_updates(run, board, page_of):
    other = write_run(run.parents[1] / "second" / "run-2", rows=5, settings={"env": "Acrobot-v1"})
    page = page_of(f"http://127.0.0.1:{board}/")
    page.wait_for_selector("#list tbody tr:nth-child(2)")
    page.get_by_label("Filter").fill("acrobot")
    assert page.locator("#list a").all_text_contents() == ["second/run-2"]
    page.get_by_label("Filter").fill("")
    page.get_by_label("Compare first/run-1").check()
    page.get_by_label("Compare second/run-2").check()
    page.get_by_role("button", name="Compare 2 runs").click()
    page.wait_for_selector("canvas")
    assert page.locator("#overview tbody th").all_text_contents() == ["first/run-1", "second/run-2"]

    page.goto(f"http://127.0.0.1:{board}/report?run=second/run-2")
    page.get_by_text("500", exact=True).first.wait_for()
    page.get_by_label("Smoothing").fill("0.5")
    curve = page.locator("[data-metric='return'] .plot")
    curve.focus()
    append_rows(other, [metric_row(step) for step in range(6, 10)])
    page.get_by_text("900", exact=True).first.wait_for()
    assert curve.evaluate("(plot) => plot === document.activeElement")  # what was chosen stays
    assert page.get_by_label("Smoothing").input_value() == "0.5"
    assert "evaluation/mean_return" not in charts(page)
    before = curve.get_attribute("aria-label")
    append_rows(other, [metric_row(step) for step in range(10, 51)])
    page.get_by_text("5,000", exact=True).first.wait_for()
    assert "evaluation/mean_return" in charts(page)
    assert curve.get_attribute("aria-label") != before
    assert wide(page) == 0


def test_what_a_reader_opened_scrolled_or_focused_stays_so(run, board, page_of):
    for k in range(40):
        write_run(run.parents[1] / "second" / f"run-{k}", rows=5)
    other = run.parents[1] / "second" / "run-0"
    page = page_of(f"http://127.0.0.1:{board}/report?run=first/run-1&run=second/run-0")
    page.get_by_text("All of first/run-1").click()
    page.locator("[data-metric='return'] summary").click()
    values = page.locator("[data-metric='return'] .wide")
    values.focus()
    append_rows(other, [metric_row(step, 5) for step in range(6, 21)])
    page.get_by_text("2,000", exact=True).first.wait_for()
    assert values.evaluate("(each) => each === document.activeElement")
    assert page.locator("details:has-text('All of first/run-1')").get_attribute("open") is not None

    page.goto(f"http://127.0.0.1:{board}/")
    page.wait_for_selector("#list tbody tr:nth-child(41)")
    place = page.locator("#list .wide")
    place.evaluate("(each) => { each.style.maxHeight = '200px'; each.style.overflow = 'auto'; }")
    link = page.get_by_role("link", name="first/run-1")
    link.focus()
    row = page.locator("#list tbody tr", has=link)
    append_rows(run, [metric_row(41)])
    row.get_by_text("4,100").wait_for()
    assert link.evaluate("(each) => each === document.activeElement")
