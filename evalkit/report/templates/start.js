// Header, theme, folding, and the order of drawing: the answer first, the heavy sections when the browser is idle or asked.
function drawHeader() {
  const row = byId("runs");
  for (const name of order) {
    const m = info.get(name);
    const chip = el("button", { type: "button", class: `chip ${colour(name)}`, "aria-pressed": "true", title: "Show or hide in curves and completions",
      onclick: () => {
        if (!state.hidden.delete(name)) state.hidden.add(name);
        chip.setAttribute("aria-pressed", String(!state.hidden.has(name)));
        changed("hidden");
      } }, el("i", {}), m.label, m.counted ? el("em", {}, m.counted) : null, m.collapsed ? el("em", { class: "lost" }, `${m.collapsed} collapsed`) : null, name === data.baseline ? el("em", {}, "baseline") : null);
    row.append(chip);
  }
  if (!data.benchmarks.length) byId("notes").append(...data.notes.map((note) => el("p", { class: "note" }, note)));
  const settings = Object.entries(data.settings).map(([key, value]) => `${key}: ${value === "" ? "none" : value}`);
  const seeds = data.methods.filter((m) => m.runs.length > 1).map((m) => `${m.label}: ${m.runs.map(([run, seed]) => `${run}${seed ? ` (seed ${seed})` : ""}`).join(", ")}`);
  byId("legend").append(el("details", { open: innerWidth > 760 }, el("summary", {}, "How to read this"), ...data.legend.map((line) => el("p", {}, line)), ...(seeds.length ? [el("p", {}, `Runs of a method: ${seeds.join("; ")}.`)] : []),
    settings.length ? el("p", {}, `All runs share ${settings.join("; ")}.`) : ""), el("p", { class: "soft" }, `Made ${data.created} by gtpo compare.`));
}
// On a phone every section but the answer starts folded; printing and links open what they need.
const folds = [...document.querySelectorAll("main > details.section")];
if (innerWidth <= 760) folds.slice(1).forEach((node) => { node.open = node.id === section; });
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((node) => { node.dataset.was = node.open ? "1" : ""; node.open = true; }));
addEventListener("afterprint", () => document.querySelectorAll("details").forEach((node) => { node.open = node.dataset.was === "1"; }));
for (const a of document.querySelectorAll("nav a, .skip")) {
  a.addEventListener("click", (event) => {
    event.preventDefault();
    const name = a.getAttribute("href").slice(1);
    if (drawn && later[name]) ensure(name);
    byId(name).open = true;
    byId(name).scrollIntoView();
    remember("", null, null, name);
  });
}
addEventListener("hashchange", () => location.reload());

drawHeader();
drawAnswer();
document.documentElement.dataset.ready = String(Math.round(performance.now()));

const later = { tables: drawTables, curves: drawCurves, training: drawTraining, explorer: drawExplorer, tokens: drawTokens };
const drawn = new Set();
function ensure(name) {
  if (drawn.has(name)) return;
  drawn.add(name);
  later[name]();
}
const idle = window.requestIdleCallback || ((act) => setTimeout(act, 30));
const queue = Object.keys(later);
(function next() {
  const name = queue.shift();
  if (!name) {
    if (section !== "answer" && byId(section)) byId(section).scrollIntoView();
    for (const a of document.querySelectorAll("nav a")) a.hidden = byId(a.getAttribute("href").slice(1)).hidden;
    document.documentElement.dataset.complete = String(Math.round(performance.now()));
    return;
  }
  idle(() => { ensure(name); next(); }, { timeout: 400 });
})();
