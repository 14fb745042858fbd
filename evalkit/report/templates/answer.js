// The answer (one card a benchmark: a sentence and a forest plot) and the full tables.
const DIFFERENCE = 0, LOW = 1, HIGH = 2, P = 3, P_HOLM = 4, DETECTABLE = 5, TEST = 6, DIRECTION = 7;
const TESTS = { mcnemar: "McNemar, exact", permutation: "paired permutation, all sign flips", "permutation-mc": "paired permutation, random sign flips" };

function versus(table) {
  return state.baseline === null ? null : table.versus[state.baseline] || null;
}
/** Columns of the summary: pass@1, maj@K, pass@K, format. */
function keyColumns(table) {
  const top = Math.max(...table.columns.map((c) => c[1]));
  const wanted = [["pass@k", 1], ["maj@k", top], ["pass@k", top], ["format", 0]];
  const found = wanted.map(([metric, k]) => table.columns.findIndex((c) => c[0] === metric && c[1] === k)).filter((i) => i >= 0 && table.columns[i][2] !== "maj@1");
  return [...new Set(found.length > 1 ? found : table.columns.map((_, i) => i))];
}

/** One line a run: what it is against the baseline, by how much, and how sure. */
function headline(table) {
  const found = versus(table);
  if (!found) return el("p", { class: "headline" }, table.runs.length > 1 ? "No baseline here, so no differences." : "One run: nothing to compare with.");
  const column = keyColumns(table)[0];
  const what = table.columns[column][2];
  const order = (d) => [-d[DIRECTION], -d[DIFFERENCE]];
  const others = table.runs.filter((name) => name !== state.baseline && found.rows[name][column]);
  const lines = others.map((name) => [name, found.rows[name][column]]).sort(([, a], [, b]) => order(a)[0] - order(b)[0] || order(a)[1] - order(b)[1]);
  return el("ul", { class: "headline" }, lines.map(([name, d]) => {
    const kind = d[DIRECTION] > 0 ? "good" : d[DIRECTION] < 0 ? "bad" : "none";
    const range = `95\u00a0% interval ${signed(d[LOW])} to ${signed(d[HIGH])}`;
    const size = `${(100 * Math.abs(d[DIFFERENCE])).toFixed(1)}\u00a0points`;
    const also = keyColumns(table).slice(1).map((c) => [table.columns[c][2], found.rows[name][c]]).filter(([, e]) => e && e[DIRECTION]);
    const more = also.length ? [el("span", { class: "soft" }, d[DIRECTION] ? "; also " : "; but "), several(also.map(([text, e]) => `${text} ${signed(e[DIFFERENCE])} ${e[DIRECTION] > 0 ? "▲" : "▼"}`))] : null;
    return el("li", { class: kind }, d[DIRECTION]
      ? [el("b", {}, `${label(name)} is ${d[DIRECTION] > 0 ? "better" : "worse"}`), ` than ${label(state.baseline)} by `, el("b", {}, size), el("span", { class: "soft" }, ` of ${what} (${range}, ${pText(d[P_HOLM])})`)]
      : [el("b", {}, `${label(name)}: no difference`), ` to ${label(state.baseline)} shown at ${what}`, el("span", { class: "soft" }, ` (${signed(d[DIFFERENCE])}, ${range}); one under about ${(100 * d[DETECTABLE]).toFixed(1)}\u00a0points stays hidden here`)], more);
  }));
}

function forest(table) {
  const found = versus(table);
  if (!found) return null;
  const columns = keyColumns(table);
  const others = table.runs.filter((name) => name !== state.baseline);
  const rows = others.flatMap((name) => columns.map((c) => found.rows[name][c])).filter(Boolean);
  // One scale for the whole card, so that lengths compare across columns; zero is always in it.
  const zone = Math.max(...rows.map((d) => d[DETECTABLE]));
  const left = Math.min(-0.005, -zone * 0.6, ...rows.map((d) => d[LOW])) * 1.08, right = Math.max(0.005, zone * 0.6, ...rows.map((d) => d[HIGH])) * 1.08;
  const at = (v) => (100 * (Math.min(right, Math.max(left, v)) - left)) / (right - left);
  const x = (v) => `${at(v).toFixed(2)}%`;
  const cell = (name, c) => {
    const d = found.rows[name][c];
    if (!d) return el("td", { "data-label": table.columns[c][2] });
    const kind = d[DIRECTION] > 0 ? "up" : d[DIRECTION] < 0 ? "down" : "";
    const plot = svg("svg", { class: kind, "aria-hidden": true },
      svg("rect", { class: "zone", x: x(-d[DETECTABLE]), width: `${(at(d[DETECTABLE]) - at(-d[DETECTABLE])).toFixed(2)}%`, y: 3, height: 20, rx: 3 }),
      svg("line", { class: "zero", x1: x(0), x2: x(0), y1: 0, y2: 26 }),
      svg("line", { class: "whisker", x1: x(d[LOW]), x2: x(d[HIGH]), y1: 13, y2: 13 }),
      svg("circle", { class: "dot", cx: x(d[DIFFERENCE]), cy: 13, r: 5.5 }));
    const value = el("span", { class: `value ${d[DIRECTION] > 0 ? "good" : d[DIRECTION] < 0 ? "bad" : "none"}` },
      signed(d[DIFFERENCE]), d[DIRECTION] > 0 ? " ▲" : d[DIRECTION] < 0 ? " ▼" : " ·");
    return tipped(el("td", { "data-label": table.columns[c][2], tabindex: 0 }, el("div", { class: "row" }, plot, value)), table, name, c);
  };
  return el("table", { class: "forest" },
    el("thead", {}, el("tr", {}, el("th", {}, `points against ${label(state.baseline)}`), columns.map((c) => el("th", { scope: "col" }, table.columns[c][2])))),
    el("tbody", {}, others.map((name) => el("tr", {}, el("th", { scope: "row" }, swatch(name), label(name)), columns.map((c) => cell(name, c))))));
}

/** Everything about one cell, on hover and on focus. */
function tipped(node, table, name, c) {
  const show = (event) => {
    const [mean, low, high] = table.cells[name][c];
    const rows = [["value", `${percent(mean)} [${percent(low)}, ${percent(high)}]`]];
    const d = versus(table)?.rows[name]?.[c];
    if (d) {
      rows.push([`against ${label(state.baseline)}`, `${signed(d[DIFFERENCE])} [${signed(d[LOW])}, ${signed(d[HIGH])}]`],
        ["corrected", pText(d[P_HOLM])], ["uncorrected", pText(d[P])], ["test", TESTS[d[TEST]] || d[TEST]],
        ["could have shown", `±${percent(d[DETECTABLE])}`],
        ["", d[DIRECTION] ? "significant after correction" : "no difference shown"]);
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
  const bases = data.benchmarks.length ? Object.keys(data.benchmarks[0].versus) : [];
  if (bases.length > 1) {
    root.append(el("div", { class: "controls" }, select("Compare with", bases.map((name) => [name, label(name)]), state.baseline,
      (name) => { state.baseline = name; changed("baseline"); }),
    el("span", { class: "faint" }, state.baseline === data.baseline ? data.baseline_reason : "")));
  }
  for (const table of data.benchmarks.filter((t) => !t.group)) {
    const found = versus(table);
    root.append(el("article", { class: "card" },
      el("h3", {}, table.name),
      el("p", { class: "soft small" }, `${plural(table.questions, "question")}, ${plural(table.samples, "sample")} each, scoring ${data.scoring}`),
      table.notes.map((note) => el("p", { class: "note" }, note)),
      headline(table), forest(table),
      found && el("p", { class: "faint small" }, `Dot: difference. Line: its 95 % interval, paired by question. Grey field: differences too small for these questions to show (80 % power). Colour: significant after Holm's correction for ${found.tests} tests.`)));
  }
  if (!data.benchmarks.length) root.append(el("p", { class: "soft" }, "No eval run among these: only training dynamics below."));
}

function numbers(table) {
  const found = versus(table);
  const rows = [];
  for (const metric of ["pass@k", "maj@k", "format"]) {
    const columns = table.columns.map((c, i) => [c, i]).filter(([c]) => c[0] === metric);
    if (!columns.length) continue;
    const width = Math.max(...["pass@k", "maj@k"].map((m) => table.columns.filter((c) => c[0] === m).length));
    const blanks = Array.from({ length: width - columns.length }, () => el("td", {}));
    rows.push(el("tr", { class: "section" }, el("th", {}, metric === "format" ? "format rate" : metric), columns.map(([c]) => el("th", { scope: "col" }, metric === "format" ? "rate" : `@${c[1]}`)), blanks.map((b) => b.cloneNode())));
    for (const name of table.runs) {
      rows.push(el("tr", {}, el("th", { scope: "row" }, swatch(name), label(name), name === state.baseline && found ? el("small", {}, "baseline") : null),
        columns.map(([, i]) => {
          const [mean, low, high] = table.cells[name][i];
          const d = found?.rows[name]?.[i];
          const kind = d && d[DIRECTION] > 0 ? "up" : d && d[DIRECTION] < 0 ? "down" : "";
          return tipped(el("td", { class: kind, tabindex: 0 }, el("span", { class: "v" }, percent(mean)), el("small", {}, `${percent(low)}–${percent(high)}`),
            d && el("span", { class: "d" }, signed(d[DIFFERENCE]), kind === "up" ? " ▲" : kind === "down" ? " ▼" : "")), table, name, i);
        }), blanks.map((b) => b.cloneNode())));
    }
    if (found) {
      const median = (i) => {
        const values = table.runs.map((name) => found.rows[name][i]?.[DETECTABLE]).filter((v) => v !== undefined).sort((a, b) => a - b);
        return values.length ? `±${percent(values[values.length >> 1])}` : "";
      };
      rows.push(el("tr", { class: "detect" }, el("th", {}, "could have shown"), columns.map(([, i]) => el("td", {}, median(i))), blanks));
    }
  }
  return el("div", { class: "scroll" }, el("table", { class: "numbers" }, el("tbody", {}, rows)));
}

let shownTable = 0;
function drawTables() {
  const root = clear(body("tables"));
  if (!data.benchmarks.length) return root.append(el("p", { class: "soft" }, "No eval run among these."));
  const card = el("div", { class: "card" });
  const draw = (i) => {
    shownTable = i;
    const table = data.benchmarks[i];
    clear(card).append(el("p", { class: "soft small" }, `${table.title}. Percent, with the 95 % interval below, and the difference to ${state.baseline === null ? "nothing" : label(state.baseline)}.`), ...table.notes.map((n) => el("p", { class: "note" }, n)), numbers(table));
  };
  const titles = data.benchmarks.map((t) => (t.group ? `${t.name} · ${t.group}` : t.name));
  if (titles.length > 1) root.append(el("div", { class: "controls" }, tabs("Benchmark", titles, shownTable, draw)));
  root.append(card);
  draw(Math.min(shownTable, titles.length - 1));
}
on("baseline", () => { drawAnswer(); drawTables(); });
