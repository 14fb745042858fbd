// One question: its text with its mathematics, the votes of each answer class, and its completions.
/** The nodes that show question q of a table; held: the block with its completions. */
function questionView(table, held, q, verdict) {
  const e = table.explorer;
  const problem = held.problems[q];
  const prompt = held.prompts?.[q];
  const samples = held.samples[q];
  const head = el("div", { class: "card" },
    el("p", { class: "soft small between" }, el("span", {}, e.ids[q], e.subject.length && e.subjects[e.subject[q]] ? ` · ${e.subjects[e.subject[q]]}` : ""), copyButton("Copy link", () => questionLink(table, e.ids[q]))),
    problem ? el("div", { class: "problem" }, mathsText(problem[2])) : el("p", { class: "soft small" }, "This run folder does not hold the question's text."),
    problem ? el("p", {}, "Gold answer: ", el("b", {}, problem[1])) : null,
    prompt ? el("details", {}, el("summary", {}, `Prompt as the model read it${prompt[1] === null ? "" : `, ${plural(prompt[1], "token")}`}`), el("pre", {}, prompt[0])) : null);
  const columns = el("div", { class: "columns" });
  table.methods.forEach((name, m) => {
    if (state.hidden.has(name)) return;
    const n = Array.isArray(e.n[name]) ? e.n[name][q] : e.n[name];
    const all = samples?.[m] || [];
    const mine = all.filter(sampleFilter(verdict));
    const shownText = all.length ? `; ${mine.length < all.length ? `${mine.length} of these shown` : all.length < n ? `${all.length} shown` : "all shown"}` : "";
    columns.append(el("div", {}, el("h3", {}, swatch(name), label(name)),
      el("p", { class: "soft small" }, `${e.correct[name][q]} of ${n} right${shownText}`),
      votes(held.answers?.[q]?.[m], n), samples ? mine.map((s) => completion(s, table, q, m)) : null));
  });
  return [head, samples ? columns : el("div", {}, columns, el("p", { class: "note" }, "The completions of this question are not in this page; they are in the run folders' samples/, where gtpo eval keeps them (more room here: --samples-mb)."))];
}
const questionLink = (table, id, sample) => `${location.href.split("#")[0]}#explorer?${new URLSearchParams({ ...(state.baseline === data.baseline ? {} : { base: state.baseline }), bench: table.name, q: id, ...(sample ? { sample } : {}) })}`;
/** Votes of each answer class, the largest first. */
function votes(classes, n) {
  if (!classes) return null;
  return el("table", { class: "votes" }, el("caption", {}, "Votes by extracted answer"), el("tbody", {}, classes.map(([answer, verdict, count]) => {
    const bar = el("i", {});
    bar.style.width = `${(100 * count) / n}%`;
    const kind = verdict === "CORRECT" ? "right" : verdict === "INCORRECT" ? "wrong" : "other";
    return el("tr", { class: kind }, el("th", { scope: "row" }, answer ?? (verdict === "other" ? "other answers" : "no answer")), el("td", {}, String(count)), el("td", { class: "share" }, bar));
  })));
}
function completion(sample, table, q, m) {
  const [i, , , , , , , , run] = sample;
  const id = `${m}.${run}.${i}`;
  return sampleCard(sample, info.get(table.methods[m])?.runs.length > 1 ? `${run} ` : "",
    { id: `s-${id}`, linked: address.get("sample") === id, more: copyButton("Link", () => questionLink(table, table.explorer.ids[q], id)) });
}
