// The page about one or more runs: the reader's choices, and new data from a board.
"use strict";

// Metrics shown by default.
const USUAL = [
  "return",
  "evaluation/mean_return",
  "recent/success_rate",
  "learn/loss",
  "learn/policy_loss",
  "learn/actor_loss",
  "learn/value_loss",
  "learn/critic_loss",
  "learn/entropy",
  "learn/approx_kl",
  "learn/explained_variance",
];
const SHOWN_AT_FIRST = 6;

function placeCharts() {
  const wanted = allMetrics().filter((metric) => view.metrics.has(metric));
  for (const metric of wanted) if (!charts.has(metric)) charts.set(metric, new Chart(metric));
  const boxes = wanted.map((metric) => charts.get(metric).box);
  const there = [...byId("charts").children];
  const same = boxes.length === there.length && boxes.every((box, k) => box === there[k]);
  if (!same) byId("charts").replaceChildren(...boxes); // a chart that stays where it is keeps the focus
  drawCharts();
}

// Default metrics first, then the others in the order of the runs.
function allMetrics() {
  const found = new Set(readable().flatMap((run) => Object.keys(run.curves)));
  return [...new Set([...USUAL.filter((name) => found.has(name)), ...found])];
}

const filtered = () => {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  return allMetrics().filter((name) => words.every((word) => name.toLowerCase().includes(word)));
};

function choice(name, checked, change, ...before) {
  return element(
    "label",
    {},
    element("input", { type: "checkbox", checked, change: (event) => change(event.target.checked) }),
    ...before,
    ` ${name}`,
  );
}

function choose(metric, on) {
  view.chosen = true;
  on ? view.metrics.add(metric) : view.metrics.delete(metric);
}

function drawMetricChoices() {
  byId("metrics").replaceChildren(
    ...filtered().map((name) =>
      choice(name, view.metrics.has(name), (on) => {
        choose(name, on);
        placeCharts();
      }),
    ),
  );
  const why = allMetrics().length ? "No metric matches the filter." : "Nothing is logged yet.";
  if (!filtered().length) byId("metrics").append(element("span", { class: "faint" }, why));
}

// Sample of a run's line beside its name.
function swatch(i) {
  const make = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  const line = make("line", { y1: 4, x2: 26, y2: 4, "stroke-width": 3, "stroke-dasharray": dashesOf(i).join(" ") });
  line.style.stroke = `var(--run-${i % COLORS})`;
  const svg = make("svg", { width: 26, height: 8, class: "swatch", "aria-hidden": "true" });
  svg.append(line);
  return svg;
}

function drawRunChoices() {
  byId("runs").hidden = runs.length < 2;
  const choiceOf = (run, i) => {
    const change = (on) => {
      on ? view.hidden.delete(run.name) : view.hidden.add(run.name);
      drawCharts();
    };
    return run.problem ? "" : choice(run.name, !view.hidden.has(run.name), change, swatch(i));
  };
  byId("runs").lastElementChild.replaceChildren(...runs.map(choiceOf));
}

const drawn = {}; // part → the data that it shows

// Redraw a part if its data has changed.
function drawIfNew(part, pick, draw) {
  const text = JSON.stringify(runs.map(pick));
  if (drawn[part] === text) return;
  drawn[part] = text;
  draw();
}

function show(answer) {
  runs = answer.runs;
  if (!view.chosen) {
    const usual = allMetrics().filter((name) => USUAL.includes(name));
    view.metrics = new Set((usual.length ? usual : allMetrics()).slice(0, SHOWN_AT_FIRST));
  }
  drawIfNew("overview", (run) => [run.name, run.facts, run.training, run.notes, run.problem], drawOverview);
  drawIfNew("runs", (run) => [run.name, run.problem], drawRunChoices);
  drawIfNew("offers", (run) => run.name, drawSettingsChoice);
  drawIfNew("metrics", (run) => Object.keys(run.curves || {}), drawMetricChoices);
  drawIfNew("curves", (run) => run.curves, placeCharts);
  drawIfNew("video", (run) => run.video, drawVideos);
  drawIfNew("evaluations", (run) => run.evaluations, drawEvaluations);
  drawIfNew("settings", (run) => run.settings, drawSettings);
  drawIfNew("versions", (run) => run.versions, drawVersions);
  drawIfNew("reproduce", (run) => [run.command, run.config], drawReproduction);
  const training = runs.filter((run) => run.training).length;
  sayState(training ? `${training} of ${runs.length} in progress` : "");
}

function setAll(on) {
  filtered().forEach((name) => choose(name, on));
  drawMetricChoices();
  placeCharts();
}

byId("controls").addEventListener("submit", (event) => event.preventDefault());
byId("filter").addEventListener("input", drawMetricChoices);
byId("show-all").addEventListener("click", () => setAll(true));
byId("show-none").addEventListener("click", () => setAll(false));
byId("smoothing").addEventListener("input", (event) => {
  view.smoothing = Number(event.target.value);
  byId("smoothing-value").textContent = event.target.value;
  drawCharts();
});
byId("log").addEventListener("change", (event) => {
  view.log = event.target.checked;
  drawCharts();
});
byId("zoom-in").addEventListener("click", () => zoomBy(0.5));
byId("zoom-out").addEventListener("click", () => zoomBy(2));
byId("reset").addEventListener("click", () => zoomTo(null));
byId("which").addEventListener("change", drawSettings);
themeButton(() => {
  for (const chart of charts.values()) if (chart.plot) chart.plot.redraw(false);
});
if (pageData.source) {
  byId("back").hidden = false;
  follow(pageData.source, 2, show);
} else show(pageData);
