// What is known of the shown node, its edges with a check by intervention, and the groups of nodes.

const LISTED = 10;
const wholeLists = new Set();

function show(shown) {
  hovered = null;
  Object.assign(state, { shown, edge: null });
  wholeLists.clear();
  markNodes();
  drawSide();
  const element = elements.get(shown);
  element?.scrollIntoView({ block: "nearest", inline: "nearest" });
  rememberSoon();
}

function pick(node) {
  if (!state.picked.delete(node.id)) state.picked.add(node.id);
  markNodes();
  drawSide();
  drawGroups();
  rememberSoon();
}

const count = (n) => `${n} node${n === 1 ? "" : "s"}`;
const press = (label, className, action) => {
  const element = make("button", className, label);
  element.type = "button";
  element.addEventListener("click", action);
  return element;
};

/// A text as a word of a shell.
const word = (text) => (/^[\w./:@%+=,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
/// The command that takes a feature out where it fires.
const commandWithout = (node) =>
  `${report.command} --dictionary ${word(dictionaries[node.layer].name)} --ablate-feature ${node.number}@${node.position} --compare`;

function check(node) {
  const { edge } = state;
  const source = edge?.source ?? node;
  if (source.kind !== "feature") {
    const none = "No command takes out a token or an error: only features can be changed.";
    return edge ? part("Check by an intervention", make("p", "", none)) : "";
  }
  if (!report.command) return "";
  const moves = "In this run attention, layer norms and all other paths change, too.";
  const texts = [];
  if (edge?.target.kind === "logit") {
    texts.push(`The edge says that without ${nameOf(source)} the logit of ${nameOf(edge.target)} changes by ${signed(-edge.weight)}, less the mean change of all logits. ${moves}`);
  } else if (edge) {
    texts.push("No command measures a feature while one of another dictionary is changed. This one measures the effect of the edge's source on the output.");
  } else {
    texts.push(`What the model predicts without this feature. ${moves}`);
  }
  if (report.has_short_names) texts.push("Run it where the folders of the model and its transcoders lie: this page leaves out their paths.");
  return part("Check by an intervention", ...texts.map((text) => make("p", "", text)), make("code", "", flowing(commandWithout(source))));
}

function edgeList(title, sums, only) {
  if (!sums.length) return "";
  const whole = wholeLists.has(title);
  const row = ({ other, weight, links }) => {
    const label = press(signed(weight, 3), `weight ${weight < 0 ? "less" : "more"}`, () => {
      state.edge = state.edge === links[0] ? null : links[0];
      markNodes();
      drawSide();
    });
    label.disabled = !only;
    label.title = "Show this edge and how to check it";
    label.setAttribute("aria-pressed", only && state.edge === links[0]);
    return [[label, "number"], [press(longNameOf(other), "plain", () => show(other.id))]];
  };
  const list = table([["weight", "number"], ["node"]], sums.slice(0, whole ? undefined : LISTED).map(row));
  const more = press(`all ${sums.length}`, "", () => {
    wholeLists.add(title);
    drawSide();
  });
  return part(title, list, whole || sums.length <= LISTED ? "" : more);
}

const promotedTokens = (title, list, className) => {
  const each = list.flatMap(([label, logit]) => [token(label), make("span", `number ${className}`, signed(logit)), " "]);
  return list.length ? make("p", "tokens", make("span", "quiet", `${title} `), ...each) : "";
};

function facts(node) {
  const all = [placeOf(node)];
  if (node.kind === "feature" || node.kind === "error") all.unshift(`layer ${node.layer}`);
  if (node.activation !== null) all.push(`activation ${number(node.activation)}`);
  if (node.influence !== null) all.push(`influence up to here ${node.influence.toFixed(3)}`);
  if (node.kind === "logit") all.push(`probability ${node.token_prob.toFixed(3)}`);
  const groups = state.groups.filter(([, ...ids]) => ids.includes(node.id)).map(([name]) => flowing(name));
  if (groups.length) all.push(`in ${groups.join(", ")}`);
  return make("p", "quiet", all.join("; "));
}

function drawSide() {
  const side = byId("side");
  const shown = hovered?.id ?? state.shown;
  const node = nodeOf.get(shown);
  const group = typeof shown === "number" ? state.groups[shown] : undefined;
  if (!node && !group) {
    side.replaceChildren(make("h2", "", "No node is chosen"), ...legendTexts());
    return;
  }
  const { inputs, outputs } = linksOf(membersOf(shown));
  const lists = [edgeList("Strongest inputs", inputs, Boolean(node)), edgeList("Strongest outputs", outputs, Boolean(node))];
  if (group) {
    const members = group.slice(1).map((id) => make("li", "", press(longNameOf(nodeOf.get(id)), "plain", () => show(id))));
    side.replaceChildren(make("h2", "", flowing(group[0])), make("p", "quiet", `${count(group.length - 1)}; weights are sums.`), part("Nodes", make("ul", "", ...members)), ...lists);
    return;
  }
  const { promoted, explanations } = node.texts ?? {};
  const isPicked = state.picked.has(node.id);
  const adds = press(isPicked ? "Take out of the nodes to group" : "Add to the nodes to group", "", () => pick(node));
  side.replaceChildren(
    make("h2", "", nameOf(node)),
    facts(node),
    ...explained(explanations),
    promotedTokens("makes likelier", promoted?.likelier ?? [], "more"),
    promotedTokens("makes less likely", promoted?.less_likely ?? [], "less"),
    adds,
    check(node),
    ...lists,
  );
}

function legendTexts() {
  const scores = [
    `Replacement score ${report.replacement_score.toFixed(3)}: the share of tokens in the influence of tokens and errors.`,
    `Completeness score ${report.completeness_score.toFixed(3)}: the share of incoming edges that do not come from errors.`,
    `${graph.nodes.length} of ${report.nodes} nodes are in this page, with ${graph.links.length} edges; ${report.active_features} features fire.`,
  ];
  return scores.map((text) => make("p", "", text));
}

/// The graph with the choices in it, as circuit-tracer's page and Neuronpedia read it.
function saveJson() {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([`${JSON.stringify({ ...graph, qParams: choices() }, null, 2)}\n`], { type: "application/json" }));
  link.download = `${graph.metadata.slug}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function drawGroups() {
  const name = make("input");
  name.id = "group-name";
  name.maxLength = 200;
  name.placeholder = "name of the group";
  name.setAttribute("aria-label", "Name of the group");
  const form = make("form", "", make("span", "", `${count(state.picked.size)} to group`), name, make("button", "", "Group"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (state.picked.size === 0) return;
    state.groups.push([name.value.trim() || "group", ...state.picked]);
    state.picked.clear();
    drawGroups();
    show(state.groups.length - 1);
  });
  const row = ([label, ...ids], i) => {
    const field = make("input");
    field.value = label;
    field.maxLength = 200;
    field.setAttribute("aria-label", "Name of the group");
    field.addEventListener("change", () => {
      state.groups[i][0] = field.value.trim() || "group";
      drawSide();
      rememberSoon();
    });
    const shows = press(`show ${count(ids.length)}`, "", () => show(i));
    const removes = press("remove", "", () => {
      state.groups.splice(i, 1);
      drawGroups();
      show(null);
    });
    return make("li", "", field, shows, removes);
  };
  byId("groups").replaceChildren(make("h3", "", "Groups (supernodes)"), form, make("ul", "", ...state.groups.map(row)), press("Save the graph with its groups as JSON", "", saveJson));
}

function drawHeader() {
  const { provenance: made } = report;
  byId("prompt").textContent = flowing(graph.metadata.prompt);
  const by = [`${made.model}: ${made.ids.length} tokens`, `${made.dtype} on ${made.device}, ${made.implementation} attention`, `gpt2 ${made.gpt2}`];
  byId("about").textContent = flowing(`${by.join("; ")}; transcoders ${dictionaries.map((one) => one.name).join(", ")}`);
  document.title = `Graph: ${flowing(graph.metadata.prompt)}`;
  const shape = (kind, name) => make("span", "", draw("svg", { viewBox: "-8 -8 16 16", class: `kind-${kind}` }, draw("path", { class: "shape", d: SHAPES[kind] })), name);
  const line = (sign, name) => make("span", "", draw("svg", { viewBox: "0 0 30 16", class: "line" }, draw("path", { class: `edge ${sign}`, d: "M 0 8 H 30", "stroke-width": 2.5 })), name);
  byId("legend").append(shape("feature", "feature"), shape("error", "error"), shape("token", "token"), shape("logit", "output"), line("positive", "adds"), line("negative", "takes away"));
}

const slider = byId("limit");
slider.min = Math.floor(100 * Math.min(largest, ...influences)) / 100;
slider.max = Math.ceil(100 * largest) / 100;
slider.addEventListener("input", () => {
  state.limit = Math.min(Number(slider.value), largest);
  drawMap();
  drawSide();
  rememberSoon();
});
function restore() {
  recall();
  slider.value = state.limit;
  drawMap();
  drawSide();
  drawGroups();
}
addEventListener("hashchange", restore);
addEventListener("resize", fit);
drawHeader();
restore();
// The last token, and with it the outputs, comes first.
scroller.scrollLeft = scroller.scrollWidth;
performance.mark("ready");
