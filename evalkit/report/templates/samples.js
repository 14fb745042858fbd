// Shared: a sample of an evaluation with its verdict, and a problem's text with its mathematics.
const VERDICT = { CORRECT: ["right", "✓ correct"], INCORRECT: ["wrong", "✗ wrong"], UNSIMPLIFIED: ["wrong", "≈ not simplified"], NO_ANSWER: ["other", "∅ no answer"],
  TIMEOUT: ["other", "⧗ verifier timed out"], REJECTED: ["other", "⊘ rejected by the verifier"], UNUSABLE_GOLD: ["other", "? unusable gold"], UNSCORED: ["other", "? unscored"] };
const MATHML = "http://www.w3.org/1998/Math/MathML";
/** Elements of a [tag, attributes, ...children] tree; tags and attributes come from the fixed list of page.py. */
const mathNode = ([tag, attributes, ...children]) => fill(document.createElementNS(MATHML, tag), attributes, children.map((c) => (typeof c === "string" ? c : mathNode(c))));
const mathsText = (segments) => segments.map((s) => (typeof s === "string" ? s : mathNode(s)));
const sampleFilter = (verdict) => (s) => verdict === "any" || (verdict === "format" ? !s[3] : verdict === "truncated" ? s[5] === "length" : s[1] === verdict);

/** One sample of an evaluation. from: what stands before its number; more: a button after Copy. */
function sampleCard([i, verdict, answer, format, tokens, finish, text, cut], from, { id, linked, more } = {}) {
  const [kind, word] = VERDICT[verdict] || ["other", verdict];
  return el("article", { class: `completion ${kind}${linked ? " linked" : ""}`, id },
    el("header", {}, el("b", { class: kind === "right" ? "good" : kind === "wrong" ? "bad" : "" }, word),
      el("span", { class: "answer" }, answer === null ? "nothing extracted" : `→ ${answer}`), format ? null : el("span", { class: "bad" }, "wrong format"),
      finish === "length" ? el("span", { class: "bad" }, "truncated at the limit") : null,
      el("span", { class: "soft" }, `${from}#${i}${tokens === null ? "" : ` · ${plural(tokens, "token")}`}`),
      cut ? el("span", { class: "soft" }, `${cut.toLocaleString("en")} characters left out at …`) : null,
      copyButton("Copy", () => text), more),
    el("pre", {}, text));
}
