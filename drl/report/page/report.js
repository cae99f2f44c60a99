// The page about one run or many: curves (drawn by uPlot), video, evaluations, settings, versions, reproduction.
"use strict";

const USUAL = [ // shown at first, as far as a run has them
  "return", "evaluation/mean_return", "recent/success_rate", "learn/loss", "learn/policy_loss", "learn/actor_loss",
  "learn/value_loss", "learn/critic_loss", "learn/entropy", "learn/approx_kl", "learn/explained_variance",
];
const SHOWN_AT_FIRST = 6;
const COLORS = 7, DASHES = [[], [7, 3], [8, 3, 2, 3], [2, 3]];
const ROWS_OF_TABLE = 20;

let runs = [];
const view = { hidden: new Set(), metrics: null, smoothing: 0, log: false, zoom: null };
const charts = new Map(); // metric → Chart

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colorOf = (i) => style(`--run-${i % COLORS}`);
const dashesOf = (i) => DASHES[Math.floor(i / COLORS) % DASHES.length];
const readable = () => runs.filter((run) => !run.problem);
const curveOf = (run, metric) => (run.curves && run.curves[metric]) || null;
const visible = (metric) =>
  runs.map((run, i) => ({ run, i, curve: curveOf(run, metric) })).filter((each) => each.curve && !view.hidden.has(each.run.name));

// An exponential moving average without the bias of its start.
function smoothed(values, weight) {
  let sum = 0, total = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

// The place in ascending `xs` that is nearest to `x`.
function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - xs[low - 1] <= xs[low] - x ? low - 1 : low;
}

class Chart {
  constructor(metric) {
    this.metric = metric;
    this.plot = null;
    this.drawnFor = "";
    this.note = element("p", { class: "faint", hidden: true });
    this.values = element("div", { class: "values", hidden: true });
    this.place = element("div", {
      class: "plot", tabindex: "0", role: "img", "aria-describedby": "help",
      keydown: (event) => this.onKey(event), blur: () => { this.values.hidden = true; },
    }, this.values);
    this.details = element("details", { toggle: () => this.fillTable() }, element("summary", {}, "Values as a table"));
    this.box = element("article", { class: "chart", "data-metric": metric },
      element("h3", {}, metric), this.note, this.place, this.details);
    new ResizeObserver(() => this.plot && this.width() > 0 && this.plot.setSize({ width: this.width(), height: 230 })).observe(this.place);
  }

  width() { return Math.floor(this.place.clientWidth); }

  // What is drawn of a run: { x, y } and the raw values, or the range, behind it.
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
    const all = visible(this.metric).flatMap(({ curve }) => curve.y).filter((value) => value !== null);
    const below = all.filter((value) => value <= 0).length;
    this.log = view.log && below < all.length;
    this.note.hidden = !(view.log && below);
    this.note.textContent = this.log ? `${below} of ${all.length} values are not above 0 and have no place on a log axis.`
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
    const tables = this.current.map((line) =>
      [line.x, ...(line.raw ? [line.raw] : []), ...(line.low ? [line.low, line.high] : []), line.y]);
    return tables.length ? uPlot.join(tables) : [[]];
  }

  build() {
    if (this.plot) this.plot.destroy();
    const series = [{}], bands = [];
    for (const { i, raw, low } of this.current) {
      const stroke = () => colorOf(i);
      const thin = { spanGaps: true, points: { show: false }, width: 1 };
      if (raw) series.push({ ...thin, stroke: () => colorOf(i) + "4d" });
      if (low) {
        bands.push({ series: [series.length + 1, series.length], fill: () => colorOf(i) + "30" });
        series.push({ ...thin, stroke: "transparent" }, { ...thin, stroke: "transparent" });
      }
      series.push({ spanGaps: true, width: 1.75, stroke, dash: dashesOf(i), points: { show: (u) => u.data[0].length < 30, size: 5, fill: stroke } });
    }
    const axis = { stroke: () => style("--faint"), grid: { stroke: () => style("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const y = { ...axis, size: 58, values: (_, splits) => splits.map(tick) };
    this.plot = new uPlot({
      width: this.width(), height: 230, series, bands, legend: { show: false },
      scales: { x: { time: false, range: () => view.zoom || wholeRange() }, y: { distr: this.log ? 3 : 1 } },
      axes: [{ ...axis, size: 30, space: 60, values: (_, splits) => splits.map(tick) }, y],
      cursor: { y: false, points: { size: 6 }, drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => zoomTo(null) } },
      hooks: {
        setSelect: [(u) => {
          if (u.select.width > 3) zoomTo([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
        setCursor: [(u) => this.showValues(u.cursor.left)],
      },
    }, this.data(), this.place);
  }

  // The value of every run at a step, as texts.
  at(x) {
    return this.current.map((line) => {
      const k = nearest(line.x, x);
      const range = line.low && line.low[k] !== line.high[k] ? ` (${shown(line.low[k])} to ${shown(line.high[k])})` : "";
      return { line, x: line.x[k], text: shown(line.y[k]) + range };
    });
  }

  showValues(left) {
    const there = left >= 0 && this.current.length > 0;
    this.values.hidden = !there;
    if (!there) return;
    const x = this.plot.posToVal(left, "x");
    const found = this.at(x);
    const lines = found.map(({ line, text }) => {
      const dot = element("i");
      dot.style.background = colorOf(line.i);
      return element("div", {}, dot, this.current.length > 1 ? `${line.run.name}: ${text}` : text);
    });
    this.values.replaceChildren(element("div", { class: "faint" }, `step ${shown(Math.round(this.current.length === 1 ? found[0].x : x))}`), ...lines);
    const right = left > this.plot.over.clientWidth / 2;
    const offset = this.plot.over.offsetLeft;
    this.values.style.left = right ? "auto" : `${offset + left + 12}px`;
    this.values.style.right = right ? `${this.width() - offset - left + 12}px` : "auto";
    this.values.style.top = "4px";
  }

  onKey(event) {
    if (!this.plot || !this.current.length) return;
    const xs = this.plot.data[0], [low, high] = [this.plot.scales.x.min, this.plot.scales.x.max];
    const x = this.plot.cursor.left >= 0 ? this.plot.posToVal(this.plot.cursor.left, "x") : high;
    const half = (high - low) / 2;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const inside = xs.filter((each) => each >= low && each <= high);
      const step = (event.key === "ArrowLeft" ? -1 : 1) * Math.max(1, Math.round(inside.length / 100));
      const to = inside[Math.min(Math.max(nearest(inside, x) + step, 0), inside.length - 1)];
      this.plot.setCursor({ left: this.plot.valToPos(to, "x"), top: 20 });
      byId("said").textContent = `step ${shown(to)}: ` + this.at(to).map(({ line, text }) => `${line.run.name} ${text}`).join(", ");
    } else if (event.key === "+" || event.key === "=") zoomTo([Math.max(low, x - half / 2), Math.min(high, x + half / 2)]);
    else if (event.key === "-") zoomTo([low - half, high + half]);
    else if (event.key === "0" || event.key === "Escape") zoomTo(null);
    else return;
    event.preventDefault();
  }

  describe() {
    const texts = this.current.map(({ run, y }) => {
      const known = y.filter((value) => value !== null);
      return known.length ? `${run.name}: first ${shown(known[0])}, last ${shown(known.at(-1))}, from ${shown(known.reduce((a, b) => Math.min(a, b)))} to ${shown(known.reduce((a, b) => Math.max(a, b)))}` : `${run.name}: nothing`;
    });
    this.place.setAttribute("aria-label", `${this.metric} over environment steps. ${texts.join(". ")}. Also as a table below.`);
  }

  fillTable() {
    while (this.details.children.length > 1) this.details.lastChild.remove();
    if (!this.details.open || !this.current.length) return;
    const steps = [...new Set(this.current.flatMap(({ x }) => x))].sort((a, b) => a - b)
      .filter((x) => !view.zoom || (x >= view.zoom[0] && x <= view.zoom[1]));
    const count = Math.min(ROWS_OF_TABLE, steps.length);
    const chosen = Array.from({ length: count }, (_, k) => steps[Math.round((k * (steps.length - 1)) / Math.max(count - 1, 1))]);
    const rows = chosen.map((x) => [shown(x), ...this.current.map((line) => {
      const past = x < line.x[0] || x > line.x.at(-1);
      return past ? "–" : shown(line.y[nearest(line.x, x)]);
    })]);
    this.details.append(table(`${this.metric}, ${count} of ${steps.length} points`, ["steps", ...this.current.map(({ run }) => run.name)], rows, "numbers"));
  }
}

// The first and the last step of all curves: every chart has the same horizontal axis.
function wholeRange() {
  const curves = readable().filter((run) => !view.hidden.has(run.name)).flatMap((run) => Object.values(run.curves));
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

// ── the choices ──────────────────────────────────────────────────────────────────────────────────────────────────

function drawCharts() {
  for (const [metric, chart] of charts) if (view.metrics.has(metric)) chart.draw();
}

function placeCharts() {
  const wanted = allMetrics().filter((metric) => view.metrics.has(metric));
  for (const metric of wanted) if (!charts.has(metric)) charts.set(metric, new Chart(metric));
  byId("charts").replaceChildren(...wanted.map((metric) => charts.get(metric).box));
  drawCharts();
}

// The usual ones first, then the others as the runs have them.
function allMetrics() {
  const found = new Set(readable().flatMap((run) => Object.keys(run.curves)));
  return [...new Set([...USUAL.filter((name) => found.has(name)), ...found])];
}

const filtered = () => {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  return allMetrics().filter((name) => words.every((word) => name.toLowerCase().includes(word)));
};

function choice(name, checked, change, ...before) {
  return element("label", {}, element("input", { type: "checkbox", checked, change: (event) => change(event.target.checked) }), ...before, ` ${name}`);
}

function drawMetricChoices() {
  byId("metrics").replaceChildren(...filtered().map((name) => choice(name, view.metrics.has(name), (on) => {
    on ? view.metrics.add(name) : view.metrics.delete(name);
    placeCharts();
  })));
  if (!filtered().length) byId("metrics").append(element("span", { class: "faint" }, allMetrics().length ? "No metric has this in its name." : "Nothing is logged yet."));
}

function swatch(i) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  for (const [name, value] of Object.entries({ width: 26, height: 8, class: "swatch", "aria-hidden": "true" })) svg.setAttribute(name, value);
  for (const [name, value] of Object.entries({ x1: 0, y1: 4, x2: 26, y2: 4, "stroke-width": 3, "stroke-dasharray": dashesOf(i).join(" ") })) line.setAttribute(name, value);
  line.style.stroke = `var(--run-${i % COLORS})`;
  svg.append(line);
  return svg;
}

function drawRunChoices() {
  byId("runs").hidden = runs.length < 2;
  byId("runs").lastElementChild.replaceChildren(...runs.map((run, i) => (run.problem ? "" : choice(run.name, !view.hidden.has(run.name), (on) => {
    on ? view.hidden.delete(run.name) : view.hidden.add(run.name);
    drawCharts();
  }, swatch(i)))));
}

// ── the tables ───────────────────────────────────────────────────────────────────────────────────────────────────

// Fill a section, and show it only if there is something in it.
function fill(id, ...children) {
  byId(id).replaceChildren(...children);
  byId(id).closest("section").hidden = children.length === 0;
}

function drawOverview() {
  const parts = [];
  const facts = [...new Set(readable().flatMap((run) => Object.keys(run.facts)))];
  const status = (run) => (run.training ? "in progress" : run.facts.status);
  const value = (run, name) => shown(name === "status" ? status(run) : run.facts[name]);
  if (runs.length === 1 && !runs[0].problem) {
    const cards = facts.map((name) => element("div", {}, element("dt", {}, name), element("dd", {}, value(runs[0], name))));
    parts.push(element("dl", { class: "cards" }, ...cards));
  } else parts.push(table("Runs", ["run", ...facts], readable().map((run) => [run.name, ...facts.map((name) => value(run, name))]), "list"));
  for (const run of runs) {
    for (const note of run.notes || []) parts.push(element("p", { class: "faint" }, runs.length > 1 ? `${run.name}: ${note}` : note));
    if (run.problem) parts.push(element("p", { class: "problem" }, `${run.name} cannot be read: ${run.problem}`));
  }
  fill("overview", ...parts);
  const thinned = readable().flatMap((run) => Object.values(run.curves)).filter((curve) => curve.each);
  byId("thinned").hidden = !thinned.length;
  const most = thinned.reduce((most, curve) => Math.max(most, curve.each), 0);
  byId("thinned").textContent = `Long curves are thinned: a point is the mean of up to ${shown(most)} neighboring values, and the band behind it reaches from the smallest to the largest of them. metrics.jsonl has all values.`;
}

function drawVideos() {
  const found = runs.filter((run) => run.video);
  const figures = found.map((run) => element("figure", {},
    element("video", { controls: true, loop: true, playsinline: true, preload: "auto", src: run.video, "aria-label": `Video of ${run.name}` }),
    element("figcaption", {}, run.name)));
  fill("video", ...(figures.length ? [element("div", { class: "videos" }, ...figures)] : []));
}

function drawEvaluations() {
  const parts = [], evaluated = readable().filter((run) => run.evaluations.rows.length);
  const plain = (names) => names.map((name) => name.replaceAll("_", " "));
  if (runs.length > 1 && evaluated.length) { // the last one of each run, side by side
    const columns = [...new Set(evaluated.flatMap((run) => run.evaluations.columns))];
    const last = ({ evaluations }, name) => evaluations.rows.at(-1)[evaluations.columns.indexOf(name) + 1];
    const rows = evaluated.map((run) => [run.name, shown(run.evaluations.rows.at(-1)[0]), ...columns.map((name) => shown(run.evaluations.columns.includes(name) ? last(run, name) : null))]);
    parts.push(table("The last evaluation of each run", ["run", "steps", ...plain(columns)], rows, "list numbers"));
  }
  for (const run of evaluated) {
    const { columns, rows, left_out: leftOut } = run.evaluations;
    const inner = [table(`Evaluations of ${run.name}`, ["steps", ...plain(columns)], rows.map((row) => row.map(shown)), "numbers")];
    if (leftOut) inner.push(element("p", { class: "faint" }, `${shown(leftOut)} earlier evaluations are in metrics.jsonl.`));
    parts.push(...(runs.length > 1 ? [element("details", {}, element("summary", {}, `All of ${run.name}`), ...inner)] : inner));
  }
  fill("evaluations", ...parts);
}

const SHOW = { changed: "what differs from the preset", between: "what differs between the runs", all: "everything" };

function drawSettings() {
  const with_ = readable().filter((run) => Object.keys(run.settings).length);
  const names = [...new Set(with_.flatMap((run) => Object.keys(run.settings)))];
  const changed = (run, name) => run.base && name in run.settings && run.settings[name] !== run.base.settings[name];
  const chosen = {
    all: names,
    changed: names.filter((name) => with_.some((run) => changed(run, name))),
    between: names.filter((name) => new Set(with_.map((run) => run.settings[name])).size > 1),
  }[byId("which").value];
  if (!with_.length) return fill("settings");
  const one = with_.length === 1 && with_[0].base; // what it is compared with has a column
  const cell = (run, name) => {
    const value = element("span", { class: changed(run, name) ? "changed" : "" }, run.settings[name] ?? "–");
    if (changed(run, name) && !one) value.append(element("small", {}, `not ${run.base.settings[name] ?? "–"}`));
    return value;
  };
  const columns = one ? [one.name, "this run"] : with_.map((run) => run.name);
  const rows = chosen.map((name) => [name, ...(one ? [one.settings[name] ?? "–"] : []), ...with_.map((run) => cell(run, name))]);
  const bases = new Set(with_.map((run) => (run.base ? `the ${run.base.name}` : "nothing, as the algorithm is not one of drl's own")));
  fill("settings", element("p", { class: "faint" }, `Compared with ${[...bases].join("; ")}. What differs is in bold.`),
    chosen.length ? table("Settings", ["setting", ...columns], rows) : element("p", {}, "Nothing differs."));
}

function drawSettingsChoice() {
  const offered = runs.length > 1 ? ["between", "changed", "all"] : ["changed", "all"];
  byId("which").replaceChildren(...offered.map((value) => element("option", { value }, SHOW[value])));
}

function drawVersions() {
  const names = [...new Set(readable().flatMap((run) => Object.keys(run.versions)))];
  const rows = names.map((name) => [name, ...readable().map((run) => shown(run.versions[name]))]);
  fill("versions", ...(names.length ? [table("Versions", ["", ...readable().map((run) => (runs.length > 1 ? run.name : "version"))], rows)] : []));
}

function drawReproduction() {
  const parts = [];
  for (const run of readable()) {
    const inner = [];
    if (run.command) inner.push(element("p", {}, "What was typed:"), element("pre", { tabindex: "0" }, run.command));
    if (run.config) inner.push(
      element("p", {}, "With exactly these settings, whatever presets say by then (the same versions and machine give the same numbers):"),
      element("pre", { tabindex: "0" }, `drl train ${run.algorithm} --no-preset --config config.yaml`),
      element("details", {}, element("summary", {}, "config.yaml"), element("pre", { tabindex: "0" }, run.config)));
    if (!inner.length) continue;
    parts.push(...(runs.length > 1 ? [element("details", {}, element("summary", {}, run.name), ...inner)] : inner));
  }
  fill("reproduce", ...parts);
}

// ── the whole page ───────────────────────────────────────────────────────────────────────────────────────────────

const drawn = {}; // part → the data that it shows
function drawIfNew(part, data, draw) {
  const text = JSON.stringify(data);
  if (drawn[part] === text) return;
  drawn[part] = text;
  draw();
}

function show(answer) {
  runs = answer.runs;
  if (view.metrics === null && allMetrics().length) {
    const usual = allMetrics().filter((name) => USUAL.includes(name));
    view.metrics = new Set((usual.length ? usual : allMetrics()).slice(0, SHOWN_AT_FIRST));
  }
  const has = view.metrics !== null;
  drawIfNew("overview", runs.map((run) => [run.name, run.facts, run.training, run.notes, run.problem]), drawOverview);
  drawIfNew("runs", runs.map((run) => [run.name, run.problem]), () => { drawRunChoices(); drawSettingsChoice(); });
  if (has) drawIfNew("metrics", allMetrics(), drawMetricChoices);
  if (has) drawIfNew("curves", runs.map((run) => run.curves), placeCharts);
  drawIfNew("video", runs.map((run) => run.video), drawVideos);
  drawIfNew("evaluations", runs.map((run) => run.evaluations), drawEvaluations);
  drawIfNew("settings", runs.map((run) => run.settings), drawSettings);
  drawIfNew("versions", runs.map((run) => run.versions), drawVersions);
  drawIfNew("reproduce", runs.map((run) => [run.command, run.config]), drawReproduction);
  if (!has) byId("metrics").replaceChildren(element("span", { class: "faint" }, "Nothing is logged yet."));
  const training = runs.filter((run) => run.training).length;
  byId("state").textContent = training ? `${training} of ${runs.length} in progress` : "";
}

function setAll(on) {
  for (const name of filtered()) on ? view.metrics.add(name) : view.metrics.delete(name);
  drawMetricChoices();
  placeCharts();
}

byId("controls").addEventListener("submit", (event) => event.preventDefault());
byId("filter").addEventListener("input", () => view.metrics && drawMetricChoices());
byId("show-all").addEventListener("click", () => view.metrics && setAll(true));
byId("show-none").addEventListener("click", () => view.metrics && setAll(false));
byId("smoothing").addEventListener("input", (event) => {
  view.smoothing = Number(event.target.value);
  byId("smoothing-value").textContent = event.target.value;
  drawCharts();
});
byId("log").addEventListener("change", (event) => { view.log = event.target.checked; drawCharts(); });
byId("reset").addEventListener("click", () => zoomTo(null));
byId("which").addEventListener("change", drawSettings);
themeButton(() => { for (const chart of charts.values()) if (chart.plot) chart.plot.redraw(false); });
if (pageData.source) {
  byId("back").hidden = false;
  follow(pageData.source, 2, show);
} else show(pageData);
