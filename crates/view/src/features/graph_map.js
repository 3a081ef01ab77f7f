// The map: nodes by position (across) and layer (upward), and the edges of those that are shown.

const mapElement = byId("map");
const scroller = byId("scroller");
const BIG = matchMedia("(pointer: coarse)").matches;
const CELL = BIG ? 24 : 16;
const LOGIT_CELL = 48;
const WRAP = 5;
const ROW = 36;
const EDGES = 40;
let hovered = null;
let elements = new Map();

const SHAPES = {
  feature: "M 5 0 A 5 5 0 1 1 -5 0 A 5 5 0 1 1 5 0 Z",
  error: "M 0 -6 L 6 0 L 0 6 L -6 0 Z",
  token: "M -5 -5 H 5 V 5 H -5 Z",
  logit: "M 0 -6 L 6 5 H -6 Z",
};
const shorten = (text, most) => ([...text].length > most ? `${[...text].slice(0, most - 1).join("")}…` : text);

/// The place of each node that is seen, and of columns and rows.
function layout() {
  const cells = new Map();
  for (const node of nodes.filter(isSeen)) {
    const key = `${node.position} ${node.row}`;
    cells.set(key, [...(cells.get(key) ?? []), node]);
  }
  const widths = promptTokens.map((text) => Math.max(40, 14 + 7 * Math.min(9, [...visible(text)].length)));
  const heights = Array.from({ length: layers + 2 }, () => ROW);
  const cellOf = (row) => (row === layers + 1 ? LOGIT_CELL : CELL);
  const lineOf = (row) => (row === layers + 1 ? CELL + 18 : CELL);
  for (const list of cells.values()) {
    const { position, row } = list[0];
    widths[position] = Math.max(widths[position], Math.min(WRAP, list.length) * cellOf(row) + 16);
    heights[row] = Math.max(heights[row], Math.ceil(list.length / WRAP) * lineOf(row) + 14);
  }
  // Columns share the room that is left.
  const room = scroller.clientWidth - byId("rows").offsetWidth - widths.reduce((a, b) => a + b, 0);
  const more = Math.max(0, Math.floor(room / widths.length));
  const starts = [];
  let width = 0;
  widths.forEach((column, position) => {
    starts.push(width);
    widths[position] = column + more;
    width += column + more;
  });
  const tops = [];
  let height = 4;
  for (let row = layers + 1; row >= 0; row--) {
    tops[row] = height;
    height += heights[row];
  }
  for (const list of cells.values()) {
    const { position, row } = list[0];
    list.forEach((node, i) => {
      const line = Math.floor(i / WRAP);
      const inLine = Math.min(WRAP, list.length - line * WRAP);
      const lines = Math.ceil(list.length / WRAP);
      node.x = starts[position] + widths[position] / 2 + ((i % WRAP) - (inLine - 1) / 2) * cellOf(row);
      node.y = tops[row] + heights[row] / 2 + (line - (lines - 1) / 2) * lineOf(row) - (row === layers + 1 ? 7 : 0);
    });
  }
  return { starts, widths, tops, heights, width, height: height + 20 };
}

function nodeElement(node) {
  const element = draw("g", { class: `node kind-${node.kind}`, id: `node-${node.index}`, role: "option", transform: `translate(${node.x} ${node.y})`, "aria-label": longNameOf(node) });
  const reach = node.kind === "logit" ? LOGIT_CELL / 2 : CELL / 2;
  element.append(draw("rect", { class: "hit", x: -reach, y: -CELL / 2, width: 2 * reach, height: CELL }), draw("path", { class: "shape", d: SHAPES[node.kind] }));
  element.append(draw("title", {}, longNameOf(node)));
  if (node.kind === "logit") {
    const label = node.clerp.match(/^Output "([\s\S]*)" \(p=/)?.[1] ?? node.clerp;
    element.append(draw("text", { y: 17 }, shorten(visible(label), 6)));
  }
  element.addEventListener("click", (event) => {
    if (event.shiftKey || event.ctrlKey || event.metaKey) pick(node);
    else show(node.id);
  });
  element.addEventListener("pointerenter", ({ pointerType }) => pointerType === "mouse" && hover(node));
  element.addEventListener("pointerleave", ({ pointerType }) => pointerType === "mouse" && hover(null));
  return element;
}

/// Draws everything anew: the slider has moved.
function drawMap() {
  const { starts, widths, tops, heights, width, height } = layout();
  mapElement.setAttribute("viewBox", `0 0 ${width} ${height}`);
  mapElement.setAttribute("width", width);
  mapElement.setAttribute("height", height);
  const lines = tops.map((top, row) => draw("line", { x1: 0, x2: width, y1: top + heights[row], y2: top + heights[row] }));
  const labels = promptTokens.map((text, position) => {
    const label = draw("text", { x: starts[position] + widths[position] / 2, y: height - 6 }, shorten(visible(text), 9));
    label.append(draw("title", {}, `${visible(text)} at ${position}`));
    return label;
  });
  elements = new Map(nodes.filter(isSeen).map((node) => [node.id, nodeElement(node)]));
  mapElement.replaceChildren(...lines, draw("g", { id: "edges" }), ...labels, ...elements.values());
  byId("rows").replaceChildren(
    ...tops.map((top, row) => {
      const label = make("span", "", row === 0 ? "tokens" : row === layers + 1 ? "output" : `layer ${row - 1}`);
      label.style.top = `${top + heights[row] / 2}px`;
      return label;
    }),
  );
  const seen = elements.size;
  byId("shown-nodes").textContent = `${state.limit.toFixed(2)}: ${seen} of ${nodes.length} nodes`;
  markNodes();
}

/// The edges of what is shown, and marks on the nodes.
function markNodes() {
  const ids = hovered ? [hovered.id] : membersOf(state.shown);
  const links = linksOf(ids);
  const lines = [...links.inputs.slice(0, EDGES), ...links.outputs.slice(0, EDGES)].flatMap((one) => one.links);
  const most = Math.max(...lines.map((link) => Math.abs(link.weight)), 0);
  const isChosen = (link) => state.edge !== null && state.edge.source === link.source && state.edge.target === link.target;
  const line = (link) => {
    const { source, target, weight } = link;
    const middle = (source.y + target.y) / 2;
    return draw("path", {
      class: `edge ${weight < 0 ? "negative" : "positive"}${isChosen(link) ? " chosen" : ""}`,
      d: `M ${source.x} ${source.y} C ${source.x} ${middle} ${target.x} ${middle} ${target.x} ${target.y}`,
      "stroke-width": (0.7 + 4 * Math.sqrt(Math.abs(weight) / most)).toFixed(2),
    });
  };
  const seen = lines.filter((link) => isSeen(link.source) && isSeen(link.target));
  byId("edges").replaceChildren(...seen.map(line));
  const near = new Set(seen.flatMap((link) => [link.source.id, link.target.id]));
  const grouped = new Set(state.groups.flatMap(([, ...members]) => members));
  for (const [id, element] of elements) {
    element.classList.toggle("shown", ids.includes(id));
    element.classList.toggle("near", near.has(id));
    element.classList.toggle("far", ids.length > 0 && !near.has(id) && !ids.includes(id));
    element.classList.toggle("picked", state.picked.has(id));
    element.setAttribute("aria-selected", state.picked.has(id));
    element.querySelector(".ring")?.remove();
    if (grouped.has(id) || state.picked.has(id)) element.append(draw("circle", { class: "ring", r: 9 }));
  }
  const active = typeof state.shown === "string" ? elements.get(state.shown) : undefined;
  if (active) mapElement.setAttribute("aria-activedescendant", active.id);
  else mapElement.removeAttribute("aria-activedescendant");
}

function hover(node) {
  hovered = node;
  markNodes();
  drawSide();
}

let drawnFor = 0;
/// Draws the map anew where the window has another width.
function fit() {
  if (scroller.clientWidth === drawnFor) return;
  drawnFor = scroller.clientWidth;
  drawMap();
}

/// The nearest node in a direction of the arrow keys.
function nearest(from, dx, dy) {
  let best = null;
  for (const node of nodes.filter(isSeen)) {
    const along = (node.x - from.x) * dx + (node.y - from.y) * dy;
    const across = Math.abs((node.x - from.x) * dy) + Math.abs((node.y - from.y) * dx);
    if (along < 1 || across > 4 * along + 1) continue;
    const far = along + 3 * across;
    if (!best || far < best.far) best = { node, far };
  }
  return best?.node;
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
mapElement.addEventListener("keydown", (event) => {
  const at = nodeOf.get(state.shown);
  const arrow = ARROWS[event.key];
  if (arrow) {
    const next = at ? nearest(at, ...arrow) : nodes.find((node) => node.kind === "logit") ?? nodes.find(isSeen);
    if (next) show(next.id);
  } else if (event.key === " " && at) pick(at);
  else if (event.key === "Escape") show(null);
  else return;
  event.preventDefault();
});

