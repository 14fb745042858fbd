// Groups of a train run, every token coloured by its weight lambda.
function drawTokens() {
  const root = body("tokens");
  const runs = data.groups.filter((t) => t.groups).sort((a, b) => b.weighted - a.weighted);
  if (!runs.length) { byId("tokens").hidden = true; return; }
  const view = { run: 0, group: 0 };
  const groups = () => block(runs[view.run].block);
  const area = el("div", {});
  const controls = el("div", { class: "controls" });

  function draw() {
    const group = groups()[view.group];
    clear(area);
    if (!group) return;
    const gate = group.completions.some((c) => c.kept === false);
    if (!runs[view.run].weighted) area.append(el("p", { class: "soft" }, `${runs[view.run].name} (${runs[view.run].method}) gives every token of a completion the same weight.`));
    area.append(group.prompt ? el("div", { class: "card" }, el("p", { class: "soft small" }, `step ${group.step}, group ${group.group}: the prompt`), el("div", { class: "problem" }, group.prompt)) : "",
      el("div", { class: "group" }, group.completions.map((c) => tokenCard(c, gate))));
  }
  function drawControls() {
    const options = groups().map((g, i) => [String(i), `step ${g.step}, group ${g.group}`]);
    const step = (by) => () => { view.group = (view.group + by + options.length) % options.length; drawControls(); draw(); };
    clear(controls).append(
      ...(runs.length > 1 ? [select("Run", runs.map((t, i) => [String(i), t.name]), String(view.run), (i) => { view.run = Number(i); view.group = 0; drawControls(); draw(); })] : []),
      select("Group", options, String(view.group), (i) => { view.group = Number(i); draw(); }),
      el("button", { type: "button", onclick: step(-1), "aria-label": "Previous group" }, "←"), el("button", { type: "button", onclick: step(1), "aria-label": "Next group" }, "→"),
      el("span", { class: "soft" }, runs[view.run].said));
  }
  root.append(tokenKey(), controls, area);
  drawControls();
  draw();
}
