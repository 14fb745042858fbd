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
    for (const [metric, text] of [["pass@k", "pass@k: at least one of k is right"], ["maj@k", "maj@k: the majority of k is right"]]) {
      const series = table.methods.map((run) => {
        const points = table.curves[run][metric];
        return { run, name: label(run), x: table.ks[run], y: points.map((p) => p[0]), low: points.map((p) => p[1]), high: points.map((p) => p[2]) };
      });
      pair.append(el("div", { class: "card" }, el("h3", {}, text),
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
  const longest = Math.max(...runs.map((t) => Math.max(...Object.values(t.curves).map((c) => c.x.length))));
  const view = { window: Math.max(1, Math.round(longest / 25)) };
  const charts = [];
  const grid = el("div", { class: "grid" });
  const series = (metric, sft) => runs.filter((t) => t.curves[metric] && t.sft === sft).map((t) => {
    const { x, y, low, high } = t.curves[metric];
    const band = low ? { low: smooth(low, view.window), high: smooth(high, view.window) } : { raw: view.window > 1 ? y : null };
    return { run: t.name, name: t.label, x, y: smooth(y, view.window), ...band };
  });
  // Loss and entropy of supervised training are taken on the targets: another quantity, in panels of its own.
  for (const sft of [false, true]) for (const [metric, title, unit, low, high] of data.curve_metrics) {
    if (!series(metric, sft).length) continue;
    const options = metricOptions([metric, title, unit, low, high], sft, series(metric, sft));
    const chart = lineChart(options);
    charts.push(() => { options.series = series(metric, sft); chart.redraw(); });
    grid.append(metricCard([metric, title, unit], sft, chart));
  }
  const out = el("output", {}, plural(view.window, "step"));
  const slider = el("input", { type: "range", min: 1, max: Math.max(2, Math.round(longest / 4)), value: view.window, "aria-label": "Smoothing",
    oninput: () => { view.window = Number(slider.value); out.textContent = plural(view.window, "step"); charts.forEach((act) => act()); } });
  const gates = runs.filter((t) => t.initial_entropy.length);
  const banded = runs.some((t) => Object.values(t.curves).some((c) => c.low));
  root.append(el("div", { class: "controls" }, el("label", {}, "Smoothing", slider, out)),
    el("p", { class: "legendline" }, runs.map((t) => el("span", {}, swatch(t.name), `${t.label}${t.seeds.length > 1 ? ` (${t.seeds.length} seeds)` : ""}`)), banded ? el("span", { class: "soft" }, "Line: mean over the seeds. Band: from the lowest to the highest seed; of one seed, of the steps behind a point.") : null),
    gates.length ? el("p", { class: "soft small" }, "Entropy before training, in nats: ", gates.map((t) => `${t.label} ${t.initial_entropy.map((v) => v.toFixed(3)).join(", ")}${t.gate ? ` (gate ${t.gate})` : ""}`).join("; "),
      `. A gate set to auto is on where that lies below ln 2 = ${data.ln2.toFixed(3)}.`) : "", grid);
}
