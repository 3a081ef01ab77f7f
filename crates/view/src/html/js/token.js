// The chosen token: what it attends to, what attends to it, the model's predictions after it, and the text.

const LISTED = 10;
const strip = byId("text");

const chooseToken = (token) => update({ token, cell: null, pinned: null });

function stepToken(steps) {
  const from = state.token ?? (steps > 0 ? -1 : tokens.length);
  chooseToken(Math.min(Math.max(from + steps, 0), shownKeys() - 1));
}

/// A line of a list: a bar, a token and a number. With something to do, it is a button; with a position, one that chooses that token.
function entry({ text, position, number, exactly, share, color, choose }) {
  const item = document.createElement("li");
  const act = choose ?? (position === undefined ? null : () => chooseToken(position));
  const body = document.createElement(act ? "button" : "div");
  if (act) {
    body.type = "button";
    body.addEventListener("click", act);
  }
  if (position !== undefined) {
    body.dataset.position = position;
    body.title = "Choose this token";
  }
  const part = (name, content) => {
    const node = document.createElement("span");
    node.className = name;
    node.textContent = content;
    body.append(node);
    return node;
  };
  const bar = part("share", "");
  bar.style.width = `${100 * share}%`;
  bar.style.backgroundColor = `var(--${color})`;
  part("position", position ?? "");
  part("word", text);
  part("number", number).title = exactly ?? "";
  item.append(body);
  return item;
}

/// The strongest of `count` weights, `weightAt(n)` each, as entries; if there are none, a line says why.
function strongest(list, count, cellOf, color, nothing) {
  const found = [];
  for (let n = 0; n < count; n++) {
    const { query, key } = cellOf(n);
    if (key === 0 && !state.first) continue;
    const value = current.value(query, key);
    // Changes within their error may be 0.
    if (!value.dropped && !(value.signed && Math.abs(value.weight) <= value.error)) found.push({ query, key, ...value });
  }
  found.sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight));
  const entries = found.slice(0, LISTED).map((value) => {
    const position = color === "out" ? value.key : value.query + offset;
    return entry({
      text: tokens[position],
      position,
      number: showsBoth() ? fromTo(value, rounded) : rounded(value),
      exactly: exact(value),
      share: Math.min(1, Math.abs(value.weight / current.unit)) || 0,
      color: tone(current, value.query, value.key, color),
    });
  });
  fill(list, entries, nothing);
}

/// A cell's numbers in both runs.
const fromTo = ({ query, key }, write) => beside.map((sheet) => write(sheet.value(query, key))).join(" → ");

/// Why a list is empty, which has nothing but the first token if `onlyFirst`.
function noneShown(onlyFirst) {
  if (!state.first && onlyFirst) return "The first token is hidden.";
  if (current.signed && chosen().every((index) => changeOf(sources[index]) === 0)) {
    const isUnused = chosen().every((index) => silencedIn(sources[index]));
    return isUnused ? "This head looks where it looked, but its output is not used." : "This head did not change.";
  }
  if (current.signed) return "Nothing changed here.";
  return kept === null ? "There is none." : `None${state.first ? "" : " but the hidden first token"} is among the ${kept} largest of its row.`;
}

function fill(list, entries, nothing) {
  const note = document.createElement("li");
  note.className = "nothing";
  note.textContent = nothing;
  list.replaceChildren(...(entries.length > 0 ? entries : [note]));
}

function showToken() {
  const { token } = state;
  byId("token-title").textContent = token === null ? "No token chosen" : `Token ${token}`;
  byId("token-word").textContent = token === null ? "" : tokens[token];
  byId("token-lists").hidden = token === null;
  if (token === null || !current) return;
  const query = token - offset;
  byId("outgoing").parentElement.firstChild.textContent = showsChange() ? "attention changed to" : "attends to";
  byId("incoming").parentElement.firstChild.textContent = showsChange() ? "attention changed from" : "attended by";
  strongest(byId("outgoing"), query < 0 ? 0 : rowLength(query), (key) => ({ query, key }), "out",
    query < 0 ? "This token comes before the first query." : noneShown(query === 0 && offset === 0));
  const first = Math.max(0, query);
  strongest(byId("incoming"), Math.max(0, shownRows() - first), (n) => ({ query: first + n, key: token }), "in",
    noneShown(token === 0));
  showPredictions(query);
}

/// The predictions of the shown runs, one list each.
function showPredictions(query) {
  const shown = shownRuns();
  for (const [place, ids] of [["next", "follows"], ["next-second", "follows-second"]].entries()) {
    const run = shown[place];
    const section = byId(ids[0]).parentElement;
    section.hidden = run === undefined || predictions[run].length === 0;
    if (section.hidden) continue;
    section.firstChild.textContent = compared ? `predicted next, ${runs[run]}` : "predicted next";
    const { likely, actual } = predictions[run][query] ?? { likely: [], actual: null };
    const entries = likely.map(([text, p]) => entry({ text, number: percent(p), share: p, color: "next-bar" }));
    fill(byId(ids[0]), entries, "There is no prediction here.");
    const follows = byId(ids[1]);
    follows.hidden = actual === null;
    if (actual !== null) follows.textContent = follows.title = `then came ${tokenAfter(query + offset)} (${percent(actual)})`;
  }
  showLens(query, shown);
}

const afterBlocks = blocks("lens").map(read);
/// The model's guess after each block, had it been the last.
function showLens(query, shown) {
  const section = byId("lens").parentElement;
  section.hidden = afterBlocks.length === 0 || query < 0;
  if (section.hidden) return;
  const layers = [...new Set(afterBlocks.map(({ layer }) => layer))];
  const entries = layers.map((layer) => {
    const guesses = shown
      .map((run) => afterBlocks.find((lens) => lens.layer === layer && lens.run === run)?.likely[query])
      .filter(Boolean);
    const text = [...new Set(guesses.map(([token]) => token))].join(" → ");
    const number = guesses.map(([, p]) => percent(p)).join(" → ");
    const item = entry({ text, number, share: guesses.at(-1)?.[1] ?? 0, color: "next-bar" });
    item.querySelector(".position").textContent = layer;
    return item;
  });
  fill(byId("lens"), entries, "");
}

// --- the text --------------------------------------------------------------------------------------

const words = tokens.map((text, position) => {
  const word = document.createElement("span");
  word.textContent = text;
  word.dataset.position = position;
  word.id = `word-${position}`;
  word.setAttribute("role", "option");
  return word;
});
// A line feed in the prompt ends a line here, too.
for (const [position, word] of words.entries()) {
  strip.append(word, ...(tokens[position].endsWith("⏎") ? [document.createElement("br")] : []));
}

// The last generated token: no query has read it.
if (afterLast !== null) {
  const word = document.createElement("span");
  word.className = "unread";
  word.setAttribute("aria-hidden", "true");
  word.textContent = afterLast;
  word.title = "The last generated token. The model has not read it, so it attends to nothing yet.";
  strip.append(word);
  on("step", () => word.classList.toggle("later", shownKeys() < tokens.length));
}

/// The strength and the color that each word has.
const tints = [];
function tintText() {
  if (!current) return;
  const query = (state.token ?? -1) - offset;
  const fires = state.feature === null ? null : firesAt(state.feature);
  for (const [position, word] of words.entries()) {
    const seen = fires !== null || (query >= 0 && position < rowLength(query));
    const strong = seen ? String(Math.round(25 * (fires?.[position] ?? strength(current, query, position))) / 25) : "0";
    const tint = seen ? `${strong} ${fires ? "next-bar" : tone(current, query, position, "out")}` : "0 out";
    // Most words stay as they are from one step to the next, and styles of a thousand words take a while.
    if (strong === "0" ? tints[position] === "0" : tints[position] === tint) continue;
    tints[position] = strong === "0" ? "0" : tint;
    word.style.setProperty("--strength", strong);
    word.style.setProperty("--tint", `var(--${tint.split(" ")[1]})`);
  }
}

let marked = null;
function markWord() {
  marked?.setAttribute("aria-selected", false);
  marked = state.token === null ? null : words[state.token];
  marked?.setAttribute("aria-selected", true);
  if (!marked) return strip.removeAttribute("aria-activedescendant");
  strip.setAttribute("aria-activedescendant", marked.id);
  requestAnimationFrame(revealWord);
}

/// Scrolls the text alone: scrollIntoView would scroll the page as well.
function revealWord() {
  if (!marked) return;
  const { offsetTop: top, offsetHeight } = marked;
  const { scrollTop, clientHeight } = strip;
  if (top >= scrollTop && top + offsetHeight <= scrollTop + clientHeight) return;
  strip.scrollTop = state.token === tokens.length - 1 ? strip.scrollHeight : top - clientHeight / 2;
}

strip.addEventListener("click", (event) => {
  const word = event.target.closest("[role=option]");
  if (word) chooseToken(+word.dataset.position);
});
strip.addEventListener("keydown", (event) => {
  const steps = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
  if (!steps) return;
  event.preventDefault();
  stepToken(steps);
});

// --- the value -------------------------------------------------------------------------------------

/// What stands beside the number: both runs' numbers, or the factors.
function detailOf({ query, key }) {
  if (showsChange()) return fromTo({ query, key }, rounded);
  if (beside.length === 0) return "";
  const weight = beside[0].value(query, key);
  const norms = chosen().length === 1 && normsOf(sources[state.head], shownRun());
  return `weight ${rounded(weight)}${norms ? ` × norm ${norms[key].toPrecision(3)}` : ""}`;
}

function showValue() {
  const readout = byId("readout");
  readout.classList.toggle("hint", !state.cell);
  if (!state.cell || !current) {
    readout.textContent =
      state.view === "map"
        ? "Point at a cell to see its value. A click or a tap chooses its token."
        : "Point at a token to see its lines. A click chooses it, a second one shows all lines.";
    return;
  }
  const { query, key } = state.cell;
  const part = (name, text) => {
    const node = document.createElement("span");
    node.className = name;
    node.textContent = text;
    return node;
  };
  const detail = detailOf(state.cell);
  readout.replaceChildren(
    part("value", exact(current.value(query, key))),
    ...(detail ? [part("detail", detail)] : []),
    part("position", query + offset),
    part("word", tokens[query + offset]),
    part("arrow", "attends to"),
    part("position", key),
    part("word", tokens[key]),
  );
}

/// With two runs, what they predict comes first.
const forecasts = ["next", "next-second", "lens"].map((id) => byId(id).parentElement);
on("run", () => byId("token-lists")[compared ? "prepend" : "append"](...forecasts));

byId("previous").addEventListener("click", () => stepToken(-1));
byId("following").addEventListener("click", () => stepToken(1));
on("weights token first step", showToken);
on("weights token scale first feature run", tintText);
on("token", markWord);
on("weights cell view", showValue);
on("found", () => {
  for (const [position, word] of words.entries()) word.classList.toggle("found", state.found.has(position));
});
let writtenWords = words.length;
on("step", () => {
  const shown = shownKeys();
  // They keep their place: laying out a thousand words again at each step would stutter.
  for (const word of words.slice(Math.min(shown, writtenWords), Math.max(shown, writtenWords))) {
    word.classList.toggle("later", shown < writtenWords);
  }
  writtenWords = shown;
});
