// The data of the page of gtpo compare, and what every section asks of it.
const data = JSON.parse(byId("core").textContent);
const blocks = new Map();
/** A named data block, parsed when it is first asked for. */
function block(name) {
  if (!blocks.has(name)) blocks.set(name, JSON.parse(byId(name).textContent));
  return blocks.get(name);
}
const order = [...new Set([...data.methods, ...data.training].map((m) => m.name))];
order.forEach((name, i) => index.set(name, i));
const info = new Map([...data.training, ...data.methods].map((m) => [m.name, m]));
const label = (name) => info.get(name)?.label ?? name;
state.baseline = data.baselines.includes(address.get("base")) ? address.get("base") : data.baseline;
