// The page below the bar, drawn anew for each answer of the model.

const byId = (id) => document.getElementById(id);
const nextFrame = () => new Promise(requestAnimationFrame);
const make = (tag, className = "", text = "") => Object.assign(document.createElement(tag), { className, textContent: text });

// The buttons for the chosen heads stand above their map.
document.querySelector("#tools").after(byId("live-heads"));

/// What `showPage` fills. An answer gets fresh copies.
const FILLED = ["body > header", "#guide", "main"].map((which) => document.querySelector(which));
const empty = FILLED.map((part) => part.cloneNode(true));
for (const part of FILLED) part.hidden = true;
/// Those on the page, and those of the answer before, which cover them until they are drawn.
let present = FILLED;
let leaving = [];
/// What scrolls inside the page.
const SCROLLED = ["overview", "token", "scroller", "text"];

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

/// Draws the data of an answer: each line is a kind, a tab, and a block of that kind. Heads and token are those of an address, or of
/// the page before.
async function draw(lines, tokens, address) {
  const blocks = new Map();
  for (const line of lines.split("\n")) {
    const tab = line.indexOf("\t");
    const kind = line.slice(0, tab);
    if (!blocks.has(kind)) blocks.set(kind, []);
    blocks.get(kind).push({ textContent: line.slice(tab + 1) });
  }
  const choices = address ?? (page ? choicesFor(tokens) : undefined);
  const pinned = page?.state.pinned;
  const sought = byId("search").value;
  const focused = document.activeElement?.id;
  const scrolled = SCROLLED.map((id) => byId(id).scrollTop);
  ending.abort();
  ending = new AbortController();
  const { signal } = ending;
  replaceParts(scrolled, blocks.get("weights").length > EARLY);
  page = showPage((kind) => blocks.get(kind) ?? [], signal, choices, addressed);
  page.on("head more pinned", showButtons);
  page.on("head token", followChoice);
  page.on("head token sort", followLesson);
  page.on("theme", redrawWay);
  if (pinned && pinned.query < tokens) page.update({ cell: pinned, pinned });
  if (sought) {
    byId("search").value = sought;
    byId("search").dispatchEvent(new Event("input"));
  }
  // Each of these would lay out the page.
  for (const [i, id] of SCROLLED.entries()) {
    // The end of the text comes into view by itself when its last token is the chosen one.
    const isFollowed = id === "text" && page.state.token === tokens - 1;
    if (scrolled[i] > 0 && !isFollowed) byId(id).scrollTop = scrolled[i];
  }
  if (focused && document.activeElement?.id !== focused) byId(focused)?.focus({ preventScroll: true });
  await page.ready;
  const isBlank = () => byId("overview").querySelector("[role=option]:not([data-drawn])");
  for (let frame = 0; frame < 6 && !signal.aborted && isBlank(); frame++) await nextFrame();
  if (signal.aborted) return;
  for (const old of leaving) old.remove();
  leaving = [];
}

/// How many small maps are drawn before the browser shows the new page.
const EARLY = 48;

/// Puts empty parts in the place of the present ones. If there is much to draw, these stay on top, where they are, until the new
/// ones are drawn: the page would flicker without them. An id then means the new part, which comes first.
function replaceParts(scrolled, isMuch) {
  const places = isMuch ? present.map((part) => part.getBoundingClientRect()) : [];
  const isCovered = leaving.length > 0;
  const fresh = empty.map((part) => part.cloneNode(true));
  const { width, height } = byId("map");
  Object.assign(fresh.at(-1).querySelector("#map"), { width, height });
  for (const [i, part] of present.entries()) {
    part.before(fresh[i]);
    if (!isMuch || part.hidden || isCovered) {
      part.remove();
      continue;
    }
    const { left, top, width, height } = places[i];
    part.classList.add("leaving");
    part.inert = true;
    // The guide's step is that of the new part.
    for (const guided of part.querySelectorAll("[data-guide]")) delete guided.dataset.guide;
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
