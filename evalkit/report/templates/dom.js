// Shared by the pages of gtpo compare and gtpo view: element builders that only ever set textContent, state, formats.
document.documentElement.dataset.js = "1";
const byId = (id) => document.getElementById(id);
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const visible = (text) => text.replace(HIDDEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
const SVG = "http://www.w3.org/2000/svg";
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.setAttribute("class", value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  // Strings become text nodes: markup in a run's name or a completion stays text, invisible characters are written out.
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(typeof child === "string" ? visible(child) : child);
  }
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const clear = (node) => { node.replaceChildren(); return node; };
const body = (section) => byId(section).querySelector(".body");

/** name of a method or run -> its colour, of eight. */
const index = new Map();
const colour = (name) => `c${(index.get(name) ?? 7) % 8}`;
const swatch = (name) => el("span", { class: `swatch ${colour(name)}` });

/** Half up with the same arithmetic as evalkit/report/text.py: one rounding in every output. */
const rounded = (x, digits) => (Math.floor(Math.abs(x) * 10 ** digits + 0.5 + 1e-9) / 10 ** digits).toFixed(digits);
const percent = (x, digits = 1) => (x === null ? "–" : rounded(100 * x, digits));
const signed = (x, digits = 1) => {
  const text = percent(x, digits);
  return (x < 0 && Number(text) !== 0 ? "−" : "+") + text;
};
const pText = (p) => (p < 1e-4 ? "p\u00a0<\u00a00.0001" : `p\u00a0=\u00a0${rounded(p, p >= 0.1 ? 2 : p >= 0.001 ? 3 : 4)}`);
const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

/** State shared between sections; whoever depends on a key redraws when it changes. */
const address = new URLSearchParams(location.hash.split("?")[1] || "");
let section = location.hash.slice(1).split("?")[0] || document.querySelector("main .section").id;
/** Keep a choice in the address, so that the address is a link to this view. */
function remember(name, value, usual, where) {
  if (value === usual || value === null || value === "") address.delete(name); else address.set(name, value);
  if (where) section = where;
  const query = address.toString();
  history.replaceState(null, "", `#${section}${query ? `?${query}` : ""}`);
}
const state = { hidden: new Set() };
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

/** A button that copies what `text()` returns, and says that it did. */
function copyButton(name, text) {
  const button = el("button", { type: "button", class: "quiet", onclick: async () => {
    const value = text();
    try { await navigator.clipboard.writeText(value); } catch {  // a page opened as a file may not: by a selection
      const area = el("textarea", { class: "offscreen" });
      area.value = value;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = name; }, 1200);
  } }, name);
  return button;
}
function saveButton(name, file, text) {
  return el("button", { type: "button", class: "quiet", onclick: () => {
    const url = URL.createObjectURL(new Blob([text()], { type: "text/plain" }));
    const a = el("a", { href: url, download: file });
    a.click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  } }, name);
}

const stored = (() => { try { return localStorage.getItem("gtpo-theme"); } catch { return null; } })();
if (stored) document.documentElement.dataset.theme = stored;
byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("gtpo-theme", root.dataset.theme); } catch { /* a file opened without storage: the choice lasts for this view */ }
});
