// Everything about the runs beside their curves: overview, videos, evaluations, settings, versions, reproduction.
"use strict";

// Fill a section, and hide it if it is empty.
function fill(id, ...children) {
  renew(byId(id), ...children);
  byId(id).closest("section").hidden = children.length === 0;
}

function drawOverview() {
  const parts = [];
  const facts = [...new Set(readable().flatMap((run) => Object.keys(run.facts)))];
  const status = (run) => (run.training ? "in progress" : run.facts.status);
  const value = (run, name) => shown(name === "status" ? status(run) : run.facts[name]);
  if (runs.length === 1 && !runs[0].problem) {
    const cards = facts.map((name) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value(runs[0], name))),
    );
    parts.push(element("dl", { class: "cards" }, ...cards));
  } else
    parts.push(
      table(
        "Runs",
        ["run", ...facts],
        readable().map((run) => [run.name, ...facts.map((name) => value(run, name))]),
        "list",
      ),
    );
  for (const run of runs) {
    for (const note of run.notes || [])
      parts.push(element("p", { class: "faint" }, runs.length > 1 ? `${run.name}: ${note}` : note));
    if (run.problem) parts.push(element("p", { class: "problem" }, `${run.name} cannot be read: ${run.problem}`));
  }
  fill("overview", ...parts);
  const thinned = readable()
    .flatMap((run) => Object.values(run.curves))
    .filter((curve) => curve.each);
  byId("thinned").hidden = !thinned.length;
  const most = thinned.reduce((most, curve) => Math.max(most, curve.each), 0);
  byId("thinned").textContent =
    `Long curves are thinned: a point is the mean of up to ${shown(most)} neighboring values, and the band behind it reaches from the smallest to the largest of them. metrics.jsonl has all values.`;
}

function drawVideos() {
  const found = runs.filter((run) => run.video);
  const figures = found.map((run) =>
    element(
      "figure",
      {},
      element("video", {
        controls: true,
        loop: true,
        playsinline: true,
        preload: "auto",
        src: run.video,
        "aria-label": `Video of ${run.name}`,
      }),
      element("figcaption", {}, run.name),
    ),
  );
  fill("video", ...(figures.length ? [element("div", { class: "videos" }, ...figures)] : []));
}

function drawEvaluations() {
  const parts = [],
    evaluated = readable().filter((run) => run.evaluations.rows.length);
  const plain = (names) => names.map((name) => name.replaceAll("_", " "));
  if (runs.length > 1 && evaluated.length) {
    // the last evaluation of each run, side by side
    const columns = [...new Set(evaluated.flatMap((run) => run.evaluations.columns))];
    const last = ({ evaluations }, name) => evaluations.rows.at(-1)[evaluations.columns.indexOf(name) + 1];
    const rows = evaluated.map((run) => [
      run.name,
      shown(run.evaluations.rows.at(-1)[0]),
      ...columns.map((name) => shown(run.evaluations.columns.includes(name) ? last(run, name) : null)),
    ]);
    parts.push(table("The last evaluation of each run", ["run", "steps", ...plain(columns)], rows, "list numbers"));
  }
  for (const run of evaluated) {
    const { columns, rows, left_out: leftOut } = run.evaluations;
    const inner = [
      table(
        `Evaluations of ${run.name}`,
        ["steps", ...plain(columns)],
        rows.map((row) => row.map(shown)),
        "numbers",
      ),
    ];
    if (leftOut)
      inner.push(element("p", { class: "faint" }, `${shown(leftOut)} earlier evaluations are in metrics.jsonl.`));
    parts.push(
      ...(runs.length > 1 ? [element("details", {}, element("summary", {}, `All of ${run.name}`), ...inner)] : inner),
    );
  }
  fill("evaluations", ...parts);
}

const SHOW = { changed: "what differs from the preset", between: "what differs between the runs", all: "everything" };

function drawSettings() {
  const configured = readable().filter((run) => Object.keys(run.settings).length);
  const names = [...new Set(configured.flatMap((run) => Object.keys(run.settings)))];
  const changed = (run, name) => run.base && name in run.settings && run.settings[name] !== run.base.settings[name];
  const chosen = {
    all: names,
    changed: names.filter((name) => configured.some((run) => changed(run, name))),
    between: names.filter((name) => new Set(configured.map((run) => run.settings[name])).size > 1),
  }[byId("which").value];
  if (!configured.length) return fill("settings");
  const one = configured.length === 1 && configured[0].base; // the base settings get a column
  const cell = (run, name) => {
    const value = element("span", { class: changed(run, name) ? "changed" : "" }, run.settings[name] ?? "–");
    if (changed(run, name) && !one) value.append(element("small", {}, `not ${run.base.settings[name] ?? "–"}`));
    return value;
  };
  const columns = one ? [one.name, "this run"] : configured.map((run) => run.name);
  const rows = chosen.map((name) => [
    name,
    ...(one ? [one.settings[name] ?? "–"] : []),
    ...configured.map((run) => cell(run, name)),
  ]);
  const bases = new Set(
    configured.map((run) => (run.base ? `the ${run.base.name}` : "nothing, because the algorithm or its preset is unknown")),
  );
  fill(
    "settings",
    element("p", { class: "faint" }, `Compared with ${[...bases].join("; ")}. Differences are in bold.`),
    chosen.length ? table("Settings", ["setting", ...columns], rows) : element("p", {}, "Nothing differs."),
  );
}

function drawSettingsChoice() {
  const offered = runs.length > 1 ? ["between", "changed", "all"] : ["changed", "all"];
  byId("which").replaceChildren(...offered.map((value) => element("option", { value }, SHOW[value])));
}

function drawVersions() {
  const names = [...new Set(readable().flatMap((run) => Object.keys(run.versions)))];
  const rows = names.map((name) => [name, ...readable().map((run) => shown(run.versions[name]))]);
  fill(
    "versions",
    ...(names.length
      ? [table("Versions", ["", ...readable().map((run) => (runs.length > 1 ? run.name : "version"))], rows)]
      : []),
  );
}

function drawReproduction() {
  const parts = [];
  for (const run of readable()) {
    const inner = [];
    if (run.command) inner.push(element("p", {}, "What was typed:"), element("pre", { tabindex: "0" }, run.command));
    if (run.config)
      inner.push(
        element(
          "p",
          {},
          "With exactly these settings, whatever presets say by then (the same versions and machine give the same numbers):",
        ),
        element("pre", { tabindex: "0" }, `drl train ${run.algorithm} --no-preset --config config.yaml`),
        element("details", {}, element("summary", {}, "config.yaml"), element("pre", { tabindex: "0" }, run.config)),
      );
    if (!inner.length) continue;
    parts.push(...(runs.length > 1 ? [element("details", {}, element("summary", {}, run.name), ...inner)] : inner));
  }
  fill("reproduce", ...parts);
}
