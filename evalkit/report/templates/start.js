// Header, theme, and the order of drawing: the answer first, the heavy sections when the browser is idle or asked.
function drawHeader() {
  const row = byId("runs");
  data.runs.forEach((run, i) => {
    const chip = el("button", { type: "button", class: `chip ${colour(i)}`, "aria-pressed": "true", title: "Show or hide in the curves",
      onclick: () => {
        if (!state.hidden.delete(run.name)) state.hidden.add(run.name);
        chip.setAttribute("aria-pressed", String(!state.hidden.has(run.name)));
        changed("hidden");
      } }, el("i", {}), run.label, run.name === data.baseline ? el("em", {}, "baseline") : null);
    row.append(chip);
  });
  byId("notes").append(...data.notes.map((note) => el("p", { class: "note" }, note)));
  const settings = Object.entries(data.settings).map(([key, value]) => `${key}: ${value === "" ? "none" : value}`);
  byId("legend").append(...data.legend.map((line) => el("p", {}, line)),
    settings.length ? el("p", {}, `All runs share ${settings.join("; ")}.`) : "", el("p", { class: "faint" }, `Made ${data.created} by gtpo compare.`));
}
const stored = (() => { try { return localStorage.getItem("gtpo-theme"); } catch { return null; } })();
if (stored) document.documentElement.dataset.theme = stored;
byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("gtpo-theme", root.dataset.theme); } catch { /* a file opened without storage: the choice lasts for this view */ }
});

drawHeader();
drawAnswer();
drawTables();
document.documentElement.dataset.ready = String(Math.round(performance.now()));

const later = { curves: drawCurves, training: drawTraining, explorer: drawExplorer, tokens: drawTokens };
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
  if (!name) { document.documentElement.dataset.complete = String(Math.round(performance.now())); return; }
  idle(() => { ensure(name); next(); }, { timeout: 400 });
})();
