// gtpo view: asks the server every two seconds what is new, and redraws that alone.
const EVERY = 2000;
const runs = new Map();  // key -> what the server last told of a run
const trains = () => [...runs.values()].filter((r) => r.kind === "train");
const evals = () => [...runs.values()].filter((r) => r.kind === "eval");
const ask = async (path, query) => {
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`, { cache: "no-store" });
  if (!answer.ok) throw new Error(String(answer.status));
  return answer.json();
};
const number = (value, digits = 2) => (value === null || value === undefined ? "–" : rounded(value, digits));
const lastOf = (run, key) => run.curves?.[key]?.y.at(-1) ?? null;
const clock = (s) => (s === null || s === undefined ? "–" : s >= 3600 ? `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min` : s >= 60 ? `${Math.floor(s / 60)} min` : `${Math.round(s)} s`);
const BAD = new Set(["collapsed", "failed"]);

/** Give a run its colour, by the order in which runs were first seen, and its chip. */
function meet(key, run) {
  if (index.has(key)) return;
  index.set(key, index.size + 1);  // the first colour is the grey of baselines
  if (run.kind !== "train") return;
  const chip = el("button", { type: "button", class: `chip ${colour(key)}`, "aria-pressed": "true", title: "Show or hide in the curves", onclick: () => {
    if (!state.hidden.delete(key)) state.hidden.add(key);
    chip.setAttribute("aria-pressed", String(!state.hidden.has(key)));
    changed("hidden");
  } }, el("i", {}), run.name);
  byId("runs").append(chip);
  document.documentElement.style.scrollPaddingTop = `${document.querySelector(".top").offsetHeight + 8}px`;
}

// -- the table of runs --------------------------------------------------------------------------------------------------
const SHOWN = [["reward/accuracy", "accuracy", 2], ["reward/format", "format", 2], ["entropy/mean", "entropy", 3], ["gate/kept", "kept", 2], ["conflict/fraction", "conflict", 2], ["completions/length", "length", 0], ["kl", "KL", 4]];
function drawList() {
  const root = clear(body("list"));
  if (!runs.size) { root.append(el("p", { class: "soft" }, "No runs yet. They appear here as soon as gtpo train or gtpo eval has begun one.")); return; }
  const status = (run) => el("td", {}, el("span", { class: `badge ${run.error || BAD.has(run.status) ? "down" : ["finished", "complete"].includes(run.status) ? "up" : "flat"}` }, run.error ? "unreadable" : run.status));
  if (trains().length) {
    const shown = SHOWN.filter(([key]) => trains().some((run) => lastOf(run, key) !== null));
    root.append(el("div", { class: "card scroll" }, el("table", { class: "numbers live" },
      el("thead", {}, el("tr", {}, ["train run", "status", "step", ...shown.map(([, text]) => text), "time"].map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, trains().map((run) => el("tr", {}, el("th", { scope: "row" }, swatch(run.key), run.name, run.method ? el("small", {}, run.method) : null), status(run),
        el("td", {}, run.step === null || run.step === undefined ? "–" : `${run.step}${run.steps ? ` of ${run.steps}` : ""}`),
        shown.map(([key, , digits]) => el("td", {}, number(lastOf(run, key), digits))), el("td", {}, clock(run.seconds))))))));
    for (const run of trains()) {
      if (run.error) root.append(el("p", { class: "note" }, `${run.name}: ${run.error}`));
      else if (run.stopped) root.append(el("p", { class: "note" }, `${run.name} ${run.status}: ${run.stopped}`));
    }
    const gates = trains().filter((run) => run.initial_entropy !== null && run.initial_entropy !== undefined);
    if (gates.length) root.append(el("p", { class: "soft small" }, "Entropy before training (H_ini), in nats: ", gates.map((run) => `${run.name} ${number(run.initial_entropy, 3)}${run.gate ? ` (gate ${run.gate})` : ""}`).join("; "), `. The entropy gate acts where that lies below ln 2 = ${number(data.ln2, 3)}.`));
  }
  if (evals().length) {
    root.append(el("div", { class: "card scroll" }, el("table", { class: "numbers live" },
      el("thead", {}, el("tr", {}, ["eval run", "status", "benchmark", "questions", "samples", "pass@1, %"].map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, evals().flatMap((run) => (run.benchmarks?.length ? run.benchmarks : [null]).map((b, i) => el("tr", {}, el("th", { scope: "row" }, i ? "" : run.name), i ? el("td", {}) : status(run),
        el("td", {}, b ? b.name : "–"), el("td", {}, b ? String(b.questions) : "–"), el("td", {}, b ? `${b.samples.toLocaleString("en")}${b.asked > b.samples ? ` of ${b.asked.toLocaleString("en")}` : ""}` : "–"),
        el("td", {}, b?.pass1 ? `${percent(b.pass1[0])} [${percent(b.pass1[1])}, ${percent(b.pass1[2])}]` : "–"))))))));
    for (const run of evals()) if (run.error) root.append(el("p", { class: "note" }, `${run.name}: ${run.error}`));
  }
}

// -- curves -------------------------------------------------------------------------------------------------------------
const charts = new Map();  // metric -> {options, chart}
let smoothing = null;
function smooth(values, window) {
  const out = [];
  let sum = 0;
  values.forEach((value, i) => {
    sum += value - (i >= window ? values[i - window] : 0);
    out.push(sum / Math.min(i + 1, window));
  });
  return out;
}
function seriesOf(metric, sft) {
  return trains().filter((run) => run.curves?.[metric] && run.sft === sft).map((run) => {
    const { x, y } = run.curves[metric];
    return { run: run.key, name: run.name, x, y: smooth(y, smoothing), raw: smoothing > 1 ? y : null };
  });
}
function drawTrainingLive() {
  const told = trains().filter((run) => run.curves && Object.keys(run.curves).length);
  byId("training").hidden = !trains().length;
  const root = body("training");
  if (!told.length) { clear(root).append(el("p", { class: "soft" }, "Waiting for the first step.")); charts.clear(); return; }
  const longest = Math.max(...told.flatMap((run) => Object.values(run.curves).map((c) => c.x.length)));
  if (!charts.size) {
    smoothing = smoothing ?? Math.max(1, Math.round(longest / 25));
    const out = el("output", {}, plural(smoothing, "point"));
    const slider = el("input", { type: "range", min: 1, max: 50, value: smoothing, "aria-label": "Smoothing", oninput: () => { smoothing = Number(slider.value); out.textContent = plural(smoothing, "point"); drawTrainingLive(); } });
    clear(root).append(el("div", { class: "controls" }, el("label", {}, "Smoothing", slider, out), el("span", { class: "faint" }, "Hover or use the arrow keys; click a run above to hide it.")), el("div", { class: "grid" }));
  }
  const grid = root.querySelector(".grid");
  for (const sft of [false, true]) for (const [metric, title, unit, low, high] of data.curve_metrics) {
    const series = seriesOf(metric, sft);
    const key = `${metric} ${sft}`;
    if (!series.length) continue;
    if (!charts.has(key)) {
      const options = { label: `${title} over training steps`, series, xLabel: "step", xName: "step", height: 210, yRange: [low, high],
        yFormat: unit === "share" ? (v) => `${+(100 * v).toFixed(1)}%` : compact, tipFormat: unit === "share" ? (v) => `${percent(v)}%` : (v) => `${+v.toPrecision(4)}`,
        references: metric === "entropy/mean" && !sft ? [{ y: data.ln2, text: "ln 2" }] : [] };
      const chart = lineChart(options);
      charts.set(key, { options, chart });
      grid.append(el("div", { class: "card" }, el("h3", {}, sft ? `SFT: ${title.toLowerCase()}` : title), el("p", { class: "soft small" }, unit === "share" ? metric : `${metric}${unit ? `, ${unit}` : ""}`), chart));
    } else {
      const held = charts.get(key);
      held.options.series = series;
      held.chart.redraw();
    }
  }
}

// -- the last rollout ---------------------------------------------------------------------------------------------------
const rollout = { run: null, shown: null };
async function drawRollout() {
  const having = trains().filter((run) => run.rollout !== null && run.rollout !== undefined);
  byId("tokens").hidden = !having.length;
  if (!having.length) return;
  const run = having.find((r) => r.key === rollout.run) || having.find((r) => r.status === "running") || having.find((r) => r.gate) || having[0];  // only GTPO has a gate
  const mark = `${run.key} ${run.rollout} ${having.length}`;
  if (rollout.shown === mark) return;
  rollout.shown = mark;
  const { groups, error } = await ask("rollout", { run: run.key });
  const root = clear(body("tokens"));
  if (having.length > 1) root.append(el("div", { class: "controls" }, select("Train run", having.map((r) => [r.key, r.name]), run.key, (key) => { rollout.run = key; drawRollout(); })));
  if (error || !groups.length) { root.append(el("p", { class: "note" }, error || "The log of this rollout is empty.")); return; }
  blocks.set("groups", groups);
  const weighted = groups.some((g) => g.completions.some((c) => c.values.length !== 1 || c.values[0] !== 1));
  data.groups = [{ name: run.name, method: run.method, block: "groups", groups: groups.length, weighted, said: `${plural(groups.length, "group")}, the most telling first` }];
  drawTokens();
}

// -- evaluated samples --------------------------------------------------------------------------------------------------
const sampled = { run: null, benchmark: null, verdict: null, page: 0, shown: null };
function sampleCard(s) {
  const [kind, word] = VERDICT[s.verdict] || ["other", s.verdict];
  return el("article", { class: `completion ${kind}` },
    el("header", {}, el("b", { class: kind === "right" ? "good" : kind === "wrong" ? "bad" : "" }, word),
      el("span", { class: "answer" }, s.answer === null ? "nothing extracted" : `→ ${s.answer}`),
      el("span", { class: "soft" }, s.problem[1] ? `gold ${s.problem[1]}` : ""), s.format ? null : el("span", { class: "bad" }, "wrong format"),
      s.finish === "length" ? el("span", { class: "bad" }, "cut off at the limit") : null, s.error ? el("span", { class: "bad" }, s.error) : null,
      el("span", { class: "soft" }, `${s.question} #${s.index}${s.tokens === null ? "" : ` · ${plural(s.tokens, "token")}`}`),
      s.cut ? el("span", { class: "soft" }, `${s.cut.toLocaleString("en")} characters left out at …`) : null, copyButton("Copy", () => s.text)),
    s.problem[0] ? el("p", { class: "problem small" }, s.problem[0]) : null, el("pre", {}, s.text));
}
async function drawSamples() {
  const having = evals().filter((run) => run.benchmarks?.some((b) => b.samples));
  byId("evaluations").hidden = !having.length;
  if (!having.length) return;
  const run = having.find((r) => r.key === sampled.run) || having[0];
  const tables = run.benchmarks.filter((b) => b.samples);
  const table = tables.find((b) => b.name === sampled.benchmark) || tables[0];
  const verdict = sampled.verdict in table.verdicts ? sampled.verdict : "any";
  const mark = JSON.stringify([run.key, run.version, table.name, verdict, sampled.page, having.length]);
  if (sampled.shown === mark) return;
  sampled.shown = mark;
  const found = await ask("samples", { run: run.key, benchmark: table.name, verdict, page: sampled.page });
  const root = body("evaluations");
  if (found.error) { clear(root).append(el("p", { class: "note" }, found.error)); return; }
  const set = (changes) => { Object.assign(sampled, { page: 0 }, changes); drawSamples(); };
  const options = [["any", `all ${table.samples.toLocaleString("en")}, wrong first`], ...Object.entries(table.verdicts).sort((a, b) => b[1] - a[1]).map(([name, count]) => [name, `${(VERDICT[name] || ["", name])[1]} (${count.toLocaleString("en")})`])];
  const last = Math.max(0, Math.ceil(found.total / found.each) - 1);
  const turn = (by) => el("button", { type: "button", "aria-label": by < 0 ? "Previous samples" : "Next samples", disabled: found.page + by < 0 || found.page + by > last, onclick: () => set({ page: found.page + by }) }, by < 0 ? "←" : "→");
  const first = found.page * found.each + 1;
  clear(root).append(el("div", { class: "controls" },
    select("Eval run", having.map((r) => [r.key, r.name]), run.key, (key) => set({ run: key })),
    tables.length > 1 ? select("Benchmark", tables.map((b) => [b.name, b.name]), table.name, (name) => set({ benchmark: name })) : null,
    select("Verdict", options, verdict, (name) => set({ verdict: name })), turn(-1), turn(1),
    el("span", { class: "soft", role: "status" }, found.total ? `${first.toLocaleString("en")} to ${(first + found.samples.length - 1).toLocaleString("en")} of ${found.total.toLocaleString("en")}` : "none")),
  el("div", { class: "group" }, found.samples.map(sampleCard)));
}

// -- following ----------------------------------------------------------------------------------------------------------
let version = 0;  // up to which the page knows everything
async function look() {
  try {
    const told = await ask("state", { since: version });
    let news = runs.size === 0 || Object.keys(told.runs).length !== runs.size;
    for (const key of [...runs.keys()]) if (!(key in told.runs)) runs.delete(key);
    for (const [key, run] of Object.entries(told.runs)) {
      if (!run.kind) continue;  // nothing new
      meet(key, run);
      runs.set(key, { key, ...run });
      news = true;
    }
    version = told.version;
    byId("lost").hidden = true;
    if (news) {
      drawList();
      drawTrainingLive();
      await Promise.all([drawRollout(), drawSamples()]);
      document.querySelectorAll("nav a").forEach((a) => { a.hidden = byId(a.getAttribute("href").slice(1)).hidden; });
    }
    document.documentElement.dataset.complete ??= String(Math.round(performance.now()));
    document.documentElement.dataset.looks = String(Number(document.documentElement.dataset.looks || 0) + 1);
  } catch (error) {
    byId("lost").hidden = false;
    if (!(error instanceof TypeError)) byId("lost").textContent = `gtpo view did not answer (${error.message}).`;
  }
  setTimeout(look, EVERY);
}
const kept = (() => { try { return localStorage.getItem("gtpo-theme"); } catch { return null; } })();
if (kept) document.documentElement.dataset.theme = kept;
byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("gtpo-theme", root.dataset.theme); } catch { /* the choice lasts for this view */ }
});
look();
