// The answer: the table for a paper, then one card per benchmark with a sentence per method and a forest plot.
const versus = (table) => (state.baseline === null ? null : table.versus[state.baseline] || null);
/** Indices of the columns that every baseline has: the metrics, pass@K, maj@K, format. */
function keyColumns(table) {
  const rows = Object.values(table.versus)[Object.keys(table.versus).findIndex((base) => base !== data.baseline)] || versus(table);
  const row = rows && Object.values(rows).find((r) => r.some(Boolean));
  const all = table.columns.map((_, i) => i);
  const found = row ? all.filter((i) => row[i]) : all;
  const top = Math.max(...table.columns.map((c) => c[1]));
  const wanted = found.filter((i) => data.metrics.includes(table.columns[i][2]) || table.columns[i][1] === top || table.columns[i][1] === 0);
  return wanted.sort((a, b) => rank(table, a) - rank(table, b)).slice(0, 4);
}
const rank = (table, i) => { const at = data.metrics.indexOf(table.columns[i][2]); return at < 0 ? 10 + i : at; };
const primary = (table) => table.columns.findIndex((c) => c[2] === data.metrics[0]);
const kindOf = (d) => (d.shown > 0 ? "good" : d.shown < 0 ? "bad" : "none");
const arrow = (d) => (d.shown > 0 ? "\u00a0▲" : d.shown < 0 ? "\u00a0▼" : "");
const shownP = (d) => (d.holm === null ? pText(d.p) : pText(d.holm));

function valueCell(table, name, i) {
  const [mean, low, high, sd] = table.cells[name][i];
  const [best, second] = table.best[table.columns[i][2]] || [];
  return [el("span", { class: `v ${name === best ? "best" : name === second ? "second" : ""}` }, percent(mean)), sd === null ? null : el("span", { class: "soft" }, ` ±${percent(sd)}`),
    el("small", {}, `${percent(low)} to ${percent(high)}`)];
}
function changeText(d) {
  return d && el("span", { class: `d ${kindOf(d)}` }, `${signed(d.d)}${arrow(d)}`, el("small", {}, `${signed(d.low)} to ${signed(d.high)}`), el("small", {}, shownP(d)));
}
/** Methods x benchmarks, one metric: what a paper prints. */
function paperTable(metric) {
  const tables = data.benchmarks.filter((t) => !t.group);
  const average = tables.length > 1;
  const role = metric === data.metrics[0] ? "primary metric" : "exploratory: nothing is marked";
  const rows = data.methods.map((m) => {
    const cells = tables.map((table) => {
      const i = table.columns.findIndex((c) => c[2] === metric);
      if (i < 0 || !table.cells[m.name]) return el("td", {}, "–");
      return tipped(el("td", { tabindex: 0 }, valueCell(table, m.name, i), changeText(versus(table)?.[m.name]?.[i])), table, m.name, i);
    });
    const mean = data.averages[m.name]?.[metric];
    return el("tr", {}, el("th", { scope: "row" }, swatch(m.name), m.label, el("small", {}, [m.name === state.baseline ? "baseline" : "", seedsText(m.runs.length)].filter(Boolean).join(", "))),
      cells, average ? el("td", {}, mean ? el("span", { class: "v" }, percent(mean[0])) : "–", mean && mean[1] !== null ? el("span", { class: "soft" }, ` ±${percent(mean[1])}`) : null) : null);
  });
  return el("div", { class: "scroll" }, el("table", { class: "numbers paper" },
    el("caption", {}, `${metric}, % (${role})`),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "method"), tables.map((t) => el("th", { scope: "col" }, t.name, el("small", {}, plural(t.questions, "question")))), average ? el("th", { scope: "col" }, "average") : null)),
    el("tbody", {}, rows)));
}

/** One line per method: what it is against the baseline, by how much, and how sure. */
function headline(table) {
  const found = versus(table);
  if (!found) return el("p", { class: "headline" }, table.methods.length > 1 ? "No baseline here, so no differences." : "One method: nothing to compare with.");
  const column = primary(table);
  const lines = table.methods.filter((name) => found[name]?.[column]).map((name) => [name, found[name][column]]);
  lines.sort(([, a], [, b]) => b.shown - a.shown || b.d - a.d);
  return el("ul", { class: "headline" }, lines.map(([name, d]) => {
    const range = `interval ${signed(d.low)} to ${signed(d.high)}`;
    const small = (text) => el("span", { class: "soft" }, text);
    return el("li", { class: kindOf(d) }, d.shown
      ? [el("b", {}, `${label(name)} is ${d.shown > 0 ? "better" : "worse"}`), ` than ${label(state.baseline)} by `, el("b", {}, `${percent(Math.abs(d.d))}\u00a0points`), small(` of ${data.metrics[0]} (${range}, ${shownP(d)})`)]
      : [el("b", {}, `${label(name)}: no difference`), ` to ${label(state.baseline)} shown in ${data.metrics[0]}`, small(` (${signed(d.d)}, ${range}, ${shownP(d)}); a difference under about ${percent(d.detect)}\u00a0points stays hidden here`)],
      small(`. Covers ${d.covers}${d.ps === null ? "" : `; over seeds alone ${pText(d.ps)}, at best ${pText(d.psmin).slice(4)}`}.`));
  }));
}

function forest(table) {
  const found = versus(table);
  if (!found) return null;
  const columns = keyColumns(table);
  const others = table.methods.filter((name) => name !== state.baseline);
  const rows = others.flatMap((name) => columns.map((c) => found[name]?.[c])).filter(Boolean);
  if (!rows.length) return null;
  // One scale for the whole card, so that lengths compare across columns; zero is always in it.
  const zone = Math.min(0.25, Math.max(...rows.map((d) => d.detect)));
  const left = Math.min(-0.005, -zone * 0.6, ...rows.map((d) => d.low)) * 1.08, right = Math.max(0.005, zone * 0.6, ...rows.map((d) => d.high)) * 1.08;
  const at = (v) => (100 * (Math.min(right, Math.max(left, v)) - left)) / (right - left);
  const x = (v) => `${at(v).toFixed(2)}%`;
  const cell = (name, c) => {
    const d = found[name]?.[c];
    if (!d) return el("td", { "data-label": table.columns[c][2] });
    const plot = svg("svg", { class: colour(name), "aria-hidden": true },
      svg("rect", { class: "zone", x: x(-d.detect), width: `${(at(d.detect) - at(-d.detect)).toFixed(2)}%`, y: 3, height: 20, rx: 3 }),
      svg("line", { class: "zero", x1: x(0), x2: x(0), y1: 0, y2: 26 }),
      svg("line", { class: "whisker", x1: x(d.low), x2: x(d.high), y1: 13, y2: 13 }),
      svg("circle", { class: d.shown ? "dot" : "dot open", cx: x(d.d), cy: 13, r: 5 }));
    const value = el("span", { class: `value ${kindOf(d)}` }, `${signed(d.d)}${arrow(d)}`, el("small", {}, shownP(d)));
    return tipped(el("td", { "data-label": table.columns[c][2], tabindex: 0 }, el("div", { class: "row" }, plot, value)), table, name, c);
  };
  const axis = () => svg("svg", { class: "axis", "aria-hidden": true }, ticks(100 * left, 100 * right, 3).map((t) => [
    svg("line", { x1: x(t / 100), x2: x(t / 100), y1: 0, y2: 4 }), svg("text", { x: x(t / 100), y: 16, "text-anchor": "middle" }, signed(t / 100, 0))]).flat());
  return el("table", { class: "forest" },
    el("thead", {}, el("tr", {}, el("th", {}, `points against ${label(state.baseline)}`), columns.map((c) => el("th", { scope: "col" }, table.columns[c][2], table.columns[c][2] === data.metrics[0] ? null : el("small", {}, " exploratory"))))),
    el("tbody", {}, others.map((name) => el("tr", {}, el("th", { scope: "row" }, swatch(name), label(name)), columns.map((c) => cell(name, c))))),
    el("tfoot", {}, el("tr", {}, el("td", {}), columns.map(() => el("td", {}, el("div", { class: "row" }, axis(), el("span", { class: "value" })))))));
}

/** Everything about one cell, on hover and on focus. */
function tipped(node, table, name, c) {
  const show = (event) => {
    const [mean, low, high, sd, seeds] = table.cells[name][c];
    const rows = [["value", `${percent(mean)} [${percent(low)}, ${percent(high)}]`]];
    if (sd !== null) rows.push(["each seed", seeds.map((v) => percent(v)).join(", ")]);
    const d = versus(table)?.[name]?.[c];
    if (d) {
      rows.push([`against ${label(state.baseline)}`, `${signed(d.d)} [${signed(d.low)}, ${signed(d.high)}]`], ["interval's level", `${percent(d.level)} %`]);
      if (d.holm !== null) rows.push(["Holm-corrected", pText(d.holm)]);
      rows.push(["uncorrected", pText(d.p)], ["test", d.test], ["covers", d.covers], ["over questions", pText(d.pq)]);
      if (d.ps !== null) rows.push(["over seeds", `${pText(d.ps)} (at best ${pText(d.psmin).slice(4)})`]);
      rows.push(["detectable", `±${percent(d.detect)}`], ["", d.holm === null ? "exploratory" : d.shown ? "shown after correction" : "no difference shown"]);
    }
    const box = node.getBoundingClientRect();
    showTip(event.clientX || box.left + 20, event.clientY || box.bottom, `${label(name)}, ${table.columns[c][2]}`, rows);
  };
  for (const kind of ["pointermove", "focus"]) node.addEventListener(kind, show);
  for (const kind of ["pointerleave", "blur"]) node.addEventListener(kind, hideTip);
  return node;
}

function drawAnswer() {
  const root = clear(body("answer"));
  const tables = data.benchmarks.filter((t) => !t.group);
  if (!tables.length) { byId("answer").hidden = true; return; }
  const controls = el("div", { class: "controls" });
  if (bases.length > 1) {
    controls.append(select("Compare with", bases.map((name) => [name, label(name)]), state.baseline,
      (name) => { state.baseline = name; remember("base", name, data.baseline, "answer"); changed("baseline"); }),
    el("span", { class: "soft" }, state.baseline === data.baseline ? data.baseline_reason : ""));
  }
  const exports = block("exports");
  controls.append(el("span", { class: "spread" }), ...Object.keys(exports).map((name) => copyButton(`Copy ${name}`, () => exports[name])),
    saveButton("Save CSV", "gtpo-compare.csv", () => exports.CSV), copyButton("Copy link", () => location.href));
  root.append(controls, el("div", { class: "card" }, data.metrics.map(paperTable)));
  tables.forEach((table, i) => {
    root.append(el("details", { class: "card", open: i === 0 || innerWidth > 760 },
      el("summary", {}, el("h3", {}, table.name), el("span", { class: "soft small" }, `${plural(table.questions, "question")}, ${plural(table.samples, "sample")} each, scoring ${data.scoring}`)),
      table.notes.map((note) => el("p", { class: "note" }, note)),
      headline(table), forest(table),
      versus(table) && el("p", { class: "soft small" }, `Dot: difference, filled where it is shown. Line: its interval, paired by question. Grey field: differences too small for these questions to show with 80 % power. Marked: ${data.metrics[0]} only, where p <= 0.05 after Holm's correction over the benchmarks and the interval excludes 0.`)));
  });
}
on("baseline", drawAnswer);
