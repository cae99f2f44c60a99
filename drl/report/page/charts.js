// The curves, drawn by uPlot: zoom, values under the pointer, smoothing, a log axis, the keyboard, a table of the values.
"use strict";

const COLORS = 7;
const DASHES = [[], [7, 3], [8, 3, 2, 3], [2, 3]];
const ROWS_OF_TABLE = 20;
const MOST_VALUES = 8; // shown at the pointer

let runs = [];
// The reader's choices; `chosen`: selected metrics. `pointer`: the last step under the pointer.
const view = { hidden: new Set(), metrics: new Set(), chosen: false, smoothing: 0, log: false, zoom: null, pointer: null };
const charts = new Map(); // metric → Chart

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colorOf = (i) => style(`--run-${i % COLORS}`);
const dashesOf = (i) => DASHES[Math.floor(i / COLORS) % DASHES.length];
const readable = () => runs.filter((run) => !run.problem);
const curveOf = (run, metric) => (run.curves && Object.hasOwn(run.curves, metric) ? run.curves[metric] : null);
const visible = (metric) =>
  runs
    .map((run, i) => ({ run, i, curve: curveOf(run, metric) }))
    .filter((each) => each.curve && !view.hidden.has(each.run.name));

// Exponential moving average with bias correction.
function smoothed(values, weight) {
  let sum = 0;
  let total = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

// Index of the value in ascending `xs` that is nearest to `x`.
function nearest(xs, x) {
  let low = 0;
  let high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - xs[low - 1] <= xs[low] - x ? low - 1 : low;
}

// Ticks of a log axis. uPlot's own never end for values below 1e-24.
function logTicks(low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const digits = last - first <= 2 ? [1, 2, 5] : [1];
  const step = Math.max(1, Math.ceil((last - first) / 7));
  const ticks = [];
  for (let power = first; power <= last; power += step) ticks.push(...digits.map((digit) => Number(`${digit}e${power}`)));
  return ticks.filter((value) => value >= low && value <= high);
}

class Chart {
  constructor(metric) {
    this.metric = metric;
    this.plot = null;
    this.drawnFor = "";
    this.note = element("p", { class: "faint", hidden: true });
    this.values = element("div", { class: "values", hidden: true });
    this.place = element(
      "div",
      {
        class: "plot",
        tabindex: "0",
        role: "application", // so that screen readers pass on the arrow keys
        "aria-roledescription": "chart",
        "aria-describedby": "help",
        keydown: (event) => this.onKey(event),
        blur: () => {
          this.values.hidden = true;
        },
      },
      this.values,
    );
    this.table = element("div");
    const summary = element("summary", {}, "Values as a table");
    this.details = element("details", { toggle: () => this.fillTable() }, summary, this.table);
    this.box = element(
      "article",
      { class: "chart", "data-metric": metric },
      element("h3", {}, metric),
      this.note,
      this.place,
      this.details,
    );
    new ResizeObserver(
      () => this.plot && this.width() > 0 && this.plot.setSize({ width: this.width(), height: 230 }),
    ).observe(this.place);
  }

  width() {
    return Math.floor(this.place.clientWidth);
  }

  // The drawn data of a run: { x, y } and the raw values or the range behind it.
  lines() {
    const positive = (values) => (this.log ? values.map((value) => (value > 0 ? value : null)) : values);
    return visible(this.metric).map(({ run, i, curve }) => {
      const line = { run, i, x: curve.x, y: positive(curve.y), raw: null, low: null, high: null };
      if (view.smoothing > 0) {
        line.raw = line.y;
        line.y = positive(smoothed(curve.y, view.smoothing));
      } else if (curve.low) {
        line.low = positive(curve.low);
        line.high = positive(curve.high);
      }
      return line;
    });
  }

  draw() {
    const all = visible(this.metric)
      .flatMap(({ curve }) => curve.y)
      .filter((value) => value !== null);
    const below = all.filter((value) => value <= 0).length;
    this.log = view.log && below < all.length;
    this.note.hidden = !(view.log && below);
    this.note.textContent = this.log
      ? `${below} of ${all.length} values are not above 0 and cannot be shown on a log axis.`
      : "No value is above 0, so the axis is not logarithmic.";
    this.current = this.lines();
    this.describe();
    this.fillTable();
    const kinds = this.current.map((line) => [line.i, line.raw !== null, line.low !== null]);
    const drawnFor = JSON.stringify([this.log, kinds]);
    if (!this.place.isConnected || this.width() === 0) return;
    if (this.plot && drawnFor === this.drawnFor) this.plot.setData(this.data());
    else this.build();
    this.drawnFor = drawnFor;
  }

  data() {
    const tables = this.current.map((line) => [
      line.x,
      ...(line.raw ? [line.raw] : []),
      ...(line.low ? [line.low, line.high] : []),
      line.y,
    ]);
    return tables.length ? uPlot.join(tables) : [[]];
  }

  build() {
    if (this.plot) this.plot.destroy();
    const series = [{}];
    const bands = [];
    for (const { i, raw, low } of this.current) {
      const stroke = () => colorOf(i);
      const thin = { spanGaps: true, points: { show: false }, width: 1 };
      if (raw) series.push({ ...thin, stroke: () => colorOf(i) + "4d" });
      if (low) {
        bands.push({ series: [series.length + 1, series.length], fill: () => colorOf(i) + "30" });
        series.push({ ...thin, stroke: "transparent" }, { ...thin, stroke: "transparent" });
      }
      series.push({
        spanGaps: true,
        width: 1.75,
        stroke,
        dash: dashesOf(i),
        points: { show: (u) => u.data[0].length < 30, size: 5, fill: stroke },
      });
    }
    const axis = {
      stroke: () => style("--faint"),
      grid: { stroke: () => style("--line"), width: 1 },
      ticks: { show: false },
      font: "12px system-ui, sans-serif",
    };
    const y = { ...axis, size: 58, values: (_, splits) => splits.map(tick) };
    if (this.log) {
      y.splits = (_, axis, low, high) => logTicks(low, high);
      y.filter = (_, splits) => splits;
    }
    // Otherwise the axis of a constant curve would reach to 100.
    const range = (_, low, high) => (low === high ? [low - 0.5, high + 0.5] : uPlot.rangeNum(low, high, 0.1, true));
    this.plot = new uPlot(
      {
        width: this.width(),
        height: 230,
        series,
        bands,
        legend: { show: false },
        scales: { x: { time: false, range: () => view.zoom || wholeRange() }, y: this.log ? { distr: 3 } : { range } },
        axes: [{ ...axis, size: 30, space: 60, values: (_, splits) => splits.map(tick) }, y],
        cursor: {
          y: false,
          points: { size: 6 },
          drag: { x: true, y: false, setScale: false },
          bind: { dblclick: () => () => zoomTo(null) },
        },
        hooks: {
          setSelect: [
            (u) => {
              if (u.select.width > 3)
                zoomTo([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
              u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            },
          ],
          setCursor: [(u) => this.showValues(u.cursor.left)],
        },
      },
      this.data(),
      this.place,
    );
  }

  // The value of every run at a step, as text.
  at(x) {
    return this.current.map((line) => {
      const k = nearest(line.x, x);
      const range =
        line.low && line.low[k] !== line.high[k] ? ` (${shown(line.low[k])} to ${shown(line.high[k])})` : "";
      return { line, x: line.x[k], text: shown(line.y[k]) + range };
    });
  }

  showValues(left) {
    const there = left >= 0 && this.current.length > 0;
    this.values.hidden = !there;
    if (!there) return;
    const x = this.plot.posToVal(left, "x");
    view.pointer = x;
    const found = this.at(x);
    const lines = found.slice(0, MOST_VALUES).map(({ line, text }) => {
      const dot = element("i");
      dot.style.background = colorOf(line.i);
      return element("div", {}, dot, this.current.length > 1 ? `${line.run.name}: ${text}` : text);
    });
    this.values.replaceChildren(
      element("div", { class: "faint" }, `step ${shown(Math.round(this.current.length === 1 ? found[0].x : x))}`),
      ...lines,
      ...(found.length > MOST_VALUES ? [`and ${found.length - MOST_VALUES} more`] : []),
    );
    const right = left > this.plot.over.clientWidth / 2;
    const offset = this.plot.over.offsetLeft;
    this.values.style.left = right ? "auto" : `${offset + left + 12}px`;
    this.values.style.right = right ? `${this.width() - offset - left + 12}px` : "auto";
    this.values.style.top = "4px";
  }

  onKey(event) {
    if (!this.plot || !this.current.length) return;
    const xs = this.plot.data[0];
    const { min: low, max: high } = this.plot.scales.x;
    const x = this.plot.cursor.left >= 0 ? this.plot.posToVal(this.plot.cursor.left, "x") : high;
    const half = (high - low) / 2;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const inside = xs.filter((each) => each >= low && each <= high);
      event.preventDefault();
      if (!inside.length) {
        byId("said").textContent = "No value here.";
        return;
      }
      const step = (event.key === "ArrowLeft" ? -1 : 1) * Math.max(1, Math.round(inside.length / 100));
      const to = inside[Math.min(Math.max(nearest(inside, x) + step, 0), inside.length - 1)];
      this.plot.setCursor({ left: this.plot.valToPos(to, "x"), top: 20 });
      byId("said").textContent =
        `step ${shown(to)}: ` +
        this.at(to)
          .map(({ line, text }) => `${line.run.name} ${text}`)
          .join(", ");
    } else if (event.key === "+" || event.key === "=")
      zoomTo([Math.max(low, x - half / 2), Math.min(high, x + half / 2)]);
    else if (event.key === "-") zoomTo([low - half, high + half]);
    else if (event.key === "0" || event.key === "Escape") zoomTo(null);
    else return;
    event.preventDefault();
  }

  describe() {
    const texts = this.current.map(({ run, y }) => {
      const known = y.filter((value) => value !== null);
      if (!known.length) return `${run.name}: nothing`;
      const [least, most] = [Math.min, Math.max].map((end) => known.reduce((a, b) => end(a, b)));
      const words = [
        `first ${shown(known[0])}`,
        `last ${shown(known.at(-1))}`,
        `from ${shown(least)} to ${shown(most)}`,
      ];
      return `${run.name}: ${words.join(", ")}`;
    });
    this.place.setAttribute(
      "aria-label",
      `${this.metric} over environment steps. ${texts.join(". ")}. Also as a table below.`,
    );
  }

  fillTable() {
    if (!this.details.open || !this.current.length) return this.table.replaceChildren();
    const steps = [...new Set(this.current.flatMap(({ x }) => x))]
      .sort((a, b) => a - b)
      .filter((x) => !view.zoom || (x >= view.zoom[0] && x <= view.zoom[1]));
    const count = Math.min(ROWS_OF_TABLE, steps.length);
    const chosen = Array.from(
      { length: count },
      (_, k) => steps[Math.round((k * (steps.length - 1)) / Math.max(count - 1, 1))],
    );
    const rows = chosen.map((x) => [
      shown(x),
      ...this.current.map((line) => {
        const past = x < line.x[0] || x > line.x.at(-1);
        return past ? "–" : shown(line.y[nearest(line.x, x)]);
      }),
    ]);
    renew(
      this.table,
      table(
        `${this.metric}, ${count} of ${steps.length} points`,
        ["steps", ...this.current.map(({ run }) => run.name)],
        rows,
        "numbers",
      ),
    );
  }
}

// The first and the last step of all curves: every chart has the same horizontal axis.
function wholeRange() {
  const curves = readable()
    .filter((run) => !view.hidden.has(run.name))
    .flatMap((run) => Object.values(run.curves));
  const first = curves.reduce((least, curve) => Math.min(least, curve.x[0]), Infinity);
  const last = curves.reduce((most, curve) => Math.max(most, curve.x.at(-1)), -Infinity);
  return first < last ? [first, last] : first === last ? [first - 1, last + 1] : [0, 1];
}

function zoomTo(range) {
  if (range) {
    const [first, last] = wholeRange();
    range = [Math.max(range[0], first), Math.min(range[1], last)];
    if (range[1] - range[0] < 1) return;
    if (range[0] === first && range[1] === last) range = null;
  }
  view.zoom = range;
  drawCharts();
}

// Halve or double the range around the last pointed step, for touch screens without double-click and drag.
function zoomBy(factor) {
  const [first, last] = wholeRange();
  const [low, high] = view.zoom || [first, last];
  const inside = view.pointer !== null && view.pointer >= low && view.pointer <= high;
  const middle = inside ? view.pointer : (low + high) / 2;
  const width = Math.min((high - low) * factor, last - first);
  const start = Math.min(Math.max(middle - width / 2, first), last - width);
  zoomTo([start, start + width]);
}

function drawCharts() {
  for (const [metric, chart] of charts) if (view.metrics.has(metric)) chart.draw();
}
