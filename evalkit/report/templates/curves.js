// pass@k and maj@k over k, and the training dynamics.
function drawCurves() {
  const root = body("curves");
  const tables = data.benchmarks.filter((t) => t.curves);
  if (!tables.length) { byId("curves").hidden = true; return; }
  const view = { table: 0, logX: true, bands: true };
  const pair = el("div", { class: "pair" });
  const draw = () => {
    clear(pair);
    const table = tables[view.table];
    for (const [metric, title, meaning] of data.over_k) {
      const series = table.methods.map((run) => {
        const points = table.curves[run][metric];
        return { run, name: label(run), x: table.ks, y: points.map((p) => p[0]), low: points.map((p) => p[1]), high: points.map((p) => p[2]) };
      });
      pair.append(el("div", { class: "card" }, el("h3", {}, `${title}: ${meaning}`),
        lineChart({ label: `${metric} over k on ${table.name}`, series, logX: view.logX, bands: view.bands, yFormat: (v) => compact(100 * v), tipFormat: percent, yRange: [0, 1], xName: "k", height: 300 })));
    }
  };
  const toggle = (key, text) => {
    const box = el("input", { type: "checkbox", checked: view[key], onchange: () => { view[key] = box.checked; draw(); } });
    return el("label", {}, box, text);
  };
  root.append(el("div", { class: "controls" },
    tables.length > 1 ? tabs("Benchmark", tables.map((t) => t.name), 0, (i) => { view.table = i; draw(); }) : null,
    toggle("logX", "log k"), toggle("bands", "95 % intervals"),
    el("span", { class: "faint" }, "Hover or use the arrow keys; click a method above to hide it.")), pair);
  draw();
}

function drawTraining() {
  const root = body("training");
  const runs = data.training.filter((t) => Object.keys(t.curves).length);
  if (!runs.length) { byId("training").hidden = true; return; }
  const gates = runs.filter((t) => t.initial_entropy.length);
  if (gates.length) root.append(el("p", { class: "soft small" }, "Entropy before training, in nats: ", gates.map((t) => `${t.label} ${t.initial_entropy.map((v) => v.toFixed(3)).join(", ")}${t.gate ? ` (gate ${t.gate})` : ""}`).join("; "),
    `. A gate set to auto is on if that lies below ln 2 = ${data.ln2.toFixed(3)}.`));
  trainingPanels(root, () => runs.map((t) => ({ ...t, run: t.name, name: t.label, note: t.trains > 1 ? t.counted : "" })), () => data.curve_metrics);
}
