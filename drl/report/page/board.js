// The first page of `drl board`: the list of runs, with a filter, and a choice of runs to compare.
"use strict";

const MOST_RUNS = 100; // per page, as in the server
const chosen = new Set();
let runs = [];

const address = (names) => "/report?" + names.map((name) => "run=" + encodeURIComponent(name)).join("&");

function draw() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (run) => {
    const text = [run.name, run.algorithm, run.environment, run.status, `seed ${run.seed}`].join(" ").toLowerCase();
    return words.every((word) => text.includes(word)) && (run.training || !byId("training").checked);
  };
  const listed = runs.filter(fits);
  const rows = listed.map((run) => {
    const box = element("input", {
      type: "checkbox",
      "aria-label": `Compare ${run.name}`,
      "data-name": `box ${run.name}`,
      checked: chosen.has(run.name),
      change: (event) => {
        event.target.checked ? chosen.add(run.name) : chosen.delete(run.name);
        count();
      },
    });
    const link = element("a", { href: address([run.name]), "data-name": `link ${run.name}` }, run.name);
    const status = run.training ? element("b", { class: "training" }, "in progress") : shown(run.problem || run.status);
    return [
      element("span", { class: "row" }, box, link),
      status,
      shown(run.algorithm),
      shown(run.environment),
      shown(run.seed),
      shown(run.steps),
      shown(run.return),
      shown(run.changed),
    ];
  });
  const columns = ["run", "status", "algorithm", "environment", "seed", "steps", "mean return", "changed"];
  renew(byId("list"), table("Runs", columns, rows, "list"));
  sayState(listed.length === runs.length ? `${runs.length} runs` : `${listed.length} of ${runs.length} runs`);
  count();
}

function count() {
  byId("compare").disabled = chosen.size === 0 || chosen.size > MOST_RUNS;
  const number = chosen.size > MOST_RUNS ? `at most ${MOST_RUNS}` : chosen.size;
  byId("compare").textContent = chosen.size > 1 ? `Compare ${number} runs` : "Compare";
}

byId("filter").addEventListener("input", draw);
byId("training").addEventListener("change", draw);
byId("controls").addEventListener("submit", (event) => {
  event.preventDefault();
  location.href = address([...chosen]);
});
themeButton(() => {});
follow(pageData.source, 3, (answer) => {
  if (JSON.stringify(answer.runs) === JSON.stringify(runs) && runs.length) return;
  runs = answer.runs;
  const names = new Set(runs.map((run) => run.name));
  [...chosen].filter((name) => !names.has(name)).forEach((name) => chosen.delete(name)); // deleted in the meantime
  draw();
});
