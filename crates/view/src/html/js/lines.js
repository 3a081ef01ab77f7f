// Lines between tokens, after BertViz' head view (Vig 2019): queries on the left, keys on the right.
//
// Draws only the lines on the screen, so that a thousand tokens scroll as smoothly as ten.

const lines = byId("lines");
const scroller = lines.parentElement.parentElement;
const ROW = 22;
const FAINTEST = 0.06; // strength below which a line is not drawn
let hovered = null;

/// Browsers lay out elements of up to some 10 million pixels; no context comes near that.
lines.parentElement.style.height = `${tokens.length * ROW}px`;

let linesDue = false;
function drawLinesSoon() {
  if (linesDue || state.view !== "lines") return;
  linesDue = true;
  requestAnimationFrame(() => {
    linesDue = false;
    drawLines();
  });
}

function drawLines() {
  const { clientWidth: width, clientHeight: height } = scroller;
  lines.style.height = `${Math.min(height, tokens.length * ROW)}px`;
  if (!current || !fitCanvas(lines, width, lines.clientHeight)) return;
  const context = lines.getContext("2d");
  const paint = theme();
  const side = Math.min(180, width * 0.36); // of a column of tokens
  const y = (position) => (position + 0.5) * ROW - scroller.scrollTop;
  const from = Math.max(0, Math.floor(scroller.scrollTop / ROW));
  const to = Math.min(shownKeys(), Math.ceil((scroller.scrollTop + height) / ROW));
  const shown = hovered ?? state.token;

  const rows = shownRows();
  const line = (query, key, kind) => {
    const strong = strength(current, query, key);
    if (strong < FAINTEST) return;
    context.strokeStyle = paint[tone(current, query, key, kind)];
    context.globalAlpha = strong;
    context.lineWidth = 0.5 + 2.5 * strong;
    context.beginPath();
    context.moveTo(side + 4, y(query + offset));
    context.lineTo(width - side - 4, y(key));
    context.stroke();
  };
  const keysOf = (query) => {
    for (let key = 0; key < rowLength(query); key++) line(query, key, "out");
  };
  if (shown === null) {
    for (let query = Math.max(0, from - offset); query < Math.min(to - offset, rows); query++) keysOf(query);
  } else {
    for (let query = Math.max(0, shown - offset); query < rows; query++) line(query, shown, "in");
    if (shown >= offset && shown - offset < rows) keysOf(shown - offset);
  }
  context.globalAlpha = 1;

  context.textBaseline = "middle";
  const row = Math.min(Math.max(0, (shown ?? 0) - offset), queries - 1);
  for (let position = from; position < to; position++) {
    const isShown = position === shown;
    const word = (end, back, tint) => {
      const left = end === "right" ? 0 : width - side;
      if (back > 0) {
        context.globalAlpha = 0.6 * back;
        context.fillStyle = tint;
        context.fillRect(left, y(position) - ROW / 2 + 1, side, ROW - 2);
        context.globalAlpha = 1;
      }
      context.font = `${isShown ? "bold " : ""}12px ui-monospace, monospace`;
      context.fillStyle = state.found.has(position) ? paint.mark : paint.ink;
      context.textAlign = end;
      const text = clip(context, tokens[position], side - 46);
      context.fillText(text, end === "right" ? side - 4 : width - side + 4, y(position));
      context.fillStyle = paint.quiet;
      context.font = "10px ui-monospace, monospace";
      context.textAlign = end === "right" ? "left" : "right";
      context.fillText(position, end === "right" ? 4 : width - 4, y(position));
    };
    // A token's tint is the weight between it and the shown token.
    const seesShown = shown !== null && position >= Math.max(shown, offset);
    const tint = (query, key, kind) => [strength(current, query, key), paint[tone(current, query, key, kind)]];
    if (position >= offset) word("right", ...(seesShown ? tint(position - offset, shown, "in") : [0]));
    const isSeen = shown !== null && shown >= offset && position <= shown;
    word("left", ...(isSeen ? tint(row, position, "out") : [0]));
  }
}

const positionAt = (event) => {
  const position = Math.floor((event.offsetY + scroller.scrollTop) / ROW);
  return position < shownKeys() ? position : null;
};
lines.addEventListener("pointermove", (event) => {
  const position = event.pointerType === "mouse" ? positionAt(event) : null;
  if (position === hovered) return;
  hovered = position;
  drawLinesSoon();
});
lines.addEventListener("pointerleave", () => {
  hovered = null;
  drawLinesSoon();
});
lines.addEventListener("click", (event) => {
  const position = positionAt(event);
  // A second click clears the choice and shows the lines of all tokens.
  if (position !== null) chooseToken(position === state.token ? null : position);
});
scroller.addEventListener("scroll", drawLinesSoon);
scroller.addEventListener("keydown", (event) => {
  const steps = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!steps) return;
  event.preventDefault();
  stepToken(steps);
});
new ResizeObserver(drawLinesSoon).observe(scroller);

function revealLine() {
  if (state.token === null) return;
  const top = state.token * ROW;
  const { scrollTop, clientHeight } = scroller;
  if (top < scrollTop || top + ROW > scrollTop + clientHeight) scroller.scrollTop = top - clientHeight / 2;
}

// Wait for the layout after this change: a hidden panel does not scroll.
on("token view", () => state.view === "lines" && requestAnimationFrame(revealLine));
on("weights token scale first found step theme view", drawLinesSoon);
