// Questions: a virtual list of all of them, filters, search; every choice is kept in the address.
const ROW = 46;
function drawExplorer() {
  const root = body("explorer");
  const tables = data.benchmarks.filter((t) => t.explorer && t.explorer.ids.length);
  if (!tables.length) { byId("explorer").hidden = true; return; }
  const usual = { outcome: "any", verdict: "any", disagree: "any", right: "any", wrong: "any", find: "", order: "disagree" };
  const view = { table: Math.max(0, tables.findIndex((t) => t.name === address.get("bench"))), picked: null, only: false };
  for (const key of Object.keys(usual)) view[key] = address.get(key) || usual[key];
  view.only = address.get("only") ? address.get("only") === "1" : tables.some((t) => t.explorer.shown.length);
  let rows = [];
  const table = () => tables[view.table];
  const listing = () => table().explorer;
  const names = () => table().methods;
  const at = (values, q) => (Array.isArray(values) ? values[q] : values);
  const rate = (name, q) => listing().correct[name][q] / at(listing().n[name], q);
  const rates = (q) => names().map((name) => rate(name, q));
  const spread = (q) => Math.max(...rates(q)) - Math.min(...rates(q));
  const held = () => block(table().block);
  const wanted = () => sampleFilter(view.verdict);

  function matches(q, shown) {
    if (view.only && !shown.has(q)) return false;
    const found = rates(q);
    if (view.outcome === "all" && !found.every((r) => r === 1)) return false;
    if (view.outcome === "some" && !found.some((r) => r > 0 && r < 1)) return false;
    if (view.outcome === "none" && !found.every((r) => r === 0)) return false;
    if (view.disagree === "majority" && !(found.some((r) => r > 0.5) && found.some((r) => r < 0.5))) return false;
    if (view.right !== "any" && !(rate(view.right, q) > 0.5)) return false;
    if (view.wrong !== "any" && !(rate(view.wrong, q) < 0.5)) return false;
    if (view.verdict === "truncated" && !names().some((name) => at(listing().truncated[name], q) > 0)) return false;
    if (view.verdict !== "any" && view.verdict !== "truncated" && !Object.values(held().samples[q] || {}).flat().some(wanted())) return false;
    if (view.find) {
      const word = view.find.toLowerCase();
      const texts = [listing().ids[q], ...(held().problems[q] || []).slice(0, 2), ...Object.values(held().samples[q] || {}).flat().map((s) => s[6])];
      if (!texts.some((text) => text && text.toLowerCase().includes(word))) return false;
    }
    return true;
  }

  const status = el("p", { class: "soft small", role: "status" });
  const inner = el("div", { class: "inner" });
  const list = el("div", { class: "card list", role: "listbox", tabindex: 0, "aria-label": "Questions" }, inner);
  const detail = el("div", { class: "detail" });

  function refresh(picked) {
    for (const key of ["right", "wrong"]) if (view[key] !== "any" && !names().includes(view[key])) view[key] = "any";
    const shown = new Set(listing().shown);
    rows = listing().ids.map((_, q) => q).filter((q) => matches(q, shown));
    const mean = (q) => rates(q).reduce((sum, r) => sum + r, 0);
    const orders = { disagree: (a, b) => spread(b) - spread(a) || a - b, hard: (a, b) => mean(a) - mean(b) || a - b, easy: (a, b) => mean(b) - mean(a) || a - b, id: (a, b) => a - b };
    rows.sort(orders[view.order] || orders.disagree);
    const e = listing();
    status.textContent = `${plural(rows.length, "question")} of ${e.ids.length.toLocaleString("en")}. ` + (e.complete
      ? "Every completion is in this page."
      : !e.shown.length ? "These run folders hold no completions (samples/), only their counts." : `This page holds the completions of ${plural(e.shown.length, "question")}, up to ${e.each} of each method, one of each verdict first: chosen where the methods disagree most, with some that all half solve, fail or solve. The counts are of all samples.`);
    inner.style.height = `${rows.length * ROW}px`;
    list.scrollTop = 0;
    const keep = picked ?? view.picked;
    if (keep !== null && !rows.includes(keep) && picked !== undefined) rows.unshift(keep);  // a link shows its question whatever is filtered
    paint();
    pick(rows.includes(keep) ? keep : rows[0] ?? null, picked === undefined);
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
        el("div", { class: "bars", "aria-hidden": true }, names().map((name) => {
          const bar = el("i", { class: colour(name) });
          bar.style.width = `${100 * rate(name, q)}%`;
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
  let started = false;
  function pick(q, quiet) {
    view.picked = q;
    for (const item of inner.children) item.setAttribute("aria-selected", String(item.id === `q${q}`));
    if (q !== null) list.setAttribute("aria-activedescendant", `q${q}`);
    if (started && !quiet) { remember("bench", table().name, "", "explorer"); remember("q", q === null ? null : listing().ids[q], "", "explorer"); address.delete("sample"); }
    clear(detail);
    if (q === null) return detail.append(el("p", { class: "soft" }, "No question matches these filters."));
    detail.append(...questionView(table(), held(), q, view.verdict));
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

  const controls = el("div", { class: "controls" });
  function drawControls() {
    const set = (key) => (value) => { view[key] = value; remember(key, value, usual[key], "explorer"); refresh(); };
    const which = [["any", "any"], ...names().map((name) => [name, label(name)])];
    const search = el("input", { type: "search", placeholder: "Search text", "aria-label": "Search text", oninput: () => set("find")(search.value) });
    search.value = view.find;
    const only = el("input", { type: "checkbox", checked: view.only, onchange: () => { view.only = only.checked; remember("only", view.only ? "1" : "0", "1", "explorer"); refresh(); } });
    clear(controls).append(
      ...(tables.length > 1 ? [select("Benchmark", tables.map((t, i) => [String(i), t.name]), String(view.table), (i) => { view.table = Number(i); view.picked = null; remember("bench", table().name, "", "explorer"); drawControls(); refresh(); })] : []),
      select("Samples", [["any", "any"], ["all", "all right"], ["some", "some right"], ["none", "none right"]], view.outcome, set("outcome")),
      select("Verdict", [["any", "any"], ...Object.entries(VERDICT).map(([key, [, text]]) => [key, text]), ["format", "wrong format"], ["truncated", "truncated"]], view.verdict, set("verdict")),
      ...(names().length > 1 ? [select("Right in", which, view.right, set("right")), select("Wrong in", which, view.wrong, set("wrong")),
        select("Methods", [["any", "any"], ["majority", "majorities disagree"]], view.disagree, set("disagree"))] : []),
      select("Order", [["disagree", "disagreement"], ["hard", "hardest first"], ["easy", "easiest first"], ["id", "as in the benchmark"]], view.order, set("order")),
      search, ...(listing().complete ? [] : [el("label", {}, only, "with completions in this page")]));
  }
  root.append(controls, status, el("div", { class: "explore" }, list, detail));
  drawControls();
  const asked = listing().ids.indexOf(address.get("q"));
  refresh(asked < 0 ? undefined : asked);
  started = true;
  const linked = address.get("sample");
  if (linked) document.getElementById(`s-${linked}`)?.scrollIntoView({ block: "center" });
  on("hidden", () => pick(view.picked, true));
  root.move = move;
}
