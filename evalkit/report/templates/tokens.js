// Groups of a train run, every token coloured by its weight lambda.
function drawTokens() {
  const root = body("tokens");
  const runs = data.groups.filter((t) => t.groups).sort((a, b) => b.weighted - a.weighted);
  if (!runs.length) { byId("tokens").hidden = true; return; }
  const view = { run: 0, group: 0 };
  const groups = () => block(runs[view.run].block);
  const area = el("div", {});
  const controls = el("div", { class: "controls" });

  function kind(weight) {
    return weight === 0 ? "prot" : weight > 1 ? "amp" : weight === 1 ? "" : "other";
  }
  function card(c, i, groupHasGate) {
    const counts = { prot: 0, amp: 0, "": 0, other: 0 };
    const text = el("pre", {});
    c.tokens.forEach((token, t) => {
      const weight = c.values[c.weights[t]];
      counts[kind(weight)] += 1;
      const shown = token.replaceAll("\n", "↵\n");
      text.append(kind(weight) ? el("span", { class: `tok ${kind(weight)}`, title: `λ = ${weight}` }, shown) : shown);
    });
    const a = c.advantage;
    const sign = a > 1e-9 ? "up" : a < -1e-9 ? "down" : "flat";
    const rewards = Object.entries(c.rewards).map(([name, value]) => `${name} ${value === null ? "unscored" : +value.toFixed(3)}`).join(", ");
    return el("article", { class: `completion ${sign === "up" ? "right" : sign === "down" ? "wrong" : ""} ${c.kept === false ? "dropped" : ""}` },
      el("header", {}, el("span", { class: `badge ${sign}` }, a === null ? "unscored" : `A ${a >= 0 ? "+" : "−"}${Math.abs(a).toFixed(2)}`),
        el("span", {}, c.entropy === null ? "entropy unknown" : `H ${c.entropy.toFixed(3)} ${c.entropy > data.ln2 ? ">" : "≤"} ln 2`),
        c.kept === false ? el("span", { class: "badge gate" }, "dropped by the entropy gate") : groupHasGate ? el("span", { class: "soft" }, "kept") : null,
        el("span", { class: "soft" }, `${plural(c.tokens.length, "token")}: ${counts.prot} protected, ${counts.amp} amplified`),
        rewards ? el("span", { class: "soft" }, rewards) : null),
      text);
  }
  function draw() {
    const group = groups()[view.group];
    clear(area);
    if (!group) return;
    const gate = group.completions.some((c) => c.kept === false);
    if (!runs[view.run].weighted) area.append(el("p", { class: "soft" }, `${runs[view.run].name} (${runs[view.run].method}) gives every token of a completion the same weight.`));
    area.append(group.prompt ? el("div", { class: "card" }, el("p", { class: "soft small" }, `step ${group.step}, group ${group.group}: the prompt`), el("div", { class: "problem" }, group.prompt)) : "",
      el("div", { class: "group" }, group.completions.map((c, i) => card(c, i, gate))));
  }
  function drawControls() {
    const options = groups().map((g, i) => [String(i), `step ${g.step}, group ${g.group}`]);
    const step = (by) => () => { view.group = (view.group + by + options.length) % options.length; drawControls(); draw(); };
    clear(controls).append(
      ...(runs.length > 1 ? [select("Run", runs.map((t, i) => [String(i), t.name]), String(view.run), (i) => { view.run = Number(i); view.group = 0; drawControls(); draw(); })] : []),
      select("Group", options, String(view.group), (i) => { view.group = Number(i); draw(); }),
      el("button", { type: "button", onclick: step(-1), "aria-label": "Previous group" }, "←"), el("button", { type: "button", onclick: step(1), "aria-label": "Next group" }, "→"),
      el("span", { class: "soft" }, runs[view.run].said ?? `${plural(runs[view.run].groups, "group")} of about ${runs[view.run].logged.toLocaleString("en")} logged, spread over the steps, the most telling first`));
  }
  root.append(el("div", { class: "key" },
    el("span", {}, el("span", { class: "tok prot" }, " protected "), " λ = 0: shared with a rewarded completion, so not pushed down"),
    el("span", {}, el("span", { class: "tok amp" }, " amplified "), " λ > 1: shared with a penalised completion, pushed up more"),
    el("span", {}, "plain: λ = 1")), controls, area);
  drawControls();
  draw();
}
