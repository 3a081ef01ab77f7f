// The bar above the page: the text goes to the model in the worker, and the page is drawn from its answer.

const byId = (id) => document.getElementById(id);
const nextFrame = () => new Promise(requestAnimationFrame);

// --- the page, drawn anew for each answer ----------------------------------------------------------

/// What `showPage` fills. An answer gets fresh copies.
const FILLED = ["body > header", "#guide", "main"].map((which) => document.querySelector(which));
const empty = FILLED.map((part) => part.cloneNode(true));
for (const part of FILLED) part.hidden = true;
/// Those on the page, and those of the answer before, which cover them until they are drawn.
let present = FILLED;
let leaving = [];
/// What scrolls inside the page.
const SCROLLED = ["overview", "token", "scroller", "text", "below"];

let page = null;
let ending = new AbortController();
/// The model's last answer, and the page's data that came with it.
let shown = null;
let drawn = "";
/// When the reader asked for it.
let shownAt = 0;

/// A click whose press and release fall on two pages would be lost.
let isPressed = false;
addEventListener("pointerdown", () => (isPressed = true), true);
for (const end of ["pointerup", "pointercancel", "blur"]) addEventListener(end, () => (isPressed = false), true);

/// Draws the data of an answer: each line is a kind, a tab, and a block of that kind.
async function draw(lines, tokens) {
  const blocks = new Map();
  for (const line of lines.split("\n")) {
    const tab = line.indexOf("\t");
    const kind = line.slice(0, tab);
    if (!blocks.has(kind)) blocks.set(kind, []);
    blocks.get(kind).push({ textContent: line.slice(tab + 1) });
  }
  const choices = page ? choicesFor(tokens) : undefined;
  const pinned = page?.state.pinned;
  const sought = byId("search").value;
  const focused = document.activeElement?.id;
  const scrolled = SCROLLED.map((id) => byId(id).scrollTop);
  ending.abort();
  ending = new AbortController();
  const { signal } = ending;
  replaceParts(scrolled);
  page = showPage((kind) => blocks.get(kind) ?? [], signal, choices);
  page.on("head more pinned", showButtons);
  if (pinned && pinned.query < tokens) page.update({ cell: pinned, pinned });
  if (sought) {
    byId("search").value = sought;
    byId("search").dispatchEvent(new Event("input"));
  }
  for (const [i, id] of SCROLLED.entries()) byId(id).scrollTop = scrolled[i];
  if (focused && document.activeElement?.id !== focused) byId(focused)?.focus({ preventScroll: true });
  await page.ready;
  const isBlank = () => byId("overview").querySelector("[role=option]:not([data-drawn])");
  for (let frame = 0; frame < 6 && !signal.aborted && isBlank(); frame++) await nextFrame();
  if (signal.aborted) return;
  for (const old of leaving) old.remove();
  leaving = [];
}

/// Puts empty parts in the place of the present ones. These stay on top, where they are, until the new ones are drawn: the
/// page would flicker without them. An id then means the new part, which comes first.
function replaceParts(scrolled) {
  const places = present.map((part) => part.getBoundingClientRect());
  const isCovered = leaving.length > 0;
  const fresh = empty.map((part) => part.cloneNode(true));
  for (const [i, part] of present.entries()) {
    part.before(fresh[i]);
    if (part.hidden || isCovered) {
      part.remove();
      continue;
    }
    const { left, top, width, height } = places[i];
    part.classList.add("leaving");
    part.inert = true;
    // Radio buttons of one name would switch those of the new part off.
    for (const radio of part.querySelectorAll("[type=radio]")) radio.removeAttribute("name");
    Object.assign(part.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
    document.body.append(part);
    for (const [n, id] of SCROLLED.entries()) {
      const inside = part.querySelector(`#${id}`);
      if (inside) inside.scrollTop = scrolled[n];
    }
    leaving.push(part);
  }
  present = fresh;
}

/// The reader's choices for a text that follows the one on the page. The last token stays the last one.
function choicesFor(tokens) {
  const choices = new URLSearchParams(page.choiceText());
  const token = choices.get("token");
  if (token !== "none" && (+token === shown.ids.length - 1 || +token >= tokens)) choices.delete("token");
  choices.set("guide", byId("guide").hidden ? "off" : parseInt(byId("guide-step").textContent, 10) - 1);
  return choices.toString();
}

// --- the worker ------------------------------------------------------------------------------------

const textOf = (kind) => document.querySelector(`script.${kind}`).textContent;

function bytesOf(kind) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(textOf(kind));
  const binary = atob(textOf(kind));
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/// The address of the worker's script, which is part of this file.
const workerUrl = URL.createObjectURL(new Blob([bytesOf("worker")], { type: "text/javascript" }));
const policy = globalThis.trustedTypes?.createPolicy("gpt2-live", { createScriptURL: () => workerUrl });

let worker = null;
let isReady = false;
let isBusy = false;
/// The newest question that the worker has not been asked yet.
let waiting = null;
/// The question that the worker was asked last, and when the reader asked it.
let asked = null;

async function start() {
  worker = new Worker(policy ? policy.createScriptURL("") : workerUrl);
  worker.onmessage = ({ data }) => answered(data);
  worker.onerror = (event) => stopped(event.message ?? "its script did not load");
  const packed = new Blob([bytesOf("module")]).stream().pipeThrough(new DecompressionStream("deflate"));
  const module = await new Response(packed).arrayBuffer();
  worker.postMessage({ module }, [module]);
}

/// The model that the worker has not been asked to open yet.
let chosen = null;
/// Whether the model in the worker is the reader's own.
let isOwn = false;
/// What went wrong with a model, if an answer that is on its way would hide it.
let trouble = "";
/// What became of the last question that was answered.
let outcome = "refused";
/// Whether no model runs here.
let isDown = false;

function ask(look) {
  waiting = { ...look, at: performance.now() };
  goOn();
}

/// Gives the worker its next task.
function goOn() {
  if (isDown || (!waiting && !chosen)) return;
  byId("live").dataset.state = "asked";
  if (!isReady || isBusy) return;
  isBusy = true;
  if (chosen) {
    worker.postMessage({ model: chosen });
    [chosen, asked] = [null, null];
    return;
  }
  [asked, waiting] = [waiting, null];
  const { at, ...look } = asked;
  worker.postMessage({ look: JSON.stringify(look) });
}

async function answered({ ready, answer, error, opened, failed, stopped: isDead }) {
  isBusy = false;
  if (isDead) return stopped(error);
  const question = asked;
  if (ready) {
    isReady = true;
    for (const id of ["live-text", "live-next", "live-run", "live-open"]) byId(id).disabled = false;
  }
  if (opened) {
    [isOwn, waiting, trouble] = [true, null, ""];
    forget();
    askAnew();
    goOn();
    // A field that holds no value keeps the question back.
    if (!isBusy) {
      halt();
      settle("refused");
    }
    return;
  }
  // The worker goes on while this answer is drawn.
  goOn();
  if (failed) {
    halt();
    trouble = isBusy ? failed : "";
    tell(failed, true);
    settle(outcome);
  } else if (error) {
    halt();
    trouble = "";
    tell(error, true);
    settle("refused");
  } else if (!ready) {
    await receive(answer, question);
  }
}

/// Notes what became of the newest question, also for programs that drive this page.
function settle(state) {
  outcome = state;
  if (!isBusy && !waiting && !chosen) byId("live").dataset.state = state;
}

/// The module cannot go on: it starts anew, with the model that is in the page. The question that broke it is not asked again.
function stopped(error) {
  worker.terminate();
  halt();
  const again = isReady;
  [isReady, isBusy, isDown, trouble] = [false, false, !again, ""];
  if (isOwn) {
    [isOwn, waiting] = [false, null];
    forget();
    tell(`The model stopped (${error}). The one that came with the page starts instead: change the text.`, true);
  } else if (again) {
    tell(`The model stopped (${error}) and starts anew: change the text.`, true);
  } else {
    tell(`The model did not start: ${error}`, true);
  }
  settle("refused");
  if (again) startOrTell();
}

function startOrTell() {
  start().catch((error) => {
    isDown = true;
    tell(`The model did not start: ${error.message}`, true);
  });
}

async function receive(answer, question) {
  const end = answer.indexOf("\n");
  const [next, lines] = [JSON.parse(answer.slice(0, end)), answer.slice(end + 1).trimEnd()];
  while (isPressed) await nextFrame();
  // The answer to a later question may be on the page by now.
  if (question.at < shownAt) return;
  shownAt = question.at;
  // The tokens to draw from change nothing on the page.
  const drawing = lines === drawn ? null : draw(lines, next.ids.length);
  [shown, drawn] = [next, lines];
  if (question.ids.length > 0 && wanted.ids.length > 0) putText(next.text);
  showButtons();
  showDraw();
  await drawing;
  if (asked !== question && asked !== null) return;
  settle("shown");
  // What is said of a model stays.
  if (asked === null) return;
  const left = next.left_out ? `; the vocabulary cannot spell ${next.left_out}` : "";
  const count = `${next.ids.length} token${next.ids.length === 1 ? "" : "s"}`;
  if (trouble) tell(trouble, true);
  else tell(`${count}, ${Math.round(performance.now() - question.at)} ms${left}`, false);
  trouble = "";
  if (wanted.runs || wanted.another) drawNext();
}

// --- a model of the reader's own -------------------------------------------------------------------

/// What was set for another model.
function forget() {
  [wanted.ids, wanted.prompt, wanted.changes] = [[], null, []];
  showChanges();
  showButtons();
}

/// The most bytes that are read. The module has 4 GB for the files, the model that comes of them, and the one before.
const LARGEST = 1.5e9;

/// Opens a model from files, in a folder or by themselves. The model before stays if that fails.
function openModel(files, folder = null) {
  if (isDown) return;
  const isGguf = (name) => /\.gguf$/i.test(name);
  const has = (name) => files.some((file) => file.name === name);
  const isNeeded = ({ name }) =>
    isGguf(name) ? !has("config.json") : first.files.includes(name) && !(name === "pytorch_model.bin" && has("model.safetensors"));
  const needed = files.filter(isNeeded).map((file) => ({ name: file.name, file }));
  const name = folder ?? (files.length === 1 ? files[0].name : "your files");
  const size = needed.reduce((sum, { file }) => sum + file.size, 0);
  const megabytes = `${(size / 1e6).toFixed(size < 1e7 ? 1 : 0)} MB`;
  halt();
  if (size > LARGEST) {
    const why = `${name}: ${megabytes}, but a page reads up to 1500 MB: make the model smaller with gpt2 quantize.`;
    trouble = byId("live").dataset.state === "asked" ? why : "";
    return tell(why, true);
  }
  trouble = "";
  tell(`Reading ${name}, ${megabytes} …`, false);
  chosen = { name, files: needed };
  goOn();
}

byId("live-open").addEventListener("click", () => byId("live-files").click());
byId("live-files").addEventListener("change", () => {
  if (byId("live-files").files.length > 0) openModel([...byId("live-files").files]);
  byId("live-files").value = "";
});

/// The files of a dropped folder, without those of folders inside.
async function filesIn(folder) {
  const reader = folder.createReader();
  const entries = [];
  for (let part = null; part?.length !== 0; entries.push(...part)) {
    part = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
  }
  const file = (entry) => new Promise((resolve, reject) => entry.file(resolve, reject));
  return Promise.all(entries.filter((entry) => entry.isFile).map(file));
}

addEventListener("dragover", (event) => {
  if (event.dataTransfer.types.includes("Files")) event.preventDefault();
});
addEventListener("drop", async (event) => {
  const items = [...event.dataTransfer.items].filter(({ kind }) => kind === "file");
  if (items.length === 0) return;
  event.preventDefault();
  // Both must be asked for before this function waits.
  const [folders, files] = [items.map((item) => item.webkitGetAsEntry()), items.map((item) => item.getAsFile())];
  try {
    if (items.length === 1 && folders[0]?.isDirectory) openModel(await filesIn(folders[0]), folders[0].name);
    else openModel(files.filter((file) => file !== null));
  } catch (error) {
    tell(`What was dropped cannot be read: ${error.message}`, true);
  }
});

function tell(text, isWrong) {
  // Numbers that change with every letter are not read aloud.
  byId("live-status").setAttribute("aria-live", isWrong ? "polite" : "off");
  byId("live-status").textContent = text;
  byId("live-status").classList.toggle("wrong", isWrong);
}

// --- the question ----------------------------------------------------------------------------------

/// What the reader has set, besides the fields: the tokens of a continued text, how many are its prompt, the changes, whether
/// tokens are drawn one after another, and whether one more is wanted once the page has its answer.
const first = JSON.parse(new TextDecoder().decode(bytesOf("first")));
const wanted = { ids: [], prompt: null, changes: first.changes, runs: false, another: false };
byId("live-text").value = first.text;

/// The text of a drawn token, beside which the reader's caret stays where it is.
function putText(text) {
  const field = byId("live-text");
  const { selectionStart, selectionEnd } = field;
  field.value = text;
  if (document.activeElement === field) field.setSelectionRange(selectionStart, selectionEnd);
}

const numberIn = (id) => (byId(id).value === "" ? null : +byId(id).value);

function askAnew() {
  const wrong = document.querySelector("#live input:invalid");
  if (wrong) return tell(`${wrong.dataset.name}: ${wrong.validationMessage}`, true);
  const [temperature, p] = ["live-temperature", "live-top-p"].map((id) => +byId(id).value);
  const draw = { temperature, top_k: numberIn("live-top-k"), top_p: p < 1 ? p : null, seed: numberIn("live-seed") ?? 0 };
  const { ids, prompt, changes } = wanted;
  ask({ text: byId("live-text").value, ids, prompt, changes, compare: byId("live-compare").checked, draw });
}

/// Draws a token after the newest text: at once, or when its answer is there.
function drawNext() {
  const { state } = byId("live").dataset;
  wanted.another = state === "asked" && !wanted.runs;
  if (state === "asked") return;
  if (state === "refused") return halt();
  if (!shown.next) {
    halt();
    return tell("The model's context is full: shorten the text.", false);
  }
  wanted.prompt ??= shown.ids.length;
  wanted.ids = [...shown.ids, shown.next.id];
  if (shown.next.is_end) halt();
  askAnew();
}

function halt() {
  [wanted.runs, wanted.another] = [false, false];
  byId("live-run").textContent = "Run";
}

byId("live-text").addEventListener("input", () => {
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
byId("live-compare").addEventListener("change", askAnew);

/// The tokens to draw from; the one that comes next is marked.
function showDraw() {
  const { next } = shown;
  const item = (text, p) => {
    const [item, word] = ["li", "span"].map((tag) => document.createElement(tag));
    word.textContent = text;
    item.append(word, p === null ? "" : ` ${(100 * p).toFixed(p < 0.0995 ? 1 : 0)} %`);
    return item;
  };
  const items = next ? next.from.map(([token, p]) => item(token, p)) : [];
  if (next) {
    if (next.count > items.length) items.push(item(`and ${next.count - items.length} more`, null));
    if (next.place === null) items.unshift(item(next.token, null));
    const drawn = items[next.place ?? 0];
    drawn.classList.add("drawn");
    drawn.setAttribute("aria-current", "true");
  }
  byId("live-from").replaceChildren(...items);
}

// --- changes ---------------------------------------------------------------------------------------

/// The chosen heads by name; none if a map is chosen that is no head.
const chosenHeads = () => page.chosen().map((index) => page.sources[index]).filter(({ layer }) => layer !== null).map(({ name }) => name);

/// The change that cuts the chosen link.
const cutOf = ({ query, key }) => `block ${query}:${key}`;

function showButtons() {
  if (!page) return;
  const heads = chosenHeads();
  const named = heads.length === 1 ? `head ${heads[0]}` : `${heads.length} heads`;
  const isOff = heads.length > 0 && heads.every((head) => wanted.changes.includes(`ablate ${head}`));
  byId("live-ablate").hidden = byId("live-scaling").hidden = heads.length === 0;
  byId("live-ablate").textContent = isOff ? `Switch on ${named}` : `Switch off ${named}`;
  byId("live-scale").textContent = `Scale ${named} by`;
  const { pinned } = page.state;
  byId("live-cut").hidden = !pinned;
  if (pinned) {
    const verb = wanted.changes.includes(cutOf(pinned)) ? "Join" : "Cut";
    byId("live-cut").textContent = `${verb} ${pinned.query} → ${pinned.key}`;
  }
  byId("live-beside").hidden = wanted.changes.length === 0;
}

/// Takes some changes out and puts others in.
function change(taken, put) {
  wanted.changes = [...wanted.changes.filter((one) => !taken(one)), ...put];
  showChanges();
  showButtons();
  askAnew();
}

/// Whether a change ablates or scales one of some heads.
const isOf = (heads) => (one) => heads.some((head) => one === `ablate ${head}` || one.startsWith(`scale ${head}=`));

function showChanges() {
  const one = (text) => {
    const [item, button] = ["li", "button"].map((tag) => document.createElement(tag));
    button.type = "button";
    button.textContent = `${text} ✕`;
    button.title = "Undo this change";
    button.setAttribute("aria-label", `Undo ${text}`);
    button.addEventListener("click", () => {
      change((other) => other === text, []);
      byId("live-text").focus({ preventScroll: true });
    });
    item.append(button);
    return item;
  };
  byId("live-changes").replaceChildren(...wanted.changes.map(one));
}

byId("live-ablate").addEventListener("click", () => {
  const heads = chosenHeads();
  const isOff = heads.every((head) => wanted.changes.includes(`ablate ${head}`));
  change(isOf(heads), isOff ? [] : heads.map((head) => `ablate ${head}`));
});
byId("live-scale").addEventListener("click", () => {
  const [heads, factor] = [chosenHeads(), numberIn("live-factor")];
  if (factor === null) return tell("Give a factor to scale by.", true);
  change(isOf(heads), heads.map((head) => `scale ${head}=${factor}`));
});
byId("live-cut").addEventListener("click", () => {
  if (!page.state.pinned) return;
  const cut = cutOf(page.state.pinned);
  change((one) => one === cut, wanted.changes.includes(cut) ? [] : [cut]);
});

// --- start -----------------------------------------------------------------------------------------

showChanges();
if (!globalThis.WebAssembly || !globalThis.DecompressionStream) {
  isDown = true;
  tell("This browser is too old for the model.", true);
} else {
  askAnew();
  startOrTell();
}
