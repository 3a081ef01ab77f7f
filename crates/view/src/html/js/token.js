// The chosen token: what it attends to, what attends to it, the model's predictions after it, and the text.

const LISTED = 10;
const byId = (id) => document.getElementById(id);
const strip = byId("text");

const chooseToken = (token) => update({ token, cell: null, pinned: null });

function stepToken(steps) {
  const from = state.token ?? (steps > 0 ? -1 : tokens.length);
  chooseToken(Math.min(Math.max(from + steps, 0), tokens.length - 1));
}

/// A line of a list: a bar, a token and a number. With a position, it is a button that chooses that token.
function entry({ text, position, number, exactly, share, colour }) {
  const item = document.createElement("li");
  const body = document.createElement(position === undefined ? "div" : "button");
  if (position !== undefined) {
    body.type = "button";
    body.dataset.position = position;
    body.addEventListener("click", () => chooseToken(position));
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
  bar.style.backgroundColor = `var(--${colour})`;
  part("position", position ?? "");
  part("word", text);
  part("number", number).title = exactly ?? "";
  item.append(body);
  return item;
}

/// The strongest of `count` weights, `weightAt(n)` each, as entries; if there are none, a line says why.
function strongest(list, count, cellOf, colour, nothing) {
  const found = [];
  for (let n = 0; n < count; n++) {
    const { query, key } = cellOf(n);
    if (key === 0 && !state.first) continue;
    const value = current.value(query, key);
    if (!value.dropped) found.push({ query, key, ...value });
  }
  found.sort((a, b) => b.weight - a.weight);
  const entries = found.slice(0, LISTED).map((value) => {
    const position = colour === "out" ? value.key : value.query + offset;
    return entry({
      text: tokens[position],
      position,
      number: rounded(value),
      exactly: exact(value),
      share: value.weight || 0,
      colour,
    });
  });
  fill(list, entries, nothing);
}

/// Why a list is empty.
function noneShown() {
  return state.first ? `None is among the ${kept} largest of its row.` : "The first token is hidden.";
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
  strongest(byId("outgoing"), query < 0 ? 0 : rowLength(query), (key) => ({ query, key }), "out",
    query < 0 ? "This token comes before the first query." : noneShown());
  const first = Math.max(0, query);
  strongest(byId("incoming"), queries - first, (n) => ({ query: first + n, key: token }), "in",
    noneShown());
  showPredictions(query);
}

function showPredictions(query) {
  const section = byId("next").parentElement;
  section.hidden = predictions.length === 0;
  if (section.hidden) return;
  const { likely, actual } = predictions[query] ?? { likely: [], actual: null };
  const entries = likely.map(([text, p]) => entry({ text, number: percent(p), share: p, colour: "next-bar" }));
  fill(byId("next"), entries, "There is no prediction here.");
  const follows = byId("follows");
  follows.hidden = actual === null;
  if (actual !== null) follows.textContent = `then came ${tokens[query + offset + 1]} (${percent(actual)})`;
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

function tintText() {
  if (!current) return;
  const query = (state.token ?? -1) - offset;
  for (const [position, word] of words.entries()) {
    const seen = query >= 0 && position < rowLength(query);
    word.style.setProperty("--strength", seen ? strength(current, query, position).toFixed(3) : 0);
  }
}

let marked = null;
function markWord() {
  marked?.setAttribute("aria-selected", false);
  marked = state.token === null ? null : words[state.token];
  marked?.setAttribute("aria-selected", true);
  if (!marked) return strip.removeAttribute("aria-activedescendant");
  strip.setAttribute("aria-activedescendant", marked.id);
  // scrollIntoView would scroll the page as well.
  const { offsetTop: top, offsetHeight } = marked;
  const { scrollTop, clientHeight } = strip;
  if (top < scrollTop || top + offsetHeight > scrollTop + clientHeight) strip.scrollTop = top - clientHeight / 2;
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

function showValue() {
  const readout = byId("readout");
  readout.classList.toggle("hint", !state.cell);
  if (!state.cell || !current) {
    readout.textContent =
      state.view === "map"
        ? "Point at a cell to see its value; click it to choose its token."
        : "Point at a token to see its lines; click it to choose it, and again to see all lines.";
    return;
  }
  const { query, key } = state.cell;
  const part = (name, text) => {
    const node = document.createElement("span");
    node.className = name;
    node.textContent = text;
    return node;
  };
  readout.replaceChildren(
    part("value", exact(current.value(query, key))),
    part("position", query + offset),
    part("word", tokens[query + offset]),
    part("arrow", "attends to"),
    part("position", key),
    part("word", tokens[key]),
  );
}

byId("previous").addEventListener("click", () => stepToken(-1));
byId("following").addEventListener("click", () => stepToken(1));
on("weights token first", showToken);
on("weights token scale first", tintText);
on("token", markWord);
on("weights cell view", showValue);
on("found", () => {
  for (const [position, word] of words.entries()) word.classList.toggle("found", state.found.has(position));
});
