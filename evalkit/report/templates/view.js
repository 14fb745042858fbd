// gtpo view: asks the server every two seconds what is new, and redraws only that.
const EVERY = 2000;
const COLOURS = 8;  // as many runs over each other at first, the last written ones
const QUIET = 600;  // seconds without a step after which a running run is said to be quiet
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

/** Give a run its colour, by the order in which runs were first seen; seeds of one method share one; and its chip. */
let colours = 1;  // the first colour is the grey of baselines
function meet(key, run) {
  if (index.has(key) || run.kind !== "train") return;
  const twin = trains().find((other) => other.recipe && other.recipe === run.recipe);
  index.set(key, twin ? index.get(twin.key) : colours++);
  if (trains().length >= COLOURS) state.hidden.add(key);
  const chip = el("button", { type: "button", class: `chip ${colour(key)}`, "aria-pressed": String(!state.hidden.has(key)), title: "Show or hide in the curves", onclick: () => {
    if (!state.hidden.delete(key)) state.hidden.add(key);
    chip.setAttribute("aria-pressed", String(!state.hidden.has(key)));
    changed("hidden");
  } }, el("i", {}), run.name);
  byId("runs").append(chip);
  document.documentElement.style.scrollPaddingTop = `${document.querySelector(".top").offsetHeight + 8}px`;
}

const quiet = (run) => run.status === "running" && run.written && Date.now() / 1000 - run.written > QUIET;

// -- the table of runs --------------------------------------------------------------------------------------------------
const ACCURACY = "reward/accuracy";  // beside the name: what a narrow screen must show
const SHOWN = [["reward/format", "format", 2], ["entropy/mean", "entropy", 3], ["gate/kept", "kept", 2], ["conflict/fraction", "conflict", 2], ["completions/length", "length", 0], ["kl", "KL", 4]];
function drawList() {
  const root = clear(body("list"));
  if (!runs.size) { root.append(el("p", { class: "soft" }, "No runs yet. They appear here as soon as gtpo train or gtpo eval has begun one.")); return; }
  const status = (run) => el("td", {}, el("span", { class: `badge ${run.error || BAD.has(run.status) ? "down" : ["finished", "complete"].includes(run.status) ? "up" : "flat"}` }, run.error ? "unreadable" : run.status));
  if (trains().length) {
    const shown = SHOWN.filter(([key]) => trains().some((run) => lastOf(run, key) !== null));
    root.append(el("div", { class: "card scroll" }, el("table", { class: "numbers live" },
      el("thead", {}, el("tr", {}, ["train run", "accuracy", "status", "step", ...shown.map(([, text]) => text), "time"].map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, trains().map((run) => el("tr", {}, el("th", { scope: "row" }, swatch(run.key), run.name, run.method ? el("small", {}, run.method) : null), el("td", {}, number(lastOf(run, ACCURACY))), status(run),
        el("td", {}, run.step === null || run.step === undefined ? "–" : `${run.step}${run.steps ? ` of ${run.steps}` : ""}`),
        shown.map(([key, , digits]) => el("td", {}, number(lastOf(run, key), digits))), el("td", {}, clock(run.seconds))))))));
    for (const run of trains()) {
      if (run.error) root.append(el("p", { class: "note" }, `${run.name}: ${run.error}`));
      else if (run.stopped) root.append(el("p", { class: "note" }, `${run.name} ${run.status}: ${run.stopped}`));
      for (const text of [...(run.warnings || []), ...(quiet(run) ? [`no step for more than ${QUIET / 60} minutes: it may have been killed`] : [])]) root.append(el("p", { class: "note" }, `${run.name}: ${text}`));
    }
    const gates = trains().filter((run) => run.initial_entropy?.length);
    if (gates.length) root.append(el("p", { class: "soft small" }, "Entropy before training (H_ini), in nats: ", gates.map((run) => `${run.name} ${number(run.initial_entropy[0], 3)}${run.gate ? ` (gate ${run.gate})` : ""}`).join("; "), `. The entropy gate acts if that lies below ln 2 = ${number(data.ln2, 3)}.`));
  }
  if (evals().length) {
    root.append(el("div", { class: "card scroll" }, el("table", { class: "numbers live" },
      el("thead", {}, el("tr", {}, ["eval run", "pass@1, %", "benchmark", "status", "questions", "samples", "majority, %", "format, %", "truncated, %", "tokens"].map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, evals().flatMap((run) => (run.benchmarks?.length ? run.benchmarks : [null]).map((b, i) => el("tr", {}, el("th", { scope: "row" }, i ? "" : run.name), el("td", {}, b?.pass1 ? [percent(b.pass1[0]), el("small", {}, `[${percent(b.pass1[1])}, ${percent(b.pass1[2])}]`)] : "–"),
        el("td", {}, b ? b.name : "–"), i ? el("td", {}) : status(run), el("td", {}, b ? String(b.questions) : "–"), el("td", {}, b ? `${b.samples.toLocaleString("en")}${b.asked > b.samples ? ` of ${b.asked.toLocaleString("en")}` : ""}` : "–"),
        el("td", {}, b?.maj ? [percent(b.maj[1]), el("small", {}, `maj@${b.maj[0]}`)] : "–"), ...[b?.format, b?.truncated].map((v) => el("td", {}, percent(v ?? null))), el("td", {}, number(b?.tokens, 0)))))))));
    for (const run of evals()) if (run.error) root.append(el("p", { class: "note" }, `${run.name}: ${run.error}`));
  }
}

// -- curves -------------------------------------------------------------------------------------------------------------
/** Curves in the page's order: those of the reward functions, whose keys hold their names, before the others. */
function metricList() {
  const keys = new Set(trains().flatMap((run) => Object.keys(run.curves || {}).filter((key) => /^rewards\/.*\/mean$/.test(key))));
  return [...[...keys].sort().map((key) => [key, `Reward: ${key.slice(8, -5)}`, "points", null, null]), ...data.curve_metrics];
}
let panels = null;
function drawTrainingLive() {
  byId("training").hidden = !trains().length;
  const told = () => trains().map((t) => ({ ...t, run: t.key, note: t.method && t.method !== t.name ? t.method : "" }));
  if (panels) { panels(); return; }
  const root = clear(body("training"));
  if (told().some((t) => Object.keys(t.curves || {}).length)) panels = trainingPanels(root, told, metricList);
  else root.append(el("p", { class: "soft" }, "Waiting for the first step."));
}

// -- the last rollout ---------------------------------------------------------------------------------------------------
const rollout = { run: null, log: "", shown: null };
const stepOf = (log) => log.replace(/^step-0*(?=\d)/, "step ");
async function drawRollout() {
  const having = trains().filter((run) => run.rollouts?.length);
  byId("tokens").hidden = !having.length;
  if (!having.length) return;
  const run = having.find((r) => r.key === rollout.run) || having.find((r) => r.status === "running") || having.find((r) => r.gate) || having[0];  // only GTPO has a gate
  const last = run.rollouts.at(-1);
  if (!run.rollouts.includes(rollout.log)) rollout.log = "";
  const mark = `${run.key} ${rollout.log} ${run.rollouts.length} ${last} ${having.length}`;
  if (rollout.shown === mark) return;
  rollout.shown = mark;
  const { groups, error } = await ask("rollout", { run: run.key, log: rollout.log });
  const root = clear(body("tokens"));
  root.append(el("div", { class: "controls" },
    having.length > 1 ? select("Train run", having.map((r) => [r.key, r.name]), run.key, (key) => { Object.assign(rollout, { run: key, log: "" }); drawRollout(); }) : null,
    select("Rollout", [["", `the last, ${stepOf(last)}`], ...run.rollouts.slice(0, -1).reverse().map((log) => [log, stepOf(log)])], rollout.log, (log) => { rollout.log = log; drawRollout(); })));
  if (run.method.startsWith("grpo")) root.append(el("p", { class: "soft small" }, "The weights are those that GTPO would give; GRPO itself gives every token of a completion the same one."));
  if (error || !groups.length) { root.append(el("p", { class: "note" }, error || "The log of this rollout is empty.")); return; }
  blocks.set("groups", groups);
  const weighted = groups.some((g) => g.completions.some((c) => c.values.length !== 1 || c.values[0] !== 1));
  data.groups = [{ name: run.name, method: run.method, block: "groups", groups: groups.length, weighted, said: `${plural(groups.length, "group")}, the most telling first` }];
  drawTokens();
}

// -- evaluated samples --------------------------------------------------------------------------------------------------
const sampled = { run: null, benchmark: null, verdict: "any", find: "", page: 0, shown: null };
/** A sample under its question. */
const sampleOf = (s) => el("div", {}, el("p", { class: "soft small between" }, el("span", {}, s.question, s.problem[1] ? ` · gold ${s.problem[1]}` : ""),
  sampled.find === s.question ? null : el("button", { type: "button", class: "quiet", onclick: () => setSamples({ find: s.question, verdict: "any" }) }, "All of this question")),
s.problem[0].length ? el("p", { class: "problem small" }, mathsText(s.problem[0])) : null,
sampleCard([s.index, s.verdict, s.answer, s.format, s.tokens, s.finish, s.text, s.cut], "", { more: s.error ? el("span", { class: "bad" }, s.error) : null }));
const setSamples = (changes) => { Object.assign(sampled, { page: 0 }, changes); return drawSamples(); };
const search = el("input", { type: "search", placeholder: "Question: text or id", "aria-label": "Question", oninput: () => {
  Object.assign(sampled, { find: search.value, page: 0 });
  clearTimeout(search.later);
  search.later = setTimeout(drawSamples, 200);
} });
async function drawSamples() {
  const having = evals().filter((run) => run.benchmarks?.some((b) => b.samples));
  byId("evaluations").hidden = !having.length;
  if (!having.length) return;
  const run = having.find((r) => r.key === sampled.run) || having[0];
  const tables = run.benchmarks.filter((b) => b.samples);
  const table = tables.find((b) => b.name === sampled.benchmark) || tables[0];
  const { verdict, find } = sampled;
  const mark = JSON.stringify([run.key, run.version, table.name, verdict, find, sampled.page, having.length]);
  if (sampled.shown === mark) return;
  sampled.shown = mark;
  const found = await ask("samples", { run: run.key, benchmark: table.name, verdict, find, page: sampled.page });
  const root = body("evaluations");
  if (found.error) { clear(root).append(el("p", { class: "note" }, found.error)); return; }
  if (sampled.shown !== mark) return;  // a later choice overtook this answer
  const set = setSamples;
  const words = [...Object.entries(VERDICT).map(([name, [, word]]) => [name, word]), ["format", "wrong format"], ["truncated", "truncated"]];
  const options = [["any", `all ${found.counts.any.toLocaleString("en")}, wrong first`],
    ...words.filter(([name]) => found.counts[name] || name === verdict).map(([name, word]) => [name, `${word} (${(found.counts[name] || 0).toLocaleString("en")})`])];
  const typing = document.activeElement === search;
  if (!typing) search.value = find;
  const last = Math.max(0, Math.ceil(found.total / found.each) - 1);
  const turn = (by) => el("button", { type: "button", "aria-label": by < 0 ? "Previous samples" : "Next samples", disabled: found.page + by < 0 || found.page + by > last, onclick: () => set({ page: found.page + by }) }, by < 0 ? "←" : "→");
  const first = found.page * found.each + 1;
  clear(root).append(el("div", { class: "controls" },
    select("Eval run", having.map((r) => [r.key, r.name]), run.key, (key) => set({ run: key })),
    tables.length > 1 ? select("Benchmark", tables.map((b) => [b.name, b.name]), table.name, (name) => set({ benchmark: name })) : null,
    select("Verdict", options, verdict, (name) => set({ verdict: name })), search, turn(-1), turn(1),
    el("span", { class: "soft", role: "status" }, found.total ? `${first.toLocaleString("en")} to ${(first + found.samples.length - 1).toLocaleString("en")} of ${found.total.toLocaleString("en")}` : "none")),
  el("div", { class: "group" }, found.samples.map(sampleOf)));
  if (typing) search.focus();
}

// -- following ----------------------------------------------------------------------------------------------------------
let silentRuns = 0;
let version = 0;  // up to which the page knows everything
async function look() {
  try {
    const told = await ask("state", { since: version });
    const silent = () => trains().filter(quiet).length;
    const before = silentRuns;
    silentRuns = silent();
    let news = runs.size === 0 || before !== silentRuns || Object.keys(told.runs).length !== runs.size;
    for (const key of [...runs.keys()]) if (!(key in told.runs)) runs.delete(key);
    for (const [key, run] of Object.entries(told.runs).sort(([, a], [, b]) => (runs.size ? 0 : (b.written ?? 1e12) - (a.written ?? 1e12)))) {
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
look();
