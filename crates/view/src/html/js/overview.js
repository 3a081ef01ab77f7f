// Every head as a small heat map, in the model's order or sorted by a number.

const METRICS = {
  entropy: ["entropy", "Mean entropy of a query's weights, in nats: 0 is one key, ln n is n keys alike"],
  mean_distance: ["distance", "How far back a query looks on average, in tokens"],
  on_self: ["on itself", "Mean weight on the query's own token"],
  on_previous: ["on previous", "Mean weight on the token before"],
  on_first: ["on first", "Mean weight on the first token"],
  uniform: ["if uniform", "The value that each of the three weights above would have if attention were uniform"],
};
/// The numbers in this file's summaries, including those that this script has no words for.
const metrics = Object.keys(heads[0].summary)
  .filter((key) => typeof (heads[0].summary[key] ?? 0) === "number")
  .map((key) => [key, ...(METRICS[key] ?? [key.replaceAll("_", " "), ""])]);
const overview = document.getElementById("overview");
const sortMenu = document.getElementById("sort");

const summaryNumber = (x) => (x === null ? "NaN" : x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2));

function describe(head) {
  const numbers = metrics.map(([key, label]) => `${label} ${summaryNumber(head.summary[key])}`);
  return `Layer ${head.layer}, head ${head.head}: ${numbers.join(", ")}`;
}

const options = heads.map((head) => {
  const option = document.createElement("div");
  option.setAttribute("role", "option");
  option.setAttribute("aria-label", describe(head));
  option.title = describe(head);
  option.dataset.head = head.index;
  const caption = document.createElement("span");
  option.append(document.createElement("canvas"), caption);
  return option;
});

/// The heads in the order in which they are shown.
let order = [];

function arrange() {
  const label = (text, place) => {
    const node = document.createElement("span");
    node.className = `label ${place}`;
    node.textContent = text;
    node.setAttribute("aria-hidden", "true"); // each option says its layer and head itself
    return node;
  };
  order = heads.map(({ index }) => index);
  if (state.sort === "layer") {
    const columns = [...new Set(heads.map(({ head }) => head))].sort((a, b) => a - b);
    const layers = [...new Set(heads.map(({ layer }) => layer))];
    overview.style.gridTemplateColumns = `auto repeat(${columns.length}, minmax(0, 1fr))`;
    for (const option of options) {
      const { layer, head } = heads[option.dataset.head];
      option.style.gridArea = `${layers.indexOf(layer) + 2} / ${columns.indexOf(head) + 2}`;
      option.lastChild.textContent = "";
    }
    const tops = columns.map((head, i) => [label(head, "top"), `1 / ${i + 2}`]);
    const sides = layers.map((layer, i) => [label(layer, "side"), `${i + 2} / 1`]);
    const corner = [[label("L\u2009\\\u2009H", "corner"), "1 / 1"]];
    for (const [node, area] of [...tops, ...sides, ...corner]) node.style.gridArea = area;
    overview.replaceChildren(...[...corner, ...tops, ...sides].map(([node]) => node), ...options);
  } else {
    const by = (index) => heads[index].summary[state.sort] ?? -Infinity;
    order.sort((a, b) => by(b) - by(a));
    overview.style.gridTemplateColumns = "repeat(auto-fill, minmax(3.9rem, 1fr))";
    for (const option of options) {
      const head = heads[option.dataset.head];
      option.style.gridArea = "";
      option.lastChild.textContent = `${head.name} ${summaryNumber(head.summary[state.sort])}`;
    }
    overview.replaceChildren(...order.map((index) => options[index]));
  }
  markHead();
}

function markHead() {
  for (const option of options) {
    const chosen = +option.dataset.head === state.head;
    option.setAttribute("aria-selected", chosen);
    option.tabIndex = chosen ? 0 : -1; // one stop for Tab; arrows go on from there
  }
}

/// Moves by `steps` in the order shown.
function stepHead(steps) {
  const at = order.indexOf(state.head) + steps;
  if (at >= 0 && at < order.length) update({ head: order[at] });
}

/// How many options the browser has laid out in a row.
function perRow() {
  const line = (index) => options[index].offsetTop;
  const first = line(order[0]);
  const next = order.findIndex((index) => line(index) !== first);
  return next < 0 ? order.length : next;
}

overview.addEventListener("click", (event) => {
  const option = event.target.closest("[role=option]");
  if (option) update({ head: +option.dataset.head });
});
overview.addEventListener("keydown", (event) => {
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -perRow(), ArrowDown: perRow() }[event.key];
  const ends = { Home: order[0], End: order[order.length - 1] }[event.key];
  if (steps === undefined && ends === undefined) return;
  event.preventDefault();
  if (steps === undefined) update({ head: ends });
  else stepHead(steps);
  options[state.head].focus();
});

// --- drawing heads as they come into view ----------------------------------------------------------

const waiting = new Set();
let drawing = false;
const seen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) waiting.add(target);
      else waiting.delete(target);
    }
    drawThumbnails();
  },
  { rootMargin: "200px" },
);

function redrawThumbnails() {
  // Observing again reports only what is on the screen.
  for (const option of options) {
    seen.unobserve(option);
    seen.observe(option);
  }
}

/// Draws a few at a time: decoding runs beside the script, and the page stays responsive in between.
async function drawThumbnails() {
  if (drawing) return;
  drawing = true;
  await Promise.all([1, 2, 3, 4].map(drawWaiting));
  drawing = false;
}

async function drawWaiting() {
  for (const option of waiting) {
    waiting.delete(option);
    const weights = await weightsOf(heads[option.dataset.head], false);
    const canvas = option.firstChild;
    if (!fitCanvas(canvas, canvas.clientWidth, canvas.clientHeight)) continue;
    const { width, height } = canvas;
    const context = canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.imageSmoothingEnabled = false;
    const scale = Math.min(width / tokens.length, height / queries);
    const [w, h] = [tokens.length * scale, queries * scale];
    context.drawImage(thumbnail(weights, Math.round(w), Math.round(h)), 0, 0, w, h);
    option.dataset.drawn = "";
  }
}

// --- the numbers of the chosen head ----------------------------------------------------------------

function showSummary() {
  const head = heads[state.head];
  document.getElementById("head-title").textContent = `Layer ${head.layer}, head ${head.head}`;
  const rows = metrics.map(([key, label, meaning]) => {
    const row = document.createElement("div");
    const term = document.createElement("dt");
    const number = document.createElement("dd");
    term.textContent = label;
    row.title = meaning;
    number.textContent = summaryNumber(head.summary[key]);
    number.dataset.metric = key;
    row.append(term, number);
    return row;
  });
  document.getElementById("summary").replaceChildren(...rows);
}

for (const [key, label] of [["layer", "layer"], ...metrics.filter(([key]) => key !== "uniform")]) {
  sortMenu.add(new Option(label, key));
}
sortMenu.addEventListener("change", () => update({ sort: sortMenu.value }));
on("sort", () => {
  sortMenu.value = state.sort;
  arrange();
  redrawThumbnails();
});
on("head", () => {
  markHead();
  showSummary();
  options[state.head].scrollIntoView({ block: "nearest" });
});
on("scale first", redrawThumbnails);
