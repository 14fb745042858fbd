// Every number of one benchmark: pass@k, maj@k for every k, format rate.
let shownTable = Math.max(0, Number(address.get("table")) || 0);
function numbers(table) {
  const found = versus(table);
  const rows = [];
  const width = Math.max(...["pass@k", "maj@k"].map((m) => table.columns.filter((c) => c[0] === m).length));
  for (const metric of ["pass@k", "maj@k", "format"]) {
    const columns = table.columns.map((c, i) => [c, i]).filter(([c]) => c[0] === metric);
    if (!columns.length) continue;
    const blanks = () => Array.from({ length: width - columns.length }, () => el("td", {}));
    rows.push(el("tr", { class: "section" }, el("th", {}, metric === "format" ? "format rate" : metric), columns.map(([c]) => el("th", { scope: "col" }, c[1] ? `@${c[1]}` : "rate")), blanks()));
    for (const name of table.methods) {
      rows.push(el("tr", {}, el("th", { scope: "row" }, swatch(name), label(name), name === state.baseline && found ? el("small", {}, "baseline") : null),
        columns.map(([, i]) => tipped(el("td", { tabindex: 0 }, valueCell(table, name, i), changeText(found?.[name]?.[i])), table, name, i)), blanks()));
    }
  }
  return el("div", { class: "scroll" }, el("table", { class: "numbers" }, el("tbody", {}, rows)));
}
function drawTables() {
  const root = clear(body("tables"));
  if (!data.benchmarks.length) { byId("tables").hidden = true; return; }
  const card = el("div", { class: "card" });
  const content = (table) => [
    el("p", { class: "soft small" }, `${table.title}. Percent with the 95 % interval below${state.baseline === null ? "" : `, and the difference to ${label(state.baseline)}`}. Marked: ${data.metrics[0]} only; the rest is not tested.`),
    numbers(table)];
  const draw = (i) => { shownTable = i; clear(card).append(...content(data.benchmarks[i])); };
  const titles = data.benchmarks.map((t) => (t.group ? `${t.name} · ${t.group}` : t.name));
  if (titles.length > 1) root.append(el("div", { class: "controls" }, tabs("Benchmark", titles, Math.min(shownTable, titles.length - 1), (i) => { remember("table", String(i), "0", "tables"); draw(i); })));
  root.append(card);
  draw(Math.min(shownTable, titles.length - 1));
}
on("baseline", drawTables);
