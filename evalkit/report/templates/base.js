// Shared by every section: the data, element builders that only ever set textContent, state, number formats.
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("core").textContent);
const blocks = new Map();
/** A named data block, parsed when it is first asked for. */
function block(name) {
  if (!blocks.has(name)) blocks.set(name, JSON.parse(byId(name).textContent));
  return blocks.get(name);
}

const SVG = "http://www.w3.org/2000/svg";
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.setAttribute("class", value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  // Strings become text nodes: markup in a run's name or a completion stays text.
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined && child !== false) node.append(child);
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const clear = (node) => { node.replaceChildren(); return node; };
const body = (section) => byId(section).querySelector(".body");

const runIndex = new Map(data.runs.map((run, i) => [run.name, i]));
const colour = (i) => `c${i % 8}`;
const label = (name) => (runIndex.has(name) ? data.runs[runIndex.get(name)].label : name);
const swatch = (name) => el("span", { class: `swatch ${colour(runIndex.get(name) ?? 7)}` });

const percent = (x, digits = 1) => (x === null ? "–" : (100 * x).toFixed(digits));
const signed = (x, digits = 1) => {
  const text = (100 * Math.abs(x)).toFixed(digits);
  return (x < 0 && Number(text) !== 0 ? "−" : "+") + text;
};
const pText = (p) => (p < 1e-4 ? "p\u00a0<\u00a00.0001" : `p\u00a0=\u00a0${p >= 0.1 ? p.toFixed(2) : p >= 0.001 ? p.toFixed(3) : p.toFixed(4)}`);
const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
const several = (words) => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`);

/** State shared between sections; whoever depends on a key redraws when it changes. */
const state = { hidden: new Set(), baseline: data.baseline };
const listeners = {};
const on = (key, act) => (listeners[key] ||= []).push(act);
const changed = (key) => (listeners[key] || []).forEach((act) => act());

/** A row of buttons of which one is chosen; arrow keys move. */
function tabs(name, options, chosen, act) {
  const row = el("div", { class: "tabs", role: "tablist", "aria-label": name });
  options.forEach((text, i) => {
    row.append(el("button", { type: "button", role: "tab", "aria-selected": String(i === chosen), tabindex: i === chosen ? 0 : -1,
      onclick: () => pick(i) }, text));
  });
  function pick(i) {
    [...row.children].forEach((button, j) => {
      button.setAttribute("aria-selected", String(j === i));
      button.tabIndex = j === i ? 0 : -1;
    });
    chosen = i;
    act(i);
  }
  row.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    pick((chosen + step + options.length) % options.length);
    row.children[chosen].focus();
  });
  return row;
}
function select(name, options, chosen, act) {
  const node = el("select", { "aria-label": name, onchange: () => act(node.value) },
    options.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
  return el("label", {}, name, node);
}

const tip = byId("tip");
function showTip(x, y, title, rows) {
  clear(tip).append(el("b", {}, title), ...rows.map(([left, right, name]) =>
    el("div", {}, name ? swatch(name) : null, el("span", {}, left), el("span", {}, right))));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 16 + box.width > innerWidth ? x - box.width - 16 : x + 16;
  tip.style.left = `${Math.max(6, left)}px`;
  tip.style.top = `${Math.max(6, Math.min(y + 12, innerHeight - box.height - 6))}px`;
}
const hideTip = () => { tip.hidden = true; };
