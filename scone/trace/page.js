"use strict";
// Everything that models wrote reaches the page as `textContent`.
const texts = JSON.parse(document.getElementById("data").textContent).texts;
const at = { step: 0, candidate: null, shown: beginning() };

// The first text of the first label, and beside it that of the second, or another text.
function beginning() {
  const other = texts.findIndex((text) => text.label !== texts[0].label);
  return texts.length === 1 ? [0] : [0, other > 0 ? other : 1];
}

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("--")) made.style.setProperty(name, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const drawn = (tag, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};
const visible = (piece) => piece.replaceAll("\n", "↵").replaceAll("\t", "⇥") || "∅";
const digits = (x) => (x < 0.005 && x > 0 ? "<.01" : x > 0.995 && x < 1 ? ">.99" : x.toFixed(2));
const length = () => Math.max(1, ...at.shown.map((i) => texts[i].steps.length));
const taken = (step) => step.candidates[step.chosen];

function show() {
  at.step = Math.min(at.step, length() - 1);
  const panes = document.getElementById("panes");
  panes.replaceChildren(...at.shown.map((which, pane) => paneOf(texts[which], which, pane)));
  const place = document.getElementById("place");
  place.max = length() - 1;
  place.value = at.step;
  document.getElementById("where").textContent = `${at.step + 1} / ${length()}`;
}

function paneOf(text, which, pane) {
  const step = text.steps[at.step];
  const parts = [headOf(text, which, pane), writtenOf(text), curveOf(text)];
  if (step) parts.push(tableOf(step), timeOf(step));
  else parts.push(make("p", { class: "pale" }, "This text has ended."));
  return make("section", { class: "pane", "aria-label": nameOf(text, which) }, ...parts);
}

const nameOf = (text, which) => [text.label, texts.length > 1 ? `text ${which + 1}` : ""].filter(Boolean).join(", ");

function headOf(text, which, pane) {
  const options = texts.map((other, i) => make("option", { value: i, selected: i === which ? "" : null }, nameOf(other, i)));
  const pick = (event) => { at.shown[pane] = Number(event.target.value); at.candidate = null; show(); };
  const name = texts.length > 1
    ? make("select", { onchange: pick, "aria-label": "text" }, ...options)
    : make("strong", {}, nameOf(text, which));
  const end = text.finish_reason === "stop" ? "ended by itself" : `ended: ${text.finish_reason}`;
  return make("div", { class: "head" }, name, make("span", {}, `φ ${digits(text.score)}`), make("span", { class: "pale" }, end));
}

function writtenOf(text) {
  const tokens = text.steps.map((step, i) => {
    const best = step.chosen === null ? null : taken(step);
    const kind = best && best.judged ? "token" : "token plain";
    const current = i === at.step ? "true" : null;
    const go = () => moveTo(i);
    const title = best ? `q ${digits(best.q)}` : null;
    return make("span", { class: kind, role: "button", "aria-current": current, title, onclick: go, "--q": best ? best.q : 0 }, step.text);
  });
  return make("p", { class: "text" }, make("span", { class: "pale" }, text.prompt), ...tokens);
}

// φ after each token as a line, q of the token taken as dots; the whole width is the longer of the texts.
function curveOf(text) {
  const width = 100, height = 40, x = (i) => ((i + 0.5) / length()) * width, y = (v) => (1 - v) * height;
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img" });
  svg.setAttribute("aria-label", "the verifier's score after each token");
  for (const level of [0, 0.5, 1]) svg.append(drawn("path", { class: "axis", d: `M0 ${y(level)}H${width}` }));
  const scores = text.steps.map((step) => step.score);
  const values = scores.every((score) => score !== null) ? scores : text.steps.map((step) => taken(step).q);
  svg.append(drawn("path", { class: "phi", d: "M" + values.map((v, i) => `${x(i)} ${y(v)}`).join("L") }));
  svg.append(drawn("path", { class: "cursor", d: `M${x(at.step)} 0V${height}` }));
  const now = values[at.step];
  const what = scores[0] === null ? "q of the tokens taken" : "φ after each token";
  return make("div", {}, svg, make("span", { class: "pale" }, now === undefined ? what : `${what}: ${digits(now)} here`));
}

function tableOf(step) {
  const heads = ["candidate", "p", "q", "p*"].map((name) => make("th", { scope: "col" }, name));
  const rows = step.candidates.flatMap((candidate, k) => rowsOf(step, candidate, k));
  const note = step.resampled ? [make("p", { class: "pale" }, "Resampled: the text went on from another particle here.")] : [];
  return make("div", {}, ...note, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows)));
}

function rowsOf(step, candidate, k) {
  const selected = k === (at.candidate ?? step.chosen), judged = step.candidates.some((other) => other.judged);
  const cell = (value, kind) => make("td", { class: kind }, make("span", { class: "bar", "--v": value }, make("i")),
    make("span", { class: "number" }, digits(value)));
  const q = judged ? cell(candidate.q, candidate.judged ? "q" : "mean") : make("td", { class: "pale" }, "–");
  const piece = make("span", { class: "piece" }, visible(candidate.text));
  const pick = () => { at.candidate = k; show(); };
  const row = make("tr", { class: k === step.chosen ? "chosen" : null, "aria-selected": selected, onclick: pick },
    make("td", {}, piece), cell(candidate.p, "p"), q, cell(candidate.p_star, "p"));
  return selected && candidate.futures.length ? [row, aheadOf(candidate)] : [row];
}

function aheadOf(candidate) {
  const lines = candidate.futures.map((future) => make("span", { class: "future" }, make("b", {}, future.by), `…${future.text}`));
  return make("tr", { class: "ahead" }, make("td", { colspan: 4 }, ...lines));
}

function timeOf(step) {
  const phases = Object.entries(step.seconds);
  const whole = phases.reduce((sum, [, seconds]) => sum + seconds, 0) || 1;
  const colour = (i) => `var(--phase${Math.min(i, 5)})`;
  const bars = phases.map(([, seconds], i) => make("i", { "--v": seconds / whole, "--c": colour(i), class: "swatch" }));
  const names = phases.map(([name, seconds], i) =>
    make("span", {}, make("i", { class: "swatch", "--c": colour(i) }), `${name} ${(1000 * seconds).toFixed(1)} ms`));
  return make("div", {}, make("div", { class: "time" }, ...bars), make("div", { class: "phases" }, ...names));
}

function moveTo(step) {
  at.step = Math.max(0, Math.min(length() - 1, step));
  at.candidate = null;
  show();
}

function moveAmong(by) {
  const steps = at.shown.map((i) => texts[i].steps[at.step]).filter(Boolean);
  const last = Math.max(...steps.map((step) => step.candidates.length)) - 1;
  at.candidate = Math.max(0, Math.min(last, (at.candidate ?? steps[0].chosen) + by));
  show();
}

const keys = {
  ArrowRight: () => moveTo(at.step + 1), ArrowLeft: () => moveTo(at.step - 1),
  Home: () => moveTo(0), End: () => moveTo(length() - 1),
  ArrowDown: () => moveAmong(1), ArrowUp: () => moveAmong(-1),
};
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.tagName === "SELECT" || !keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
document.getElementById("back").addEventListener("click", () => moveTo(at.step - 1));
document.getElementById("on").addEventListener("click", () => moveTo(at.step + 1));
document.getElementById("place").addEventListener("input", (event) => moveTo(Number(event.target.value)));
show();
