// Shared by both pages: elements, numbers, theme, polling the server. Texts of a run only become text nodes.
"use strict";

const byId = (id) => document.getElementById(id);
const pageData = JSON.parse(byId("data").textContent);

// An element with attributes (a function listens to an event) and children (elements or texts).
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// Format a number in few letters; return other values unchanged.
function shown(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  if (value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e15)) return value.toExponential(2);
  if (Math.abs(value) >= 1000) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  return String(Number(value.toPrecision(4)));
}

// Format the ticks of an axis.
function tick(value) {
  if (value === null || value === undefined) return "";
  if (Math.abs(value) >= 1000 && Math.abs(value) < 1e15)
    return value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 4 });
  return shown(value);
}

// A table that scrolls inside itself on a narrow screen. A cell may be an element.
function table(caption, columns, rows, kind = "") {
  const head = element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name)));
  const line = (cells) =>
    element("tr", {}, ...cells.map((cell, i) => element(i ? "td" : "th", i ? {} : { scope: "row" }, cell)));
  const inner = element(
    "table",
    { class: kind },
    element("caption", { class: "unseen" }, caption),
    element("thead", {}, head),
    element("tbody", {}, ...rows.map(line)),
  );
  return element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption }, inner);
}

const KEPT = "details, summary, .wide, pre, a, input";

// The elements in `place` that a reader opens, scrolls or focuses, by name, or by count if they have no name.
function namedParts(place) {
  const found = new Map();
  for (const each of place.querySelectorAll(KEPT)) {
    const summary = each.closest("summary") ?? each.querySelector(":scope > summary");
    const name = `${each.tagName} ${each.dataset.name ?? summary?.textContent ?? ""}`;
    let key = name;
    for (let k = 2; found.has(key); k++) key = `${name} ${k}`;
    found.set(key, each);
  }
  return found;
}

// Replace the content of an element and restore what the reader has opened, scrolled or focused.
function renew(place, ...children) {
  const before = [...namedParts(place)].map(([key, each]) => {
    return [key, each.open, each.scrollTop, each.scrollLeft, each === document.activeElement];
  });
  place.replaceChildren(...children);
  const after = namedParts(place);
  for (const [key, open, top, left, focused] of before) {
    const each = after.get(key);
    if (!each) continue;
    if (open) each.open = true;
    if (top || left) each.scrollTo(left, top);
    if (focused) each.focus({ preventScroll: true });
  }
}

// The theme of the system, until the button is used.
function themeButton(changed) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement.dataset;
  let chosen = null;
  const show = () => {
    root.theme = chosen ?? (system.matches ? "dark" : "light");
    const other = root.theme === "dark" ? "light" : "dark";
    byId("theme").textContent = other === "dark" ? "Dark" : "Light";
    byId("theme").setAttribute("aria-label", `Use ${other} colors`);
    changed();
  };
  byId("theme").addEventListener("click", () => {
    chosen = root.theme === "dark" ? "light" : "dark";
    show();
  });
  system.addEventListener("change", show);
  show();
}

// The line below the title, which screen readers read out when it changes.
function sayState(text) {
  if (byId("state").textContent !== text) byId("state").textContent = text;
}

// Poll the server and pass on every new answer. Slow answers lengthen the pauses.
async function follow(address, seconds, take) {
  let pause = 0;
  for (;;) {
    await new Promise((done) => setTimeout(done, pause));
    const began = performance.now();
    try {
      const answer = await fetch(address, { cache: "no-cache" });
      if (!answer.ok) throw new Error(await answer.text());
      take(await answer.json());
    } catch (error) {
      sayState(`The board does not answer (${error.message}); trying again.`);
    }
    pause = seconds * 1000 + 5 * (performance.now() - began);
  }
}
