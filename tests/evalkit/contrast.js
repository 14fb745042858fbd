// The contrast of words with what is below them, as WCAG 2 computes it.
const linear = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
const light = (c) => { const [r, g, b] = c.match(/[\d.]+/g).slice(0, 3).map(linear);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const out = {};
for (const [name, query] of Object.entries({ ink: ".headline", soft: "#answer .soft", small: "#answer td small",
    good: ".value.good", bad: ".value.bad" })) {
  const node = document.querySelector(query);
  if (!node) continue;
  const below = getComputedStyle(node.closest(".card") || document.body).backgroundColor;
  const a = light(getComputedStyle(node).color), b = light(below);
  out[name] = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}
return out;
