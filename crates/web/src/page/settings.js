// The text and the fields of the bar, from which a question to the model is made.

/// What the reader has set, besides the fields: the tokens of a continued text, how many are its prompt, the changes, whether
/// tokens are drawn one after another, and whether one more is wanted once the page has its answer.
const first = JSON.parse(new TextDecoder().decode(bytesOf("first")));
const wanted = { ids: first.ids, prompt: first.prompt, changes: first.changes, runs: false, another: false };
byId("live-text").value = first.text;
/// Shows the fields for drawing, or folds them away. A low window opens without them.
function toggleDrawing(isOpen) {
  byId("live-drawing").hidden = !isOpen;
  byId("live-settings").setAttribute("aria-expanded", isOpen);
}
toggleDrawing(innerHeight >= 800 && innerWidth > 760);
byId("live-settings").addEventListener("click", () => toggleDrawing(byId("live-drawing").hidden));
for (const [name, value] of Object.entries(first.draw)) {
  const field = byId(`live-${name.replace("_", "-")}`);
  if (value === null) continue;
  // What a command was asked for may lie between the steps of a slider, or beyond its ends.
  field.value = value;
  if (+field.value !== value) [field.step, field.min, field.max] = ["any", Math.min(field.min, value), Math.max(field.max, value)];
  field.value = value;
  const output = byId(`${field.id}-shown`);
  if (output) output.textContent = field.value;
}

/// The text of a drawn token, beside which the reader's caret stays where it is.
function putText(text) {
  const field = byId("live-text");
  const { selectionStart, selectionEnd } = field;
  field.value = text;
  if (document.activeElement === field) field.setSelectionRange(selectionStart, selectionEnd);
  fitText();
  // The newest tokens are at its end.
  field.scrollTop = field.scrollHeight;
}

/// A field as high as its text, in browsers that do not do that by themselves.
function fitText() {
  if (CSS.supports("field-sizing", "content")) return;
  const field = byId("live-text");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

const numberIn = (id) => (byId(id).value === "" ? null : +byId(id).value);

/// Whether a field keeps the question back.
let isHeld = false;

/// `more` tokens are drawn before the picture.
function askAnew(more = 0) {
  const wrong = document.querySelector("#live input:invalid");
  isHeld = wrong !== null;
  if (isHeld) {
    halt();
    toggleDrawing(true);
    return tell(`${wrong.dataset.name}: ${wrong.validationMessage}`, true);
  }
  const [temperature, p] = ["live-temperature", "live-top-p"].map((id) => +byId(id).value);
  const draw = { temperature, top_k: numberIn("live-top-k"), top_p: p < 1 ? p : null, seed: numberIn("live-seed") ?? 0 };
  const { ids, prompt, changes } = wanted;
  ask({ more, text: byId("live-text").value, ids, prompt, changes, compare: byId("live-compare").checked, draw, along: along() });
}

/// Draws a token after the newest text: at once, or when its answer is there.
function drawNext() {
  const { state } = byId("live").dataset;
  wanted.another = state === "asked" && !wanted.runs;
  if (state === "asked") return;
  if (state === "refused" || isHeld || !shown) return halt();
  if (!shown.next) {
    halt();
    return tell("The model's context is full: shorten the text.", false);
  }
  drawAfter(shown);
}

/// Asks for the picture of a text and the token that comes next.
function drawAfter({ ids, next }) {
  wanted.prompt ??= ids.length;
  wanted.ids = [...ids, next.id];
  if (next.is_end) halt();
  // A large model draws many tokens in the time of one picture.
  askAnew(wanted.runs && isSlow ? MORE : 0);
}

/// How many tokens a slow run draws beyond the one that the page has named.
const MORE = 7;

function halt() {
  [wanted.runs, wanted.another] = [false, false];
  byId("live-run").textContent = "Generate";
}

byId("live-text").addEventListener("input", () => {
  fitText();
  isFromAddress = false;
  halt();
  [wanted.ids, wanted.prompt] = [[], null];
  askAnew();
});
byId("live-text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  halt();
  drawNext();
});
byId("live-next").addEventListener("click", () => {
  halt();
  drawNext();
});
byId("live-prompt").addEventListener("click", () => {
  halt();
  const ids = wanted.ids.slice(0, wanted.prompt);
  [wanted.ids, wanted.prompt] = [ids, null];
  askAnew();
  byId("live-next").focus({ preventScroll: true });
});
byId("live-run").addEventListener("click", () => {
  if (wanted.runs) return halt();
  wanted.runs = true;
  byId("live-run").textContent = "Stop";
  drawNext();
});
for (const id of ["live-temperature", "live-top-k", "live-top-p", "live-seed"]) {
  byId(id).addEventListener("input", () => {
    if (byId(`${id}-shown`)) byId(`${id}-shown`).textContent = byId(id).value;
    askAnew();
  });
}
byId("live-compare").addEventListener("change", () => askAnew());

/// The tokens to draw from; the one that comes next is marked.
function showDraw() {
  const { next } = shown;
  byId("live-prompt").hidden = wanted.prompt === null;
  const item = (text, p) => {
    const item = make("li");
    item.append(make("span", "", text), p === null ? "" : ` ${percent(p)}`);
    return item;
  };
  const items = next ? next.from.map(([token, p]) => item(token, p)) : [];
  if (next) {
    if (next.place === null) items.unshift(item(next.token, next.p));
    const drawn = items[next.place ?? 0];
    drawn.classList.add("drawn");
    drawn.setAttribute("aria-current", "true");
  }
  byId("live-from").replaceChildren(...items);
  byId("live-count").textContent = next ? `of ${next.count}` : "";
}
