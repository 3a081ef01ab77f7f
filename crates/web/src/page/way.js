// The way of one token through the model: a stage after the other, with its formula, its shape and its numbers.

/// How each stage is computed. D is the width of a head.
const FORMULAS = {
  wte: () => "wte[id]",
  wpe: () => "wpe[position]",
  resid_pre: ({ layer }) => (layer === 0 ? "x = wte[id] + wpe[position]" : `x, after block ${layer - 1}`),
  ln_1: () => "(x − mean) / √(variance + ε) · γ + β",
  q: () => "ln_1 · W_q + b_q",
  k: () => "ln_1 · W_k + b_k",
  v: () => "ln_1 · W_v + b_v",
  scores: ({ stage, D }) => {
    const isRoot = Math.abs(stage.scale - D ** -0.5) < 1e-6;
    return `q · kⱼ ${isRoot ? `/ √${D}` : `· ${+stage.scale.toPrecision(4)}`},  −∞ for j > i`;
  },
  pattern: () => "wⱼ = exp(scoreⱼ) / Σₖ exp(scoreₖ)",
  z: () => "z = Σⱼ wⱼ · vⱼ",
  result: ({ head }) => `z · W_proj, rows of head ${head}`,
  merged: () => "all heads' z, side by side",
  attn_out: () => "c_proj: merged · W_proj + b",
  resid_mid: () => "x + attention",
  ln_2: () => "(x − mean) / √(variance + ε) · γ + β",
  mlp_post: ({ activation }) => `${activation}(ln_2 · W_fc + b_fc)`,
  mlp_out: () => "c_proj: neurons · W + b",
  resid_post: () => "x + MLP",
  ln_f: () => "the same, after all blocks",
  logits: () => "ln_f · wteᵀ",
  probabilities: () => "softmax(logits / temperature)",
};
/// The stages that are the residual stream itself, and those that join it.
const STREAM = ["resid_pre", "resid_mid", "resid_post", "ln_f"];
const JOINS = ["wpe", "attn_out", "mlp_out"];
/// The stages whose numbers belong to tokens.
const BY_TOKEN = ["scores", "pattern", "logits", "probabilities"];

/// A text with values in the place of its words in capitals.
const fill = (text, values) => text.replace(/[A-Z]{2,}/g, (word) => values[word] ?? word);
const rounded = (x) => (x === null ? "−∞" : x.toFixed(Math.abs(x) < 10 ? 3 : 1).replace("-", "−"));

/// The parts of each stage on the page, by its name.
const stageParts = new Map();

/// The position of the token whose way is shown.
let followed = 0;

const isWayOpen = () => !byId("way").hidden;

/// What to follow: the chosen head and token. Null while the way is closed.
function along() {
  if (!isWayOpen() || !page || isOther) return null;
  const { layer, head } = page.sources.find(({ index, layer }) => layer !== null && index === page.state.head) ?? page.sources[0];
  const { token } = page.state;
  return { layer, head, token: token === shown.ids.length - 1 ? null : token };
}

function makeStage(name) {
  const item = make("li", STREAM.includes(name) ? "stream" : JOINS.includes(name) ? "joins" : "branch");
  const details = make("details");
  const summary = make("summary");
  const [title, shape, formula] = [make("b", "", name), make("span", "shape"), make("code")];
  const [strip, bars] = [make("canvas", "strip"), make("canvas", "bars")];
  const [sentence, facts] = [make("p"), make("p", "facts")];
  const list = make("ol");
  bars.setAttribute("role", "img");
  strip.setAttribute("aria-hidden", "true");
  summary.append(title, shape, formula, strip);
  details.append(summary, sentence, bars, list, facts);
  details.dataset.stage = name;
  const gap = make("li", "gap");
  gap.hidden = true;
  item.append(details);
  byId("way-stages").append(gap, item);
  const parts = { gap, details, title, shape, formula, strip, bars, sentence, facts, list, stage: null };
  details.addEventListener("toggle", () => {
    if (parts.stage) drawStage(parts);
    if (details.open && details.contains(document.activeElement)) details.scrollIntoView({ block: "nearest" });
    followLesson();
  });
  bars.addEventListener("pointermove", (event) => {
    const { values } = parts.stage;
    const n = Math.min(values.length - 1, Math.floor((event.offsetX / bars.clientWidth) * values.length));
    bars.title = `${tokenOf(parts.stage, n)}: ${rounded(values[n])}`;
  });
  stageParts.set(name, parts);
}

/// Draws the way that came with an answer. Only the newest sets the menus, which the reader may have in hand.
function showWay({ way }, { along, changes }, isNewest) {
  if (!way || !isWayOpen()) return;
  const { layer, head } = along;
  const { token, stages, activation } = way;
  const D = stages.find(({ name }) => name === "q").values.length;
  followed = token;
  byId("way-of").textContent = fill(texts.way.of, { TOKEN: `${token} ${page.tokens[token]}`, HEAD: `${layer}.${head}`, LAYER: layer });
  byId("way-changed").textContent = changes.length > 0 ? fill(texts.way.changed, { CHANGES: changes.join(", ") }) : "";
  if (isNewest) {
    chooseIn("way-layer", layer);
    chooseIn("way-head", head);
    chooseIn("way-token", token);
  }
  for (const stage of stages) {
    if (!stageParts.has(stage.name)) makeStage(stage.name);
    const parts = stageParts.get(stage.name);
    parts.stage = stage;
    parts.shape.textContent = `(${stage.shape.join(", ")})`;
    parts.formula.textContent = parts.formula.title = FORMULAS[stage.name]({ stage, layer, head, D, activation });
    parts.details.title = stage.point ?? "";
    parts.later = shown.ids.length - 1 - token;
    const { columns } = stage;
    const more = columns ? fill(texts.way.columns, { FROM: columns.start, TO: columns.end - 1 }) : "";
    parts.sentence.textContent = `${texts.way.stages[stage.name]} ${more}`;
    drawStage(parts);
  }
  const last = 1 + Math.max(...page.sources.map(({ layer }) => layer ?? 0));
  showGap("resid_pre", 0, layer);
  showGap("ln_f", layer + 1, last);
  drawMoving();
}

/// Where blocks are left out before a stage: a break in the line, with their numbers.
function showGap(name, from, end) {
  const { gap } = stageParts.get(name);
  gap.hidden = from >= end;
  gap.textContent = `⋮ ${fill(end - from === 1 ? texts.way.block : texts.way.blocks, { FROM: from, TO: end - 1 })}`;
}

function drawStage({ stage, later, details, strip, bars, list, facts }) {
  const { values, own } = stage;
  const numbers = values.filter((x) => x !== null);
  const largest = Math.max(...numbers.map(Math.abs), 1e-12);
  drawStrip(strip, values, largest);
  if (!details.open) return;
  const isListed = BY_TOKEN.includes(stage.name);
  bars.hidden = isListed && values.length <= 8;
  if (!bars.hidden) drawBars(bars, values, largest, own);
  const mean = numbers.reduce((sum, x) => sum + x, 0) / numbers.length;
  const length = Math.hypot(...numbers);
  const told = { COUNT: values.length, LENGTH: rounded(length), MEAN: rounded(mean), LARGEST: rounded(largest) };
  facts.textContent = isListed ? "" : fill(texts.way.facts, told);
  const order = [...values.keys()];
  if (values.length > 8) order.sort((a, b) => (values[b] ?? -Infinity) - (values[a] ?? -Infinity));
  const lines = isListed ? order.slice(0, 8).map((n) => lineOf(stage, n)) : [];
  if (isListed && order.length > 8) lines.push(make("li", "", fill(texts.way.more, { COUNT: order.length - 8 })));
  if (stage.name === "scores" && later > 0) lines.push(make("li", "", fill(texts.way.hidden, { COUNT: later })));
  list.replaceChildren(...lines);
}

/// A token with its number, and a bar if that is a share.
function lineOf(stage, n) {
  const { name, values } = stage;
  const line = make("li");
  const isShare = name === "pattern" || name === "probabilities";
  const share = make("span", "share");
  if (isShare) share.style.width = `${100 * values[n]}%`;
  const position = name === "scores" || name === "pattern" ? n : "";
  const number = isShare ? percent(values[n]) : rounded(values[n]);
  line.append(share, make("span", "position", position), make("span", "word", tokenOf(stage, n)), make("span", "number", number));
  return line;
}

/// What a value belongs to: a token of the text, or of the vocabulary, or a dimension.
const tokenOf = ({ name, tokens }, n) => tokens[n] ?? (BY_TOKEN.includes(name) ? page.tokens[n] : `dimension ${n}`);

/// A canvas of its size on the screen, and its width and height in CSS pixels.
function prepared(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  [canvas.width, canvas.height] = [Math.round(width * devicePixelRatio), Math.round(height * devicePixelRatio)];
  const context = canvas.getContext("2d");
  context.scale(devicePixelRatio, devicePixelRatio);
  return { context, width, height };
}

const colorOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

/// Each number as a color, from less to more.
function drawStrip(canvas, values, largest) {
  const { context, width, height } = prepared(canvas);
  const [less, more] = [colorOf("--less"), colorOf("--more")];
  const step = width / values.length;
  for (const [n, x] of values.entries()) {
    context.globalAlpha = x === null ? 0 : Math.sqrt(Math.abs(x) / largest);
    context.fillStyle = x < 0 ? less : more;
    context.fillRect(n * step, 0, Math.max(step, 0.5), height);
  }
}

/// Each number as a bar, up or down; those of the chosen head on a ground of their own.
function drawBars(canvas, values, largest, own) {
  const { context, width, height } = prepared(canvas);
  const [less, more, line] = [colorOf("--less"), colorOf("--more"), colorOf("--line")];
  const step = width / values.length;
  const [top, bottom] = [Math.max(...values), -Math.min(...values, 0)].map((x) => Math.max(x, 0));
  const zero = (top / (top + bottom || 1)) * height;
  const unit = height / (top + bottom || 1);
  context.fillStyle = line;
  if (own) {
    context.globalAlpha = 0.5;
    context.fillRect(own.start * step, 0, (own.end - own.start) * step, height);
    context.globalAlpha = 1;
  }
  context.fillRect(0, zero, width, 1);
  for (const [n, x] of values.entries()) {
    if (x === null) continue;
    context.fillStyle = x < 0 ? less : more;
    context.fillRect(n * step, Math.min(zero, zero - x * unit), Math.max(step - (step > 3 ? 1 : 0), 0.6), Math.abs(x * unit));
  }
  canvas.setAttribute("aria-label", `${values.length} numbers, from ${rounded(-bottom)} to ${rounded(top)}`);
}

// --- what to follow --------------------------------------------------------------------------------

/// Fills a menu with choices, of which the index is the value.
function fillMenu(id, choices) {
  const menu = byId(id);
  if (menu.length === choices.length && choices.every((text, n) => menu[n].textContent === text)) return;
  menu.replaceChildren(...choices.map((text, n) => Object.assign(make("option", "", text), { value: n })));
}

function chooseIn(id, index) {
  if (id === "way-token") fillMenu(id, page.tokens.map((token, n) => `${n} ${token}`));
  else {
    const key = id.slice("way-".length);
    const count = 1 + Math.max(...page.sources.map((source) => source[key] ?? 0));
    fillMenu(id, Array.from({ length: count }, (_, n) => `${n}`));
  }
  byId(id).value = index;
}

for (const id of ["way-layer", "way-head", "way-token"]) {
  byId(id).addEventListener("change", () => {
    const [layer, head, token] = ["way-layer", "way-head", "way-token"].map((id) => +byId(id).value);
    const { index } = page.sources.find((source) => source.layer === layer && source.head === head);
    page.update({ head: index, more: [], token });
  });
}

/// The way of another token or head, once the reader has chosen it.
function followChoice() {
  const now = along();
  if (now && asked && JSON.stringify(now) !== JSON.stringify(asked.along)) askAnew();
}

function putWay(isOpen) {
  byId("way").hidden = !isOpen;
  byId("live-way").setAttribute("aria-expanded", isOpen);
  document.body.classList.toggle("with-way", isOpen);
  if (isOpen) byId("way").scrollTop = 0;
}

function toggleWay(isOpen) {
  putWay(isOpen);
  if (isOpen) askAnew();
}

/// From the button and the key, the focus goes into the way, and back.
function switchWay() {
  if (isWayOpen()) return closeWay();
  toggleWay(true);
  byId("way-title").focus({ preventScroll: innerWidth > 1150 });
}

byId("live-way").addEventListener("click", switchWay);
function closeWay() {
  toggleWay(false);
  byId("live-way").focus({ preventScroll: true });
}
byId("way-close").addEventListener("click", closeWay);
byId("way").addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  event.stopPropagation();
  closeWay();
});
byId("way-all").addEventListener("click", () => {
  const all = [...stageParts.values()].map(({ details }) => details);
  const isOpen = all.some(({ open }) => !open);
  for (const details of all) details.open = isOpen;
});
// The arrows go from stage to stage.
byId("way-stages").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || event.target.tagName !== "SUMMARY") return;
  event.preventDefault();
  const all = [...byId("way-stages").querySelectorAll("summary")];
  all[all.indexOf(event.target) + step]?.focus();
});
function redrawWay() {
  if (isWayOpen()) for (const parts of stageParts.values()) drawStage(parts);
  drawMoving();
}
addEventListener("resize", redrawWay);
