// The tables as Python laid them out (evalkit/report/writers.py): a cell is a text, a method, or a figure [benchmark, method, column].
const change = (table, name, i) => table.cells[name]?.[i]?.versus[state.baseline];
const valueText = (column, x) => x === null ? "–" : rounded(column.unit === "%" ? 100 * x : x, column.digits);
const intervalText = (low, high, write) => `[${write(low)}, ${write(high)}]`;
const MARK = { better: "▲", worse: "▼", equivalent: "≈", undecided: "?" };
const kindOf = (d) => ({ better: "good", worse: "bad", equivalent: "equal" })[d.verdict] || "none";
const arrow = (d) => (d.verdict && d.verdict !== "undecided" ? `\u00a0${MARK[d.verdict]}` : "");
// A difference that is not tested has no p here: nobody corrected it for how many of them one looks at.
const shownP = (d) => (d.holm === null ? "not tested" : pText(d.holm));

function gridCell(entry) {
  if (entry?.method !== undefined) {
    const notes = [entry.method === state.baseline ? "baseline" : "", info.get(entry.method).counted];
    return el("th", { scope: "row" }, swatch(entry.method), label(entry.method), el("small", {}, notes.filter(Boolean).join(", ")));
  }
  if (!Array.isArray(entry)) return el("td", {}, entry === null ? "–" : el("span", { class: "v" }, entry));
  const [place, name, i] = entry;
  const table = data.benchmarks[place], cell = table.cells[name][i], d = change(table, name, i);
  const write = (x) => valueText(table.columns[i], x);
  return tipped(el("td", { tabindex: 0 }, el("span", { class: "v" }, write(cell.mean)), cell.sd === null ? null : el("span", { class: "soft" }, ` ±${write(cell.sd)}`),
    cell.low === null ? null : el("small", {}, intervalText(cell.low, cell.high, write)), cell.bounds && el("small", {}, `missing samples: {${cell.bounds.map(write).join(", ")}}`),
    d && el("span", { class: `d ${kindOf(d)}` }, `${signed(d.d)}${arrow(d)}`, el("small", {}, intervalText(d.low, d.high, signed)), el("small", {}, d.judged ? shownP(d) : `these ${d.about} only`))), table, name, i);
}
/** Tables below each other, their columns in line. */
function drawGrids(grids) {
  const width = Math.max(...grids.map((grid) => grid.head.length));
  const row = (cells, of) => el("tr", of, cells, Array.from({ length: width - cells.length }, () => el("td", {})));
  return el("div", { class: "scroll" }, el("table", { class: "numbers" }, grids.map((grid) => el("tbody", {},
    row(grid.head.map((text, i) => el("th", { scope: "col" }, i ? text : grid.section || text)), { class: "section" }), grid.rows.map((cells) => row(cells.map(gridCell)))))));
}

/** Everything about one figure, on hover and on focus. */
function tipped(node, table, name, i) {
  const show = (event) => {
    const { mean, low, high, sd, seeds } = table.cells[name][i];
    const write = (x) => valueText(table.columns[i], x);
    const rows = [["value", low === null ? write(mean) : `${write(mean)} ${intervalText(low, high, write)}`]];
    if (sd !== null) rows.push(["each seed", seeds.map(write).join(", ")]);
    const d = change(table, name, i);
    if (d) {
      rows.push([`against ${label(state.baseline)}`, `${signed(d.d)} ${intervalText(d.low, d.high, signed)}`], ["interval's level", `${percent(d.level)} %`]);
      if (d.holm !== null) rows.push(["Holm-corrected", pText(d.holm)]);
      rows.push(["uncorrected", pText(d.p)], ["covers", d.covers]);
      if (d.pe !== null) rows.push(["equivalent, corrected", pText(d.pe)]);
      rows.push(["", d.verdict || "not tested"]);
    }
    const box = node.getBoundingClientRect();
    showTip(event.clientX || box.left + 20, event.clientY || box.bottom, `${label(name)}, ${table.columns[i].label}`, rows);
  };
  for (const kind of ["pointermove", "focus"]) node.addEventListener(kind, show);
  for (const kind of ["pointerleave", "blur"]) node.addEventListener(kind, hideTip);
  return node;
}

// Every figure of one benchmark.
let shownTable = Math.max(0, Number(address.get("table")) || 0);
function drawTables() {
  const root = clear(body("tables"));
  if (!data.benchmarks.length) { byId("tables").hidden = true; return; }
  const card = el("div", { class: "card" });
  const content = (table) => [
    el("p", { class: "soft small" }, `${table.header}. Percent with the 95 % interval below${state.baseline === null ? "" : `, and the difference to ${label(state.baseline)}`}. Marked: ${data.metrics[0]} only; the rest is not tested.`),
    drawGrids(table.grids)];
  const draw = (i) => { shownTable = i; clear(card).append(...content(data.benchmarks[i])); };
  const titles = data.benchmarks.map((t) => t.title);
  if (titles.length > 1) root.append(el("div", { class: "controls" }, tabs("Benchmark", titles, Math.min(shownTable, titles.length - 1), (i) => { remember("table", String(i), "0", "tables"); draw(i); })));
  root.append(card);
  draw(Math.min(shownTable, titles.length - 1));
}
on("baseline", drawTables);
