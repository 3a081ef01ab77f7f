// Every head as a small heat map, in the model's order or sorted by a number, and colored by another.

const root = document.documentElement;
const overview = byId("overview");
const others = byId("maps");

/// What a head would do, and what became of it: "induction, ablated".
const markOf = (source) => [source.runs[0].kind, silencedIn(source)].filter(Boolean).join(", ");

function describe(source) {
  if (source.layer === null) return [source.label, source.meaning].filter(Boolean).join(": ");
  const numbers = shownMetrics().filter((metric) => !Number.isNaN(metric.of(source)));
  const words = [silencedIn(source), kindOf(source)].filter(Boolean);
  return `${source.label}: ${[...words, ...numbers.map((metric) => `${labelOf(metric)} ${metricText(metric, source)}`)].join(", ")}`;
}

const options = sources.map((source) => {
  const option = document.createElement("div");
  option.setAttribute("role", "option");
  option.id = `head-${source.index}`;
  option.dataset.head = source.index;
  const [word, name] = [document.createElement("small"), document.createElement("span")];
  if (source.layer === null) name.textContent = source.label;
  // Mostly as large as those of the page before.
  option.append(Object.assign(document.createElement("canvas"), showPage.small), word, name);
  return option;
});
const sourceOf = (option) => sources[option.dataset.head];

/// The indices of all options in the order in which they are shown.
let order = [];

function arrange() {
  const label = (text, place, area) => {
    const node = document.createElement("span");
    node.className = `label ${place}`;
    node.textContent = text;
    node.style.gridArea = area;
    node.setAttribute("aria-hidden", "true"); // each option names its layer and head itself
    return node;
  };
  order = heads.map(({ index }) => index);
  const focused = options.find((option) => option === document.activeElement);
  const metric = metricOf(state.sort);
  if (state.sort === "layer") {
    const columns = [...new Set(heads.map(({ head }) => head))].sort((a, b) => a - b);
    const layers = [...new Set(heads.map(({ layer }) => layer))];
    overview.style.gridTemplateColumns = `auto repeat(${columns.length}, minmax(0, 1fr))`;
    for (const { layer, head, index } of heads) {
      options[index].style.gridArea = `${layers.indexOf(layer) + 2} / ${columns.indexOf(head) + 2}`;
    }
    const sides = layers.map((layer, i) => {
      const side = label(layer, "side", `${i + 2} / 1`);
      side.title = `Mean of layer ${layer}'s heads (a)`;
      side.dataset.layer = layer;
      return side;
    });
    const tops = columns.map((head, i) => label(head, "top", `1 / ${i + 2}`));
    const corner = label("L\u2009\\\u2009H", "corner", "1 / 1");
    overview.replaceChildren(corner, ...tops, ...sides, ...heads.map(({ index }) => options[index]));
  } else {
    const rank = (head) => -Object.keys(kinds).indexOf(kindOf(head).split(" ").at(-1));
    const by = (index) => (metric ? metric.of : rank)(heads[index]);
    const place = (index) => (Number.isNaN(by(index)) ? -Infinity : by(index));
    order.sort((a, b) => place(b) - place(a) || a - b);
    overview.style.gridTemplateColumns = "repeat(auto-fill, minmax(3.9rem, 1fr))";
    for (const { index } of heads) options[index].style.gridArea = "";
    overview.replaceChildren(...order.map((index) => options[index]));
  }
  others.hidden = byId("maps-title").hidden = maps.length === 0;
  others.replaceChildren(...maps.map(({ index }) => options[index]));
  order = [...order, ...maps.map(({ index }) => index)];
  focused?.focus({ preventScroll: true }); // a node that moves loses the focus
  writeNumbers();
  markHead();
}

/// The kind of a head, with its mean weight there: several heads may be of one kind, some more than others.
function labelOfKind(head) {
  const kind = kindOf(head).split(" ").at(-1);
  const share = showsChange() ? NaN : inRun(head, `on_${kind}`);
  return Number.isFinite(share) ? `${kind} ${share.toFixed(2).replace(/^0/, "")}` : kind;
}

/// The numbers and colors of the heads.
function writeNumbers() {
  const [sorted, tint] = [metricOf(state.sort), metricOf(state.tint)];
  const range = tint && rangeOf(tint);
  for (const head of heads) {
    const option = options[head.index];
    option.title = describe(head);
    option.setAttribute("aria-label", describe(head));
    const lines = sorted ? [`${head.name} ${metricText(sorted, head)}`] : state.sort === "layer" ? [] : [head.name];
    const silenced = silencedIn(head);
    option.classList.toggle("silenced", !!silenced);
    option.children[1].textContent = silenced ? markOf(head) : labelOfKind(head);
    if (tint && tint !== sorted) {
      // ".53": a small map has little room, and the leading 0 says nothing.
      lines.push(Number.isNaN(tint.of(head)) ? "" : metricText(tint, head).replace(/^([+−]?)0\.(?=\d)/, "$1."));
    }
    option.lastChild.textContent = lines.join("\n");
    const color = tint && tintOf(tint, head, range);
    option.classList.toggle("tinted", !!tint);
    option.style.backgroundColor = color ? `rgb(${color})` : "";
    option.children[1].style.color = option.lastChild.style.color = color ? (wantsBlack(color) ? "#000" : "#fff") : "";
  }
  for (const { index } of maps) {
    options[index].title = describe(sources[index]);
    options[index].setAttribute("aria-label", describe(sources[index]));
  }
  byId("tint-legend").hidden = !tint;
  if (!tint) return;
  byId("tint-low").textContent = numberText(range[0], tint.signed(), placesOf(tint));
  byId("tint-high").textContent = numberText(range[1], tint.signed(), placesOf(tint));
  byId("tint-scale").style.backgroundImage = gradient(tint.signed());
  byId("tint-name").textContent = labelOf(tint);
}

function markHead() {
  for (const option of options) {
    const index = +option.dataset.head;
    option.setAttribute("aria-selected", index === state.head || state.more.includes(index));
    option.tabIndex = index === state.head ? 0 : -1; // Tab stops once; arrows move from there
  }
}

// --- choosing --------------------------------------------------------------------------------------

const chooseHead = (head) => update({ head, more: [] });

/// Adds a head to those whose mean is shown, or takes it out; one always stays.
function toggleHead(index) {
  const all = chosen();
  if (!all.includes(index)) return update({ head: index, more: all });
  const left = all.filter((other) => other !== index);
  if (left.length > 0) update({ head: left.at(-1), more: left.slice(0, -1) });
}

function chooseLayer(layer) {
  const [head, ...more] = heads.filter((one) => one.layer === layer).map(({ index }) => index);
  update({ head, more });
}

/// Moves by `steps` in the order shown.
function stepHead(steps) {
  const at = order.indexOf(state.head) + steps;
  if (at >= 0 && at < order.length) chooseHead(order[at]);
}

/// How many options the browser has laid out in a row.
function perRow() {
  const line = (index) => options[index].offsetTop;
  const first = line(order[0]);
  const next = order.findIndex((index) => line(index) !== first);
  return next < 0 ? order.length : next;
}

for (const list of [overview, others]) {
  list.addEventListener("click", (event) => {
    const { layer } = event.target.dataset;
    if (layer !== undefined) return chooseLayer(+layer);
    const option = event.target.closest("[role=option]");
    if (!option) return;
    if (event.ctrlKey || event.metaKey || event.shiftKey) toggleHead(+option.dataset.head);
    else {
      chooseHead(+option.dataset.head);
      showView();
    }
  });
  list.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -perRow(), ArrowDown: perRow() }[event.key];
    const ends = { Home: order[0], End: order[order.length - 1] }[event.key];
    const here = order.indexOf(+(event.target.closest("[role=option]")?.dataset.head ?? state.head));
    if (event.key === " ") {
      event.preventDefault();
      event.stopPropagation();
      return toggleHead(order[here]);
    }
    const next = ends ?? order[here + (steps ?? NaN)];
    if (steps !== undefined || ends !== undefined) event.preventDefault();
    if (next === undefined) return;
    // With Ctrl, only the focus moves, and the space bar adds the head that it is on.
    if (!event.ctrlKey && !event.metaKey) chooseHead(next);
    options[next].focus();
  });
}

/// On a phone, heads and map do not fit on one screen: a choice goes to the map. Only this page scrolls, not the notebook around its frame.
function showView() {
  const { left, top } = byId("view").getBoundingClientRect();
  if (left > 0 || innerWidth > 760) return;
  // The guide stays on top.
  scrollTo({ top: top + scrollY - byId("guide").getBoundingClientRect().height, behavior: calm.matches ? "auto" : "smooth" });
}

// --- drawing heads as they come into view ----------------------------------------------------------

const waiting = new Set();
/// Those that are drawn before they are seen to be on the screen.
const early = new Set();
let drawing = false;
const seen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (early.delete(target)) continue;
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

/// Draws the first ones without a look at the screen, for a page that takes the place of another.
function drawEarly() {
  for (const option of options.slice(0, 48)) {
    early.add(option);
    waiting.add(option);
  }
  // Then the page is laid out once, for them and the map.
  requestAnimationFrame(drawThumbnails);
}

/// Draws a few at a time: decoding runs beside the script, and the page stays responsive in between.
async function drawThumbnails() {
  if (drawing) return;
  drawing = true;
  await Promise.all([1, 2, 3, 4].map(drawWaiting));
  drawing = false;
}

/// What the small map of a source adds up.
async function partsOf(source) {
  const weighted = isWeighted([source]);
  const norms = (run) => (weighted ? normsOf(source, run) : undefined);
  const part = async (run, factor) => ({ weights: await weightsOf(source, run, false), factor, norms: norms(run) });
  if (!showsChange()) return [await part(shownRun(), 1)];
  return Promise.all([part(0, -1), part(1, 1)]);
}

/// The number at which the colors of the small maps end.
const smallEnd = (weighted) => (weighted ? largestNorm() : 1) * (showsChange() ? largestChange : 1);

async function drawWaiting() {
  // All sizes before any canvas changes: each question after a change would lay out the page anew.
  const sizes = new Map([...waiting].map((option) => [option, [option.firstChild.clientWidth, option.firstChild.clientHeight]]));
  for (const option of waiting) {
    if (signal?.aborted) return;
    waiting.delete(option);
    const parts = await partsOf(sourceOf(option));
    const sheet = { signed: showsChange(), unit: smallEnd(!!parts[0].norms) };
    const canvas = option.firstChild;
    const [across, down] = sizes.get(option) ?? [canvas.clientWidth, canvas.clientHeight];
    if (!fitCanvas(canvas, across, down)) continue;
    const { width, height } = canvas;
    showPage.small = { width, height };
    const context = canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.imageSmoothingEnabled = false;
    const scale = Math.min(width / tokens.length, height / queries);
    const [w, h] = [tokens.length * scale, queries * scale];
    context.drawImage(thumbnail(parts, sheet, Math.round(w), Math.round(h)), 0, 0, w, h);
    option.dataset.drawn = "";
  }
}

// --- the numbers of the chosen heads ---------------------------------------------------------------

function titleText() {
  const all = chosen().map((index) => sources[index]);
  if (all.length === 1) return all[0].label;
  const { layer } = all[0];
  const whole = layer !== null && heads.filter((head) => head.layer === layer).length === all.length;
  if (whole && all.every((source) => source.layer === layer)) return `Layer ${layer}, mean of its ${all.length} heads`;
  return `Mean of ${all.length}: ${all.map(({ layer, name, label }) => (layer === null ? label : name)).join(", ")}`;
}

function showSummary() {
  byId("head-title").textContent = byId("head-title").title = titleText();
  const all = chosen().map((index) => sources[index]);
  const silenced = [...new Set(all.filter(silencedIn).map(markOf))].join("; ");
  byId("head-mark").hidden = silenced === "";
  byId("head-mark").textContent = silenced;
  const row = (key, label, meaning, text) => {
    const line = document.createElement("div");
    const term = document.createElement("dt");
    const number = document.createElement("dd");
    [term.textContent, number.textContent, line.title] = [label, text, meaning];
    line.classList.toggle("told", meaning !== "");
    number.dataset.metric = key;
    line.append(term, number);
    return line;
  };
  const isHead = all[0].layer !== null;
  const words = [...new Set(all.map(kindOf))].join(", ");
  const rows = shownMetrics().map((metric) => {
    const mean = all.reduce((sum, source) => sum + metric.of(source), 0) / all.length;
    return row(metric.key, labelOf(metric), metric.meaning, isHead ? metricText(metric, all[0], mean) : "–");
  });
  byId("summary").replaceChildren(...(isHead ? [row("kind", "kind", "Where it looks most, in the words of the terminal", words)] : []), ...rows);
}

const [sortMenu, tintMenu] = [byId("sort"), byId("tint")];
sortMenu.add(new Option("layer", "layer"));
sortMenu.add(new Option("kind", "kind"));
tintMenu.add(new Option("none", "none"));
for (const { key, label } of metrics.filter(({ key }) => key !== "uniform")) {
  for (const menu of [sortMenu, tintMenu]) menu.add(new Option(label, key));
}
for (const [key, menu] of [["sort", sortMenu], ["tint", tintMenu]]) {
  ALLOWED[key] = [...menu.options].map(({ value }) => value);
  menu.addEventListener("change", () => update({ [key]: menu.value }));
  on(key, () => (menu.value = state[key]));
}
on("sort", () => {
  arrange();
  redrawThumbnails();
});
on("run weighted scale theme", () => {
  byId("small-legend").hidden = !showsChange();
  byId("heads-word").textContent = showsChange()
    ? `Each small map is how a head changes: red where it attends more in the run ${runs[1]} than in ${runs[0]}, blue where less. The colors end at the largest difference of a weight.`
    : "Each small map is a head: rows attend to columns.";
  // If only some have norms, no number stands for all small maps.
  const mixed = state.weighted && hasNorms && !isWeighted(heads);
  const end = state.scale === "row" || mixed ? "" : short(smallEnd(isWeighted(heads)));
  byId("small-low").textContent = end ? `−${end}` : "less";
  byId("small-high").textContent = end ? `+${end}` : "more";
  byId("small-scale").style.backgroundImage = gradient(true);
});
on("tint run theme", writeNumbers);
on("run", () => state.sort !== "layer" && arrange());
on("head more", markHead);
on("head more run", showSummary);
/// Scrolls the list alone: scrollIntoView would scroll the page as well, and the notebook around its frame.
function revealHead() {
  const option = options[state.head];
  const list = option.parentElement;
  const { offsetTop: top, offsetHeight } = option;
  if (top < list.scrollTop || top + offsetHeight > list.scrollTop + list.clientHeight) {
    list.scrollTop = top - (list.clientHeight - offsetHeight) / 2;
  }
}
on("head sort", () => requestAnimationFrame(revealHead));
on("scale first run weighted theme tint", redrawThumbnails);
