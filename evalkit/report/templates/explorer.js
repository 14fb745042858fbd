// Questions and completions: a virtual list of all questions, filters, and the completions that the page holds.
const ROW = 46;
const VERDICT = { CORRECT: ["right", "✓ correct"], INCORRECT: ["wrong", "✗ wrong"], NO_ANSWER: ["other", "∅ no answer"],
  TIMEOUT: ["other", "⧗ verifier timed out"], REJECTED: ["other", "⊘ rejected by the verifier"], UNSCORED: ["other", "? unscored"] };

function drawExplorer() {
  const root = body("explorer");
  const tables = data.benchmarks.filter((t) => t.explorer && t.explorer.ids.length);
  if (!tables.length) return root.append(el("p", { class: "soft" }, "No eval run among these."));
  const view = { table: 0, outcome: "any", verdict: "any", disagree: "any", search: "", only: tables.some((t) => t.explorer.shown.length), sort: "disagree", picked: null };
  let rows = [];
  const table = () => tables[view.table];
  const listing = () => table().explorer;
  const names = () => table().runs;
  const rate = (run, q) => {
    const n = listing().n[run];
    return listing().correct[run][q] / (Array.isArray(n) ? n[q] : n);
  };
  const spread = (q) => {
    const rates = names().map((run) => rate(run, q));
    return Math.max(...rates) - Math.min(...rates);
  };
  const held = () => block(table().block);

  function matches(q, shown) {
    if (view.only && !shown.has(q)) return false;
    const rates = names().map((run) => rate(run, q));
    if (view.outcome === "all" && !rates.every((r) => r === 1)) return false;
    if (view.outcome === "some" && !rates.some((r) => r > 0 && r < 1)) return false;
    if (view.outcome === "none" && !rates.every((r) => r === 0)) return false;
    if (view.disagree === "majority" && !(rates.some((r) => r > 0.5) && rates.some((r) => r < 0.5))) return false;
    if (view.disagree.startsWith("only:")) {
      const mine = names().indexOf(view.disagree.slice(5));
      if (!(rates[mine] > 0.5 && rates.every((r, i) => i === mine || r <= 0.5))) return false;
    }
    if (view.disagree.startsWith("not:")) {
      const mine = names().indexOf(view.disagree.slice(4));
      if (!(rates[mine] < 0.5 && rates.every((r, i) => i === mine || r >= 0.5))) return false;
    }
    if (view.verdict !== "any") {
      const samples = Object.values(held().samples[q] || {}).flat();
      const wanted = view.verdict === "format" ? (s) => !s[3] : view.verdict === "truncated" ? (s) => s[5] === "length" : (s) => s[1] === view.verdict;
      if (!samples.some(wanted)) return false;
    }
    if (view.search) {
      const word = view.search.toLowerCase();
      const texts = [listing().ids[q], ...(held().problems[q] || []), ...Object.values(held().samples[q] || {}).flat().map((s) => s[6])];
      if (!texts.some((text) => text && text.toLowerCase().includes(word))) return false;
    }
    return true;
  }

  const status = el("p", { class: "soft small", role: "status" });
  const inner = el("div", { class: "inner" });
  const list = el("div", { class: "card list", role: "listbox", tabindex: 0, "aria-label": "Questions" }, inner);
  const detail = el("div", { class: "detail" });

  function refresh() {
    const shown = new Set(listing().shown);
    rows = listing().ids.map((_, q) => q).filter((q) => matches(q, shown));
    const mean = (q) => names().reduce((sum, run) => sum + rate(run, q), 0);
    const order = { disagree: (a, b) => spread(b) - spread(a) || a - b, hard: (a, b) => mean(a) - mean(b) || a - b, easy: (a, b) => mean(b) - mean(a) || a - b, id: (a, b) => a - b };
    rows.sort(order[view.sort]);
    const e = listing();
    status.textContent = `${plural(rows.length, "question")} of ${e.ids.length.toLocaleString("en")}. ` + (e.complete
      ? "Every completion is in this page."
      : !e.shown.length ? "These run folders hold no completions (samples/), only their counts." : `This page holds the completions of ${plural(e.shown.length, "question")}, up to ${e.each} of each run, one of each verdict first: chosen where the runs disagree most, with some that all half solve, fail or solve. The counts are of all samples.`);
    inner.style.height = `${rows.length * ROW}px`;
    list.scrollTop = 0;
    paint();
    pick(rows.includes(view.picked) ? view.picked : rows[0] ?? null);
  }
  function paint() {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
    const last = Math.min(rows.length, first + Math.ceil((list.clientHeight || 600) / ROW) + 9);
    const shown = new Set(listing().shown);
    clear(inner);
    for (let i = first; i < last; i++) {
      const q = rows[i];
      const item = el("div", { class: shown.has(q) ? "q" : "q absent", role: "option", id: `q${q}`, "aria-selected": String(q === view.picked), onclick: () => { pick(q); } },
        el("span", { class: "id" }, title(q)),
        el("div", { class: "bars", "aria-hidden": true }, names().map((run) => {
          const bar = el("i", { class: colour(runIndex.get(run)) });
          bar.style.width = `${100 * rate(run, q)}%`;
          return el("span", {}, bar);
        })));
      item.style.top = `${i * ROW}px`;
      inner.append(item);
    }
  }
  const title = (q) => {
    const text = held().problems[q]?.[0];
    return text ? `${listing().ids[q].split("/").at(-1)} · ${text}` : listing().ids[q];
  };
  function pick(q) {
    view.picked = q;
    for (const item of inner.children) item.setAttribute("aria-selected", String(item.id === `q${q}`));
    if (q !== null) list.setAttribute("aria-activedescendant", `q${q}`);
    show(q);
  }
  function move(by) {
    if (!rows.length) return;
    const i = Math.min(rows.length - 1, Math.max(0, rows.indexOf(view.picked) + by));
    if (i * ROW < list.scrollTop) list.scrollTop = i * ROW;
    if ((i + 1) * ROW > list.scrollTop + list.clientHeight) list.scrollTop = (i + 1) * ROW - list.clientHeight;
    paint();
    pick(rows[i]);
  }
  list.addEventListener("scroll", paint);
  list.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9, j: 1, k: -1 }[event.key];
    if (by) { event.preventDefault(); move(by); }
  });

  function show(q) {
    clear(detail);
    if (q === null) return detail.append(el("p", { class: "soft" }, "No question matches these filters."));
    const e = listing();
    const problem = held().problems[q];
    const samples = held().samples[q];
    detail.append(el("div", { class: "card" },
      el("p", { class: "faint small" }, e.ids[q], e.subject.length && e.subjects[e.subject[q]] ? ` · ${e.subjects[e.subject[q]]}` : ""),
      problem ? el("div", { class: "problem" }, problem[0]) : el("p", { class: "soft small" }, "This run folder does not hold the question's text."),
      problem ? el("p", {}, "Gold answer: ", el("b", {}, problem[1])) : null));
    const columns = el("div", { class: "columns" });
    names().forEach((run, r) => {
      if (state.hidden.has(run)) return;
      const n = Array.isArray(e.n[run]) ? e.n[run][q] : e.n[run];
      const mine = (samples?.[r] || []).filter((s) => view.verdict === "any" || (view.verdict === "format" ? !s[3] : view.verdict === "truncated" ? s[5] === "length" : s[1] === view.verdict));
      const all = samples?.[r]?.length || 0;
      columns.append(el("div", {}, el("h3", {}, swatch(run), label(run)),
        el("p", { class: "soft small" }, `${e.correct[run][q]} of ${n} right${all ? `; ${mine.length < all ? `${mine.length} of these shown` : all < n ? `${all} shown` : "all shown"}` : ""}`),
        samples ? mine.map(completion) : null));
    });
    detail.append(samples ? columns : el("div", {}, columns, el("p", { class: "note" }, "The completions of this question are not in this page; they are in the run folders' samples/, where gtpo eval keeps them (more room here: --samples-mb).")));
  }
  function completion([index, verdict, answer, format, tokens, finish, text, cut]) {
    const [kind, word] = VERDICT[verdict] || ["other", verdict];
    return el("article", { class: `completion ${kind}` },
      el("header", {}, el("b", { class: kind === "right" ? "good" : kind === "wrong" ? "bad" : "" }, word),
        el("span", { class: "answer" }, answer === null ? "nothing extracted" : `→ ${answer}`), format ? null : el("span", { class: "bad" }, "format broken"),
        finish === "length" ? el("span", { class: "bad" }, "cut off at the limit") : null,
        el("span", { class: "faint" }, `#${index}${tokens === null ? "" : ` · ${plural(tokens, "token")}`}`),
        cut ? el("span", { class: "faint" }, `${cut.toLocaleString("en")} characters left out at …`) : null),
      el("pre", {}, text));
  }

  const controls = el("div", { class: "controls" });
  function drawControls() {
    const set = (key) => (value) => { view[key] = value; refresh(); };
    const runs = names().map((run) => [run, label(run)]);
    const search = el("input", { type: "search", placeholder: "Search text", "aria-label": "Search text", oninput: () => { view.search = search.value; refresh(); } });
    search.value = view.search;
    const only = el("input", { type: "checkbox", checked: view.only, onchange: () => { view.only = only.checked; refresh(); } });
    clear(controls).append(
      ...(tables.length > 1 ? [select("Benchmark", tables.map((t, i) => [String(i), t.name]), String(view.table), (i) => { view.table = Number(i); view.disagree = "any"; view.picked = null; drawControls(); refresh(); })] : []),
      select("Samples", [["any", "any"], ["all", "all right"], ["some", "some right"], ["none", "none right"]], view.outcome, set("outcome")),
      select("Verdict", [["any", "any"], ["CORRECT", "correct"], ["INCORRECT", "wrong"], ["NO_ANSWER", "no answer"], ["TIMEOUT", "timed out"], ["REJECTED", "rejected"], ["format", "format broken"], ["truncated", "cut off"]], view.verdict, set("verdict")),
      ...(runs.length > 1 ? [select("Runs", [["any", "any"], ["majority", "majorities disagree"], ...runs.map(([r, t]) => [`only:${r}`, `only ${t} solves it`]), ...runs.map(([r, t]) => [`not:${r}`, `only ${t} fails`])], view.disagree, set("disagree"))] : []),
      select("Order", [["disagree", "disagreement"], ["hard", "hardest first"], ["easy", "easiest first"], ["id", "as in the benchmark"]], view.sort, set("sort")),
      search, ...(listing().complete ? [] : [el("label", {}, only, "with completions in this page")]));
  }
  root.append(controls, status, el("div", { class: "explore" }, list, detail));
  drawControls();
  refresh();
  on("hidden", () => pick(view.picked));
  root.move = move;
}
