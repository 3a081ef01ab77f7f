// The nodes and edges, their names, and what is chosen, which the address keeps under the names of circuit-tracer's page.

const report = JSON.parse(byId("data").textContent);
const { graph, dictionaries } = report;
const promptTokens = graph.metadata.prompt_tokens;
const layers = dictionaries.length;
const KINDS = { "cross layer transcoder": "feature", "mlp reconstruction error": "error", embedding: "token", logit: "logit" };
const knownTexts = new Map(report.features.map((one) => [`${one.layer}/${one.feature}`, one]));

const nodes = graph.nodes.map((one, index) => {
  const kind = KINDS[one.feature_type] ?? "error";
  const node = { ...one, index, kind, id: one.node_id, position: one.ctx_idx, inputs: [], outputs: [], texts: null };
  // Rows from below: tokens, layers, logits.
  node.row = kind === "token" ? 0 : kind === "logit" ? layers + 1 : Number(one.layer) + 1;
  if (kind === "feature") {
    node.number = Number(one.node_id.split("_")[1]);
    node.texts = knownTexts.get(`${one.layer}/${node.number}`) ?? null;
  }
  return node;
});
const nodeOf = new Map(nodes.map((node) => [node.id, node]));
for (const { source, target, weight } of graph.links) {
  const link = { source: nodeOf.get(source), target: nodeOf.get(target), weight };
  link.source.outputs.push(link);
  link.target.inputs.push(link);
}

const placeOf = (node) => `${visible(promptTokens[node.position] ?? "")} at ${node.position}`;

/// What a node is called.
function nameOf(node) {
  if (node.kind === "feature") return `Feature ${node.layer}/${node.number}`;
  if (node.kind === "error") return `Error of layer ${node.layer}`;
  if (node.kind === "token") return `Token ${placeOf(node)}`;
  return flowing(node.clerp);
}

/// A node's name in lists, with what is known of it.
function longNameOf(node) {
  if (node.kind === "token" || node.kind === "logit") return nameOf(node);
  const text = node.texts?.explanations?.[0];
  const says = node.texts?.promoted?.likelier.slice(0, 3).map(([label]) => visible(label)).join(" ");
  const more = text ? `: ${flowing(text)}` : says ? `: → ${says}` : "";
  return `${nameOf(node)}, ${placeOf(node)}${more}`;
}

const influences = nodes.map((node) => node.influence).filter((influence) => influence !== null);
const largest = Math.max(0, ...influences);
/// `shown`: the id of a node or the number of a group; `picked`: the nodes to group; `groups`: [name, ...ids], as circuit-tracer's supernodes.
const state = { shown: null, picked: new Set(), groups: [], limit: largest, edge: null };

/// Whether the slider lets a node be seen. Tokens and logits always are.
const isSeen = (node) => node.influence === null || node.kind === "token" || node.kind === "logit" || node.influence <= state.limit + 1e-9;
const membersOf = (shown) => (typeof shown === "number" ? state.groups[shown]?.slice(1) ?? [] : shown === null ? [] : [shown]);

/// The edges into and out of some nodes, summed by the node at the other end, the strongest first; only those between nodes that are seen.
function linksOf(ids) {
  const inside = new Set(ids);
  const sums = (side, end) => {
    const found = new Map();
    for (const link of ids.flatMap((id) => nodeOf.get(id)[side])) {
      const other = link[end];
      if (inside.has(other.id) || !isSeen(other)) continue;
      const sum = found.get(other) ?? { other, weight: 0, links: [] };
      sum.weight += link.weight;
      sum.links.push(link);
      found.set(other, sum);
    }
    return [...found.values()].sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight));
  };
  return { inputs: sums("inputs", "source"), outputs: sums("outputs", "target") };
}

/// The choices under the names that circuit-tracer's page gives them.
const choices = () => ({
  pinnedIds: [...state.picked],
  supernodes: state.groups,
  linkType: "both",
  clickedId: typeof state.shown === "string" ? state.shown : "",
  sg_pos: "",
});

let remembering = 0;
function rememberSoon() {
  clearTimeout(remembering);
  // Browsers limit how often an address may change.
  remembering = setTimeout(() => {
    const { pinnedIds, supernodes, clickedId } = choices();
    const address = new URLSearchParams();
    if (clickedId) address.set("clickedId", clickedId);
    if (pinnedIds.length) address.set("pinnedIds", pinnedIds.join(","));
    if (supernodes.length) address.set("supernodes", JSON.stringify(supernodes));
    if (state.limit < largest) address.set("pruningThreshold", state.limit);
    try {
      history.replaceState(null, "", `#${address}`);
    } catch {
      // A frame of a notebook has no address of its own.
    }
  }, 300);
}

/// Takes the choices from the address, as far as they are of this graph.
function recall() {
  const address = new URLSearchParams(location.hash.slice(1));
  const known = (ids) => [...new Set(ids)].filter((id) => nodeOf.has(id));
  const clicked = address.get("clickedId");
  state.shown = nodeOf.has(clicked) ? clicked : null;
  state.edge = null;
  state.picked = new Set(known((address.get("pinnedIds") ?? "").split(",")));
  const limit = Number(address.get("pruningThreshold"));
  state.limit = limit > 0 ? Math.min(limit, largest) : largest;
  try {
    const groups = JSON.parse(address.get("supernodes") ?? "[]");
    const group = ([name, ...ids]) => [String(name).slice(0, 200), ...known(ids)];
    state.groups = groups.filter(Array.isArray).map(group).filter((one) => one.length > 1);
  } catch {
    state.groups = [];
  }
}

