// A circuit: which edges lead to and from the chosen head, and lines between the small maps of its heads.

/// [from, to], as in "0.3" and "1.2.k".
const edges = blocks("circuit").flatMap(read);
/// The part of the model that an edge leads to, and what of it.
const reader = (to) => {
  const [, part, what] = /^(\d+\.\d+)\.([qkv])$/.exec(to) ?? [null, to, ""];
  return { part, what };
};
const headNamed = new Map(heads.map((head) => [head.name, head]));

function showEdges() {
  const section = byId("edges").parentElement;
  const name = sources[state.head]?.name;
  section.hidden = edges.length === 0 || !headNamed.has(name);
  if (section.hidden) return;
  const line = (text, other, number) => {
    const head = headNamed.get(other);
    const item = entry({ text, number, share: 0, color: "next-bar", choose: head && (() => chooseHead(head.index)) });
    if (head) item.firstChild.title = "Choose this head";
    return item;
  };
  const read = edges.filter(([, to]) => reader(to).part === name && reader(to).what);
  const written = edges.filter(([from]) => from === name);
  section.firstChild.textContent = `${name} in the circuit`;
  fill(
    byId("edges"),
    [
      ...read.map(([from, to]) => line(`${from} → ${reader(to).what}`, from, "reads")),
      ...written.map(([, to]) => line(`→ ${to}`, reader(to).part, "writes")),
    ],
    "The circuit does not have this head.",
  );
}

const SVG = "http://www.w3.org/2000/svg";
/// Lines between heads; the embeddings, MLPs and logits have no small map.
function drawEdges() {
  overview.querySelector("svg")?.remove();
  const between = edges.filter(([from, to]) => headNamed.has(from) && headNamed.has(reader(to).part));
  if (between.length === 0 || state.sort !== "layer") return;
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "edges");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("width", overview.scrollWidth);
  svg.setAttribute("height", overview.scrollHeight);
  const center = (name) => {
    const { offsetLeft: left, offsetTop: top, offsetWidth: width, offsetHeight: height } = options[headNamed.get(name).index];
    return [left + width / 2, top + height / 2];
  };
  for (const [from, to] of between) {
    const [[x1, y1], [x2, y2]] = [center(from), center(reader(to).part)];
    const line = document.createElementNS(SVG, "line");
    for (const [key, value] of Object.entries({ x1, y1, x2, y2 })) line.setAttribute(key, value);
    const name = sources[state.head]?.name;
    line.classList.toggle("chosen", from === name || reader(to).part === name);
    svg.append(line);
  }
  overview.append(svg);
}

// After what the model predicts.
on("run", () => byId("token-lists").append(...["features", "edges"].map((id) => byId(id).parentElement)));

if (edges.length > 0) {
  const parts = new Set(edges.flatMap(([from, to]) => [from, reader(to).part]));
  for (const { name, index } of heads) options[index].classList.toggle("outside", !parts.has(name));
  on("head more weights token", showEdges);
  on("head sort weights", drawEdges);
  const observer = new ResizeObserver(drawEdges);
  observer.observe(overview);
  signal?.addEventListener("abort", () => observer.disconnect());
}
