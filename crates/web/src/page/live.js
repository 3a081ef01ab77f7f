// The bar above the page: the text goes to the model in the worker, and the page is drawn from its answer.

const part = (id) => document.getElementById(id);

// --- the page, drawn anew for each answer ----------------------------------------------------------

/// What `showPage` fills. An answer gets fresh copies.
const PARTS = ["body > header", "#guide", "main", "#help"].map((which) => document.querySelector(which));
const empty = PARTS.map((part) => part.cloneNode(true));
for (const part of PARTS) part.hidden = true;
/// The parts on the page, and those of the answer before, which cover them until they are drawn.
let present = PARTS;
let leaving = [];

let page = null;
let ending = new AbortController();
/// The model's last answer, and the question that it belongs to.
let shown = null;

/// Draws the lines of an answer: each is a kind, a tab, and a block of that kind.
async function draw(lines, tokens) {
  const blocks = new Map();
  for (const line of lines) {
    const tab = line.indexOf("\t");
    const kind = line.slice(0, tab);
    if (!blocks.has(kind)) blocks.set(kind, []);
    blocks.get(kind).push({ textContent: line.slice(tab + 1) });
  }
  const choices = page ? choicesFor(tokens) : undefined;
  const focused = document.activeElement?.id;
  ending.abort();
  ending = new AbortController();
  const { signal } = ending;
  replaceParts();
  page = showPage((kind) => blocks.get(kind) ?? [], signal, choices);
  page.on("head more pinned", showButtons);
  if (focused && document.activeElement?.id !== focused) part(focused)?.focus({ preventScroll: true });
  await page.ready;
  for (let frame = 0; frame < 6 && !signal.aborted && !document.querySelector("#overview [data-drawn]"); frame++) {
    await new Promise(requestAnimationFrame);
  }
  if (signal.aborted) return;
  for (const old of leaving) old.remove();
  leaving = [];
}

/// Puts empty parts in the place of the present ones. These stay on top, where they are, until the new ones are drawn: the
/// page would flicker without them. An id then means the new part, which comes first.
function replaceParts() {
  const places = present.map((part) => part.getBoundingClientRect());
  const isCovered = leaving.length > 0;
  const fresh = empty.map((part) => part.cloneNode(true));
  for (const [i, part] of present.entries()) {
    part.before(fresh[i]);
    if (part.hidden || part.localName === "dialog" || isCovered) {
      part.remove();
      continue;
    }
    const { left, top, width, height } = places[i];
    part.classList.add("leaving");
    Object.assign(part.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
    document.body.append(part);
    leaving.push(part);
  }
  present = fresh;
}

/// The reader's choices for a text that follows the one on the page. The last token stays the last one.
function choicesFor(tokens) {
  const choices = new URLSearchParams(page.choiceText());
  const last = shown.ids.length - 1;
  if (+choices.get("token") === last || +choices.get("token") >= tokens) choices.delete("token");
  choices.set("guide", "off");
  return choices.toString();
}

// --- the worker ------------------------------------------------------------------------------------

const policy = globalThis.trustedTypes?.createPolicy("gpt2-live", { createScriptURL: (url) => url });
const textOf = (kind) => document.querySelector(`script.${kind}`).textContent;

function bytesOf(kind) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(textOf(kind));
  const binary = atob(textOf(kind));
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

let worker = null;
let isReady = false;
let isBusy = false;
/// The newest question that the worker has not been asked yet.
let waiting = null;
/// The question that the worker was asked last, and when the reader asked it.
let asked = null;

async function start() {
  const url = URL.createObjectURL(new Blob([bytesOf("worker")], { type: "text/javascript" }));
  worker = new Worker(policy ? policy.createScriptURL(url) : url);
  worker.onmessage = ({ data }) => answered(data);
  worker.onerror = (event) => stopped(event.message);
  const packed = new Blob([bytesOf("module")]).stream().pipeThrough(new DecompressionStream("deflate"));
  const module = await new Response(packed).arrayBuffer();
  worker.postMessage({ module }, [module]);
}

function ask(look) {
  waiting = { ...look, at: performance.now() };
  part("live").dataset.state = "asked";
  if (isReady && !isBusy) send();
}

function send() {
  [asked, waiting, isBusy] = [waiting, null, true];
  const { at, ...look } = asked;
  worker.postMessage({ look: JSON.stringify(look) });
}

async function answered({ ready, answer, error, stopped: isDead }) {
  isBusy = false;
  if (isDead) return stopped(error);
  const question = asked;
  if (ready) {
    isReady = true;
    for (const id of ["live-text", "live-next", "live-run"]) part(id).disabled = false;
  }
  // The worker goes on while this answer is drawn.
  if (waiting) send();
  if (error) {
    halt();
    tell(error, true);
  } else if (!ready) {
    await receive(answer, question);
  }
  // For programs that drive this page: whether it shows what was asked last.
  if (!isBusy && !waiting) part("live").dataset.state = error ? "refused" : "shown";
}

/// The module cannot go on: it starts anew, and the question that broke it is not asked again.
function stopped(error) {
  worker.terminate();
  halt();
  const again = isReady;
  [isReady, isBusy, waiting] = [false, false, null];
  tell(again ? `The model stopped (${error}) and starts anew: change the text.` : `The model did not start: ${error}`, true);
  if (again) start().catch((failed) => tell(`The model did not start: ${failed.message}`, true));
}

async function receive(answer, { ids, at }) {
  const [first, ...lines] = answer.trimEnd().split("\n");
  const next = JSON.parse(first);
  const drawn = draw(lines, next.ids.length);
  shown = next;
  if (ids.length > 0 && now.ids.length > 0) part("live-text").value = next.text;
  showButtons();
  showDraw();
  await drawn;
  const left = next.left_out ? `; the vocabulary cannot spell ${next.left_out}` : "";
  tell(`${next.ids.length} token${next.ids.length === 1 ? "" : "s"}, ${Math.round(performance.now() - at)} ms${left}`, false);
  if (now.runs) drawNext();
}

function tell(text, isWrong) {
  part("live-status").textContent = text;
  part("live-status").classList.toggle("wrong", isWrong);
}

// --- the question ----------------------------------------------------------------------------------

/// What the reader has set, besides the fields: the tokens of a continued text, how many are its prompt, the changes, and
/// whether tokens are drawn one after another.
const now = { ids: [], prompt: null, changes: [], runs: false, ...JSON.parse(new TextDecoder().decode(bytesOf("first"))) };
part("live-text").value = now.text;

const numberIn = (id) => (part(id).value === "" || !part(id).validity.valid ? null : +part(id).value);

function look() {
  const [temperature, p] = ["live-temperature", "live-top-p"].map((id) => +part(id).value);
  const draw = { temperature, top_k: numberIn("live-top-k"), top_p: p < 1 ? p : null, seed: numberIn("live-seed") ?? 0 };
  const { ids, prompt, changes } = now;
  return { text: part("live-text").value, ids, prompt, changes, compare: part("live-compare").checked, draw };
}

const askAnew = () => ask(look());

/// Whether the answer on the page is the newest question's.
const isCurrent = () => shown && !isBusy && !waiting;

function drawNext() {
  if (!isCurrent()) return;
  if (!shown.next) {
    halt();
    return tell("The model's context is full: shorten the text.", true);
  }
  now.prompt ??= shown.ids.length;
  now.ids = [...shown.ids, shown.next.id];
  if (shown.next.is_end) halt();
  askAnew();
}

function halt() {
  now.runs = false;
  part("live-run").textContent = "Run";
}

part("live-text").addEventListener("input", () => {
  halt();
  [now.ids, now.prompt] = [[], null];
  askAnew();
});
part("live-text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  drawNext();
});
part("live-next").addEventListener("click", () => {
  halt();
  drawNext();
});
part("live-run").addEventListener("click", () => {
  if (now.runs) return halt();
  now.runs = true;
  part("live-run").textContent = "Stop";
  drawNext();
});
for (const id of ["live-temperature", "live-top-k", "live-top-p", "live-seed"]) {
  part(id).addEventListener("input", () => {
    if (part(`${id}-shown`)) part(`${id}-shown`).textContent = part(id).value;
    askAnew();
  });
}
part("live-compare").addEventListener("change", askAnew);

/// The tokens to draw from; the one that comes next is marked.
function showDraw() {
  const { next } = shown;
  const one = ([token, p]) => {
    const [item, word] = ["li", "span"].map((tag) => document.createElement(tag));
    word.textContent = token;
    item.append(word, ` ${(100 * p).toFixed(p < 0.0995 ? 1 : 0)} %`);
    item.classList.toggle("drawn", token === next.token);
    return item;
  };
  const items = next ? next.from.map(one) : [];
  if (next && next.count > next.from.length) {
    const more = document.createElement("li");
    more.textContent = `and ${next.count - next.from.length} more`;
    items.push(more);
  }
  part("live-from").replaceChildren(...items);
}

// --- changes ---------------------------------------------------------------------------------------

/// The chosen heads by name; none if a map is chosen that is no head.
const chosenHeads = () => page.chosen().map((index) => page.sources[index]).filter(({ layer }) => layer !== null).map(({ name }) => name);

/// The change that cuts the chosen link.
const cutOf = ({ query, key }) => `block ${query}:${key}`;

function showButtons() {
  const heads = chosenHeads();
  const named = heads.length === 1 ? `head ${heads[0]}` : `${heads.length} heads`;
  const isOff = heads.length > 0 && heads.every((head) => now.changes.includes(`ablate ${head}`));
  part("live-ablate").hidden = part("live-scaling").hidden = heads.length === 0;
  part("live-ablate").textContent = isOff ? `Switch on ${named}` : `Switch off ${named}`;
  part("live-scale").textContent = `Scale ${named} by`;
  const { pinned } = page.state;
  part("live-cut").hidden = !pinned;
  if (pinned) part("live-cut").textContent = now.changes.includes(cutOf(pinned)) ? `Join ${pinned.query} → ${pinned.key}` : `Cut ${pinned.query} → ${pinned.key}`;
  part("live-beside").hidden = now.changes.length === 0;
}

/// Adds changes, or takes them back if all are there; those of the same heads in another way go.
function toggle(changes, others = []) {
  const isThere = changes.every((change) => now.changes.includes(change));
  now.changes = now.changes.filter((change) => !changes.includes(change) && !others.some((start) => change.startsWith(start)));
  if (!isThere) now.changes.push(...changes);
  showChanges();
  showButtons();
  askAnew();
}

function showChanges() {
  const one = (change) => {
    const [item, button] = ["li", "button"].map((tag) => document.createElement(tag));
    button.type = "button";
    button.textContent = `${change} ✕`;
    button.title = "Undo this change";
    button.addEventListener("click", () => toggle([change]));
    item.append(button);
    return item;
  };
  part("live-changes").replaceChildren(...now.changes.map(one));
}

/// Changes of the chosen heads, and the beginnings of others that they replace.
function ofHeads(change) {
  const heads = chosenHeads();
  return [heads.map(change), heads.flatMap((head) => [`ablate ${head}`, `scale ${head}=`])];
}
part("live-ablate").addEventListener("click", () => toggle(...ofHeads((head) => `ablate ${head}`)));
part("live-scale").addEventListener("click", () => {
  const factor = numberIn("live-factor");
  if (factor !== null) toggle(...ofHeads((head) => `scale ${head}=${factor}`));
});
part("live-cut").addEventListener("click", () => page.state.pinned && toggle([cutOf(page.state.pinned)]));

// --- start -----------------------------------------------------------------------------------------

showChanges();
if (!globalThis.WebAssembly || !globalThis.DecompressionStream) {
  tell("This browser is too old for the model: it needs WebAssembly with SIMD, as of 2021.", true);
} else {
  askAnew();
  start().catch((error) => tell(`The model did not start: ${error.message}`, true));
}
