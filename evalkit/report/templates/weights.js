// Shared: a completion of a rollout, every token coloured by its weight lambda, and what the colours mean.
const weightKind = (weight) => (weight === 0 ? "prot" : weight > 1 ? "amp" : weight === 1 ? "" : "other");
const tokenKey = () => el("div", { class: "key" },
  el("span", {}, el("span", { class: "tok prot" }, " protected "), " λ = 0: shared with a rewarded completion, so not pushed down"),
  el("span", {}, el("span", { class: "tok amp" }, " amplified "), " λ > 1: shared with a penalised completion, pushed up more"),
  el("span", {}, "plain: λ = 1"));
/** groupHasGate: whether the entropy gate dropped a completion of this group. */
function tokenCard(c, groupHasGate) {
  const counts = { prot: 0, amp: 0, "": 0, other: 0 };
  const text = el("pre", {});
  let plain = "";
  const flush = () => { if (plain) text.append(visible(plain)); plain = ""; };
  c.tokens.forEach((token, t) => {
    const weight = c.values[c.weights[t]];
    const kind = weightKind(weight);
    counts[kind] += 1;
    const shown = token.replaceAll("\n", "↵\n");
    if (!kind) { plain += shown; return; }
    flush();
    text.append(el("span", { class: `tok ${kind}`, title: `λ = ${weight}` }, shown));
  });
  flush();
  const a = c.advantage;
  const sign = a > 1e-9 ? "up" : a < -1e-9 ? "down" : "flat";
  const rewards = Object.entries(c.rewards).map(([name, value]) => `${name} ${value === null ? "unscored" : +value.toFixed(3)}`).join(", ");
  return el("article", { class: `completion ${sign === "up" ? "right" : sign === "down" ? "wrong" : ""} ${c.kept === false ? "dropped" : ""}` },
    el("header", {}, el("span", { class: `badge ${sign}` }, a === null ? "unscored" : `A ${a >= 0 ? "+" : "−"}${Math.abs(a).toFixed(2)}`),
      el("span", {}, c.entropy === null ? "entropy unknown" : `H ${c.entropy.toFixed(3)} ${c.entropy > Math.LN2 ? ">" : "≤"} ln 2`),
      c.kept === false ? el("span", { class: "badge gate" }, "dropped by the entropy gate") : groupHasGate ? el("span", { class: "soft" }, "kept") : null,
      el("span", { class: "soft" }, `${plural(c.tokens.length, "token")}: ${counts.prot} protected, ${counts.amp} amplified`),
      rewards ? el("span", { class: "soft" }, rewards) : null),
    text);
}
