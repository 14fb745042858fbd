// The answer: the table for a paper, then one card per benchmark with a sentence per method and a forest plot.
const primary = (table) => table.columns.findIndex((column) => column.label === data.metrics[0]);
const ORDER = Object.keys(MARK);

/** Every verdict as a sentence, what is shown first; of many undecided ones the rest is folded. */
function headline(tables) {
  const found = tables.flatMap((table) => table.methods.map((name) => change(table, name, primary(table)))).filter((d) => d?.sentence);
  if (!found.length) return el("p", { class: "headline" }, tables.some((t) => t.methods.length > 1) ? "No baseline here, so no differences." : "One method: nothing to compare with.");
  found.sort((a, b) => ORDER.indexOf(a.verdict) - ORDER.indexOf(b.verdict) || b.d - a.d);
  const advice = found.every((d) => d.sentence[2] === found[0].sentence[2]) ? found[0].sentence[2] : null;  // said once if it is the same for all
  const line = (d) => el("li", { class: `${kindOf(d)} ${d.verdict}` }, el("b", {}, `${d.sentence[0]}:`), " ", el("span", { class: "soft" }, d.sentence[1], advice === null ? ` ${d.sentence[2]}` : ""));
  const shown = innerWidth > 760 ? Math.max(8, found.filter((d) => d.verdict !== "undecided").length) : 6;
  const rest = found.slice(shown);
  return el("div", {}, el("ul", { class: "headline" }, found.slice(0, shown).map(line)), advice ? el("p", { class: "soft" }, advice) : null,
    rest.length ? el("details", { class: "screenonly" }, el("summary", { class: "soft" }, `${rest.length} more${rest.every((d) => d.verdict === "undecided") ? ", undecided" : ""}`), el("ul", { class: "headline" }, rest.map(line))) : null);
}

/** Differences with their intervals: a row per method, a column per benchmark or metric; one scale for all of them. */
function forest(names, columns) {
  const rows = names.flatMap((name) => columns.map((c) => c.of(name))).filter(Boolean);
  if (!rows.length) return null;
  const margin = data.margin ?? 0;
  const left = Math.min(-0.005, -margin * 1.2, ...rows.map((d) => d.low)) * 1.08;
  const right = Math.max(0.005, margin * 1.2, ...rows.map((d) => d.high)) * 1.08;
  const at = (v) => (100 * (Math.min(right, Math.max(left, v)) - left)) / (right - left);
  const x = (v) => `${at(v).toFixed(2)}%`;
  const cell = (name, c) => {
    const d = c.of(name);
    if (!d) return el("td", { "data-label": c.head });
    const edge = (v) => svg("line", { class: "margin", x1: x(v), x2: x(v), y1: 1, y2: 25 });
    const plot = svg("svg", { class: colour(name), "aria-hidden": true },
      margin ? [svg("rect", { class: "zone", x: x(-margin), width: `${(at(margin) - at(-margin)).toFixed(2)}%`, y: 3, height: 20 }), edge(-margin), edge(margin)] : null,
      svg("line", { class: "zero", x1: x(0), x2: x(0), y1: 0, y2: 26 }),
      svg("line", { class: "whisker", x1: x(d.low), x2: x(d.high), y1: 13, y2: 13 }),
      svg("circle", { class: d.verdict && d.verdict !== "undecided" ? "dot" : "dot open", cx: x(d.d), cy: 13, r: 5 }));
    const value = el("span", { class: `value ${kindOf(d)}` }, `${signed(d.d)}${arrow(d)}`, el("small", {}, d.verdict || shownP(d)));
    return tipped(el("td", { "data-label": c.head, tabindex: 0 }, el("div", { class: "row" }, plot, value)), c.table, name, c.i);
  };
  const marks = ticks(100 * left, 100 * right, Math.max(2, Math.min(6, 10 / columns.length)));  // as many as have room
  const axis = () => svg("svg", { class: "axis", "aria-hidden": true }, marks.map((t) => [
    svg("line", { x1: x(t / 100), x2: x(t / 100), y1: 0, y2: 4 }), svg("text", { x: x(t / 100), y: 16, "text-anchor": "middle" }, `${t > 0 ? "+" : t < 0 ? "−" : ""}${compact(Math.abs(t))}`)]).flat());
  return el("table", { class: "forest" },
    el("thead", {}, el("tr", {}, el("th", {}, `points against ${label(state.baseline)}`), columns.map((c) => el("th", { scope: "col" }, c.head, el("small", {}, ` ${c.note}`))))),
    el("tbody", {}, names.filter((name) => columns.some((c) => c.of(name))).map((name) => el("tr", {}, el("th", { scope: "row" }, swatch(name), label(name)), columns.map((c) => cell(name, c))))),
    el("tfoot", {}, el("tr", {}, el("td", {}), columns.map(() => el("td", {}, el("div", { class: "row" }, axis(), el("span", { class: "value" })))))));
}
const others = () => data.methods.map((m) => m.name).filter((name) => name !== state.baseline);
/** The primary metric on every benchmark. */
const primaryForest = (tables) => forest(others(), tables.map((table) => ({ head: table.name, note: data.metrics[0], table, i: primary(table), of: (name) => change(table, name, primary(table)) })));
/** The other metrics of one benchmark. */
const otherForest = (table) => forest(others(), table.keys.slice(0, 4).filter((i) => i !== primary(table)).map((i) => ({ head: table.columns[i].label, note: "not tested", table, i, of: (name) => change(table, name, i) })));

function drawAnswer() {
  const root = clear(body("answer"));
  const tables = data.benchmarks.filter((t) => !t.group);
  if (!tables.length) { byId("answer").hidden = true; return; }
  const controls = el("div", { class: "controls" });
  if (data.baselines.length > 1) {
    controls.append(select("Compare with", data.baselines.map((name) => [name, label(name)]), state.baseline,
      (name) => { state.baseline = name; remember("base", name, data.baseline, "answer"); changed("baseline"); }),
    el("span", { class: "soft" }, state.baseline === data.baseline ? data.baseline_reason : ""));
  }
  const exports = block("exports");
  const field = data.margin === null ? "" : ` Field: the margin of equivalence, ±${percent(data.margin)} points.`;
  const plot = primaryForest(tables);
  root.append(headline(tables), ...data.notes.map((note) => el("p", { class: "note" }, note)),
    plot ? el("details", { class: "card", open: innerWidth > 760 || tables.length * others().length <= 16 }, el("summary", {}, el("h3", {}, `${data.metrics[0]}: differences to ${label(state.baseline)}`)), plot,
      el("p", { class: "soft small" }, `Dot: difference, filled if a verdict is shown. Line: its interval.${field}`)) : "",
    controls,
    ...data.papers.map((grid, i) => el("details", { class: "card paper", open: i === 0 || innerWidth > 760 }, el("summary", {}, el("h3", {}, `${grid.name}, ${grid.unit}`), el("span", { class: "soft small" }, i === 0 ? "primary metric" : "not tested")), drawGrids([grid]))));
  const more = tables.map((table) => [table, otherForest(table)]).filter(([, plot]) => plot);
  if (more.length) {
    root.append(el("details", { class: "card screenonly" }, el("summary", {}, el("h3", {}, "Other metrics"), el("span", { class: "soft small" }, "not tested")),
      more.map(([table, plot]) => [el("h3", {}, table.name), plot])));
  }
  root.append(el("div", { class: "controls" }, ...Object.keys(exports).map((name) => copyButton(`Copy ${name}`, () => exports[name])),
      saveButton("Save CSV", "gtpo-compare.csv", () => exports.CSV), copyButton("Copy link", () => location.href)));
}
on("baseline", drawAnswer);
