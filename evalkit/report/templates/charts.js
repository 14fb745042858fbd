// Shared: one line chart for everything: bands, reference lines, log x, hover and arrow keys, redrawn to its width.
function ticks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw) || power;
  const out = [];
  for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-9; t += step) out.push(Math.abs(t) < step * 1e-9 ? 0 : t);
  return out;
}
function logTicks(low, high) {
  const out = [];
  for (let t = 1; t <= high * 1.0001; t *= 2) if (t >= low) out.push(t);
  return out;
}
const compact = (x) => (Math.abs(x) >= 10000 ? `${+(x / 1000).toFixed(1)}k` : `${+x.toPrecision(4)}`);

/**
 * options: label, height, series: [{run, name, x[], y[], low[], high[], raw[]}], logX, yFormat, yRange: [low|null, high|null],
 * references: [{y, text}], xName, xTicks. Returns an element; `redraw` reads options again.
 */
function lineChart(options) {
  const root = el("div", { class: "chart", tabindex: 0, role: "img", "aria-label": options.label });
  let width = 0, cursor = null, place = null;
  function draw() {
    if (!width) return;
    const height = options.height || 250;
    const pad = { left: 40, right: 14, top: 10, bottom: 26 };
    const shown = options.series.filter((s) => s.x.length && !state.hidden.has(s.run));
    const node = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": true });
    const xs = shown.flatMap((s) => s.x);
    const ys = shown.flatMap((s) => [...(s.low || s.y), ...(s.high || s.y)]).filter((v) => v !== null);
    if (!xs.length) {
      clear(root).append(el("p", { class: "faint small" }, "Nothing to show: every method is hidden."));
      return;
    }
    const [fixedLow, fixedHigh] = options.yRange || [null, null];
    let low = Math.min(...ys, ...(options.references || []).map((r) => r.y)), high = Math.max(...ys, ...(options.references || []).map((r) => r.y));
    const margin = (high - low || Math.abs(high) || 1) * 0.06;
    low = fixedLow !== null && low - margin < fixedLow + (high - low) * 0.5 ? fixedLow : low - margin;
    high = fixedHigh !== null ? Math.min(fixedHigh, high + margin) : high + margin;
    const x0 = Math.min(...xs), x1 = Math.max(...xs);
    const shape = options.logX ? Math.log2 : (v) => v;
    const span = shape(x1) - shape(x0) || 1;
    const px = (x) => pad.left + ((shape(x) - shape(x0)) / span) * (width - pad.left - pad.right);
    // Raw values may leave the range that the smoothed line sets: they stop at its edge.
    const py = (y) => pad.top + ((high - Math.min(high, Math.max(low, y))) / (high - low || 1)) * (height - pad.top - pad.bottom);
    const yText = options.yFormat || compact, levels = ticks(low, high, height / 48);
    pad.left = Math.max(pad.left, 8 + 7 * Math.max(...levels.map((t) => yText(t).length)));  // as wide as its longest number
    for (const t of levels) {
      node.append(svg("line", { class: "gridline", x1: pad.left, x2: width - pad.right, y1: py(t), y2: py(t) }),
        svg("text", { x: pad.left - 6, y: py(t) + 4, "text-anchor": "end" }, yText(t)));
    }
    const marks = options.logX ? logTicks(x0, x1) : ticks(x0, x1, Math.max(2, width / 80)).filter(Number.isInteger);  // steps are whole
    for (const t of marks) node.append(svg("text", { x: px(t), y: height - 9, "text-anchor": "middle" }, compact(t)));
    node.append(svg("line", { class: "axis", x1: pad.left, x2: width - pad.right, y1: height - pad.bottom, y2: height - pad.bottom }));
    if (options.xName) node.append(svg("text", { x: pad.left - 8, y: height - 9, "text-anchor": "end" }, options.xName));
    for (const reference of options.references || []) {
      node.append(svg("line", { class: "ref", x1: pad.left, x2: width - pad.right, y1: py(reference.y), y2: py(reference.y) }),
        svg("text", { class: "reftext", x: width - pad.right, y: py(reference.y) - 4, "text-anchor": "end" }, reference.text));
    }
    const path = (s, values) => {
      let out = "", pen = false;
      s.x.forEach((x, i) => {
        if (values[i] === null) { pen = false; return; }
        out += `${pen ? "L" : "M"}${px(x).toFixed(1)} ${py(values[i]).toFixed(1)}`;
        pen = true;
      });
      return out;
    };
    for (const s of shown) {
      const group = svg("g", { class: colour(s.run), "data-run": s.run });
      if (s.low && options.bands !== false) {
        const back = s.x.map((x, i) => `L${px(x).toFixed(1)} ${py(s.low[i]).toFixed(1)}`).reverse().join("");
        group.append(svg("path", { class: "band", d: `${path(s, s.high)}${back}Z` }));
      }
      if (s.raw) group.append(svg("path", { class: "raw", d: path(s, s.raw) }));
      group.append(svg("path", { class: "line", d: path(s, s.y) }));
      if (s.x.length === 1) group.append(svg("circle", { class: "mark", cx: px(s.x[0]), cy: py(s.y[0]), r: 4 }));
      node.append(group);
    }
    const pointer = svg("g", {});
    node.append(pointer);
    clear(root).append(node);
    const grid = [...new Set(xs)].sort((a, b) => a - b);
    place = (x, clientX, clientY) => {
      cursor = grid.reduce((best, t) => (Math.abs(px(t) - px(x)) < Math.abs(px(best) - px(x)) ? t : best), grid[0]);
      clear(pointer).append(svg("line", { class: "cursor", x1: px(cursor), x2: px(cursor), y1: pad.top, y2: height - pad.bottom }));
      const rows = [];
      for (const s of shown) {
        const i = nearest(s.x, cursor);
        if (s.y[i] === null) continue;
        pointer.append(svg("circle", { class: `mark ${colour(s.run)}`, cx: px(s.x[i]), cy: py(s.y[i]), r: 4 }));
        const text = options.tipFormat || yText;
        const band = s.low ? ` [${text(s.low[i])}, ${text(s.high[i])}]` : "";
        rows.push([s.name, text(s.y[i]) + band, s.run, s.y[i]]);
      }
      rows.sort((a, b) => b[3] - a[3]);
      const box = root.getBoundingClientRect();
      showTip(clientX ?? box.left + px(cursor), clientY ?? box.top + 20, `${options.xLabel || "k"} ${compact(cursor)}`, rows);
    };
    root.invert = (clientX) => {
      const at = clientX - root.getBoundingClientRect().left;
      const v = shape(x0) + ((at - pad.left) / (width - pad.left - pad.right)) * span;
      return Math.min(x1, Math.max(x0, options.logX ? 2 ** v : v));
    };
    root.step = (by) => {
      const i = cursor === null ? (by > 0 ? -1 : grid.length) : grid.indexOf(cursor);
      place(grid[Math.min(grid.length - 1, Math.max(0, i + by))]);
    };
    root.leave = () => { clear(pointer); hideTip(); };
  }
  root.addEventListener("pointermove", (event) => place && root.invert && place(root.invert(event.clientX), event.clientX, event.clientY));
  root.addEventListener("pointerleave", () => root.leave && root.leave());
  root.addEventListener("blur", () => root.leave && root.leave());
  root.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10 }[event.key];
    if (by && root.step) { event.preventDefault(); root.step(by); }
    if (event.key === "Escape" && root.leave) root.leave();
  });
  new ResizeObserver(([entry]) => {
    const next = Math.round(entry.contentRect.width);
    if (next !== width) { width = next; draw(); }
  }).observe(root);
  root.redraw = draw;
  on("hidden", draw);
  return root;
}
function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle; else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

/** Running mean over `window` values up to each one; nulls are left out. */
function smooth(values, window) {
  const out = [];
  let sum = 0, count = 0;
  values.forEach((value, i) => {
    if (value !== null) { sum += value; count += 1; }
    if (i >= window && values[i - window] !== null) { sum -= values[i - window]; count -= 1; }
    out.push(count ? sum / count : null);
  });
  return out;
}
/** Whether a metric is one to look at first: of supervised training its loss. */
const leads = (metric, sft) => (sft ? ["loss"] : ["reward/accuracy", "validation/pass@1", "completions/length", "entropy/mean"]).includes(metric);
/** The chart of one training metric: [key, title, unit, low, high]. sft: of supervised training, whose entropy no gate judges. */
const metricOptions = ([metric, title, unit, low, high], sft, series) => ({ label: `${title} over training steps`, series, xLabel: "step", xName: "step", height: leads(metric, sft) ? 280 : 210,
  yRange: [low, high], yFormat: unit === "share" ? (v) => `${+(100 * v).toFixed(1)}%` : compact,
  tipFormat: unit === "share" ? (v) => `${percent(v)}%` : (v) => `${+v.toPrecision(4)}`,
  references: metric === "entropy/mean" && !sft ? [{ y: Math.LN2, text: "ln 2 = 0.693" }] : [] });
const metricCard = ([metric, title, unit], sft, chart) => el("div", { class: "card" }, el("h3", {}, sft ? `SFT: ${title.toLowerCase()}` : title),
  el("p", { class: "soft small" }, unit === "share" ? metric : `${metric}${unit ? `, ${unit}` : ""}`), chart);

/**
 * Every training metric over the steps, those of supervised training in panels of their own: its loss and entropy are taken on the
 * targets. runs(): [{run, name, note, sft, curves}]. Returns what draws them again, with what `runs` tells by then.
 */
function trainingPanels(root, runs, metrics) {
  const told = () => runs().filter((t) => Object.keys(t.curves || {}).length);
  const longest = Math.max(...told().flatMap((t) => Object.values(t.curves).map((c) => c.x.length)));
  const charts = new Map();  // metric -> {options, chart}
  let window = Math.max(1, Math.round(longest / 25));
  const legend = el("p", { class: "legendline" }), hint = el("p", { class: "soft small" }), lead = el("div", { class: "grid lead" }), grid = el("div", { class: "grid" });
  const series = (metric, sft) => told().filter((t) => t.curves[metric] && t.sft === sft).map((t) => {
    const { x, y, low, high } = t.curves[metric];
    const band = low ? { low: smooth(low, window), high: smooth(high, window) } : { raw: window > 1 ? y : null };
    return { run: t.run, name: t.name, x, y: smooth(y, window), ...band };
  });
  function draw() {
    const shown = told().filter((t) => !state.hidden.has(t.run));
    clear(legend).append(...shown.map((t) => el("span", {}, swatch(t.run), t.name, t.note ? el("span", { class: "soft" }, ` ${t.note}`) : null)));
    const banded = shown.some((t) => Object.values(t.curves).some((c) => c.low));
    hint.textContent = banded ? "Line: running mean. Band: from the lowest to the highest seed; of one seed, of the steps behind a point." : window > 1 ? "Strong line: running mean. Faint line: each logged step." : "";
    for (const sft of [false, true]) for (const metric of metrics()) {
      const found = series(metric[0], sft), key = `${metric[0]} ${sft}`;
      if (!found.length) continue;
      if (!charts.has(key)) {
        const options = metricOptions(metric, sft, found), chart = lineChart(options);
        charts.set(key, { options, chart });
        (leads(metric[0], sft) ? lead : grid).append(metricCard(metric, sft, chart));
      } else {
        const held = charts.get(key);
        held.options.series = found;
        held.chart.redraw();
      }
    }
  }
  const out = el("output", {}, plural(window, "point"));
  const slider = el("input", { type: "range", min: 1, max: Math.max(50, Math.round(longest / 4)), value: window, "aria-label": "Smoothing",
    oninput: () => { window = Number(slider.value); out.textContent = plural(window, "point"); draw(); } });
  root.append(el("div", { class: "controls" }, el("label", {}, "Smoothing", slider, out), el("span", { class: "faint" }, "Hover or use the arrow keys; click a name above to hide it.")), legend, hint, lead,
    el("details", { class: "card" }, el("summary", {}, el("h3", {}, "All other metrics")), grid));
  draw();
  on("hidden", draw);
  return draw;
}
