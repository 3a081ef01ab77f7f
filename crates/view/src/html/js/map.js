// The heat map of one head: both token axes, zoom, the value under the pointer.

const map = byId("map");
const GUTTER = { left: 104, top: 84, right: 4, bottom: 4 };
const LARGEST_CELL = 56;
/// A map of weights is dark in either theme: the dark theme's colors of a token's row and column, and of what is found.
const [OUT_ON_MAP, IN_ON_MAP, MARK_ON_MAP] = ["#56b4e9", "#ee9b4c", "#ff7fce"];
const BETWEEN = 14; // pixels between two maps side by side
/// The visible part: the cell at the top left corner (with fractions), and pixels per cell.
const viewport = { key: 0, query: 0, size: 1 };
/// The width and height of a map in pixels.
let plot = { width: 0, height: 0 };
/// The maps on the canvas: where each starts, and whether it has labels on its left.
let panes = [{ left: GUTTER.left, top: GUTTER.top, labeled: true }];

/// Divides the canvas: one map, or two beside each other, or on a narrow screen below each other. They share the
/// viewport.
function layOut() {
  const { clientWidth, clientHeight } = map;
  if (clientWidth === 0) return; // hidden: it keeps its place
  const whole = plot.width === 0 || isWhole();
  const wide = clientWidth >= 440;
  const width = clientWidth - GUTTER.left - GUTTER.right;
  const height = clientHeight - GUTTER.top - GUTTER.bottom;
  const two = showsBoth();
  plot = {
    width: Math.max(1, two && wide ? (width - BETWEEN) / 2 : width),
    height: Math.max(1, two && !wide ? (height - GUTTER.top) / 2 : height),
  };
  panes = [{ left: GUTTER.left, top: GUTTER.top, labeled: true }];
  if (two && wide) {
    // The right map follows where the whole left one ends, and zoomed, that one takes no more room.
    plot.width = Math.min(plot.width, Math.max(tokens.length * wholeSize(), 120));
    panes.push({ left: GUTTER.left + plot.width + BETWEEN, top: GUTTER.top, labeled: false });
  } else if (two) {
    panes.push({ left: GUTTER.left, top: 2 * GUTTER.top + plot.height, labeled: true });
  }
  if (whole) viewport.size = 0;
  settle();
}

/// The place that the address names, until the canvas has a size.
let wantedPlace = null;
function showPlace(place) {
  if (plot.width === 0) return void (wantedPlace = place);
  const [key, query, wide] = place;
  viewport.size = plot.width / wide;
  settle();
  [viewport.key, viewport.query] = [key, query];
  settle();
}

const wholeSize = () => Math.min(plot.width / tokens.length, plot.height / queries);
const isWhole = () => viewport.size <= wholeSize() * 1.001;
const cellsIn = (pixels) => pixels / viewport.size;

/// Keeps the viewport on the map, and the zoom between the whole map and a large cell.
function settle() {
  const largest = Math.max(LARGEST_CELL, wholeSize());
  viewport.size = Math.min(Math.max(viewport.size, wholeSize()), largest);
  viewport.key = Math.min(Math.max(viewport.key, 0), Math.max(0, tokens.length - cellsIn(plot.width)));
  viewport.query = Math.min(Math.max(viewport.query, 0), Math.max(0, queries - cellsIn(plot.height)));
  // A finger on the whole map scrolls the page; on a zoomed map, it moves the map.
  map.style.touchAction = isWhole() ? "pan-y" : "none";
  drawMapSoon();
}

/// Zooms by `factor` around a point of the plot.
function zoom(factor, x, y) {
  const [key, query] = [viewport.key + cellsIn(x), viewport.query + cellsIn(y)];
  viewport.size *= factor;
  settle(); // the limit on the cell size decides where the point ends up
  viewport.key = key - cellsIn(x);
  viewport.query = query - cellsIn(y);
  settle();
  rememberSoon();
}

/// Zooms around the cell in the readout, otherwise around the middle.
function zoomHere(factor) {
  if (state.cell) reveal(state.cell);
  const middle = (first, at) => (at + 0.5 - first) * viewport.size;
  const [x, y] = state.cell
    ? [middle(viewport.key, state.cell.key), middle(viewport.query, state.cell.query)]
    : [plot.width / 2, plot.height / 2];
  zoom(factor, x, y);
}

function showWhole() {
  viewport.size = 0;
  settle();
  rememberSoon();
}

/// Moves the viewport so that it shows a cell.
function reveal({ query, key }) {
  const [wide, high] = [cellsIn(plot.width), cellsIn(plot.height)];
  if (key < viewport.key || key + 1 > viewport.key + wide) viewport.key = key + 0.5 - wide / 2;
  if (query < viewport.query || query + 1 > viewport.query + high) viewport.query = query + 0.5 - high / 2;
  settle();
}

// --- drawing ---------------------------------------------------------------------------------------

let mapDue = false;
function drawMapSoon() {
  if (mapDue) return;
  mapDue = true;
  // A map that has no place yet is drawn by the observer of its size, in the same frame.
  requestAnimationFrame(() => mapDue && plot.width > 0 && drawMap());
}

function drawMap() {
  mapDue = false;
  const { clientWidth: width, clientHeight: height } = map;
  if (!current || !fitCanvas(map, width, height)) return;
  paintMap(map.getContext("2d"), devicePixelRatio || 1);
}

/// Draws all panes into a context; one pixel of the layout has `ratio` of the canvas.
function paintMap(context, ratio) {
  const paint = theme();
  for (const [n, pane] of panes.entries()) {
    const sheet = sheets[n];
    if (sheet) paintPane(context, pane, sheet, paint, ratio);
    if (sheet && panes.length > 1) {
      context.font = "bold 12px system-ui, sans-serif";
      context.textAlign = "right";
      context.textBaseline = "top";
      const right = Math.min(plot.width, tokens.length * viewport.size);
      const name = clip(context, runs[n], right - 24);
      // The corner above the diagonal is empty, but a part of the map may have cells there.
      const wide = context.measureText(name).width + 8;
      context.fillStyle = paint.paper;
      if (!isWhole()) context.fillRect(pane.left + right - wide, pane.top, wide, 19);
      context.fillStyle = paint.ink;
      context.fillText(name, pane.left + right - 3, pane.top + 3);
    }
  }
}

/// The cells that the viewport shows, without those of later steps.
const shownPart = () => ({
  top: Math.floor(viewport.query),
  bottom: Math.min(shownRows(), Math.ceil(viewport.query + cellsIn(plot.height))),
  left: Math.floor(viewport.key),
  right: Math.min(shownKeys(), Math.ceil(viewport.key + cellsIn(plot.width))),
});

function paintPane(context, pane, sheet, paint, ratio) {
  const part = shownPart();
  const x = (key) => pane.left + (key - viewport.key) * viewport.size;
  const y = (query) => pane.top + (query - viewport.query) * viewport.size;
  const span = [(part.right - part.left) * viewport.size, (part.bottom - part.top) * viewport.size];
  const pixels = span.map((side) => Math.ceil(side * ratio));
  if (span.some((side) => side <= 0)) return drawAxes(context, pane, part, x, y, paint);

  context.save();
  context.beginPath();
  context.rect(pane.left, pane.top, plot.width, plot.height);
  context.clip();
  context.imageSmoothingEnabled = false;
  context.drawImage(raster(sheet, part, ...pixels), x(part.left), y(part.top), ...span);
  if (viewport.size >= 34) drawValues(context, pane, sheet, part, x, y);
  const box = (query, key, w, h, color) => {
    context.strokeStyle = color;
    // Draw around small cells rather than on them, so that they stay visible.
    const inset = viewport.size < 8 ? -0.5 : 0.5;
    context.strokeRect(x(key) + inset, y(query) + inset, w * viewport.size - 2 * inset, h * viewport.size - 2 * inset);
  };
  const last = part.bottom - 1;
  // A map of differences is as light or dark as the page.
  const [out, into, mark] = sheet.signed ? [paint.out, paint.in, paint.mark] : [OUT_ON_MAP, IN_ON_MAP, MARK_ON_MAP];
  for (const position of state.found) {
    const query = Math.max(0, position - offset);
    if (state.as !== "key" && position >= offset && query <= last) box(query, 0, position + 1, 1, mark);
    if (state.as !== "query" && query <= last) box(query, position, 1, last + 1 - query, mark);
  }
  if (state.token !== null && state.token >= offset && state.token - offset <= last) {
    box(state.token - offset, 0, state.token + 1, 1, out); // what it attends to
  }
  if (state.token !== null && state.token < part.right) {
    const first = Math.max(0, state.token - offset); // the first query that sees it
    box(first, state.token, 1, last + 1 - first, into);
  }
  if (state.cell) {
    context.lineWidth = 2;
    box(state.cell.query, state.cell.key, 1, 1, paint.ink);
  }
  context.restore();
  drawAxes(context, pane, part, x, y, paint);
}

/// The number as it stands in a cell: ".53", since the leading 0 says nothing; for tiny ones, the color is enough.
function cellText(value) {
  const text = rounded(value).replace(/^([+−]?)0\./, "$1.");
  return /^(\|change\| |<|–$|0$)/.test(text) ? "" : text;
}

/// The numbers in the cells, where they fit: a part of one would be another number.
function drawValues(context, pane, sheet, part, x, y) {
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let i = part.top; i < part.bottom; i++) {
    for (let j = part.left; j < Math.min(part.right, rowLength(i)); j++) {
      if (shadeOf(sheet, i, j) === LEFT_OUT) continue;
      const t = levelOf(sheet, i, j);
      context.fillStyle = Number.isNaN(t) || wantsBlack(colorAt(t, sheet.signed)) ? "#000" : "#fff";
      const text = cellText(sheet.value(i, j));
      const [middle, wide] = [x(j + 0.5), context.measureText(text).width];
      const inside = middle - wide / 2 >= pane.left && middle + wide / 2 <= pane.left + plot.width;
      if (inside && wide <= viewport.size) context.fillText(text, middle, y(i + 0.5));
    }
  }
}

// --- pointer and keys ------------------------------------------------------------------------------

/// The pane at a point of the canvas: the last that starts before it.
const paneAt = (x, y) => panes.findLast(({ left, top }) => x >= left && y >= top) ?? panes[0];

/// The cell at a point of the canvas; null off the map and where a query cannot see the key.
function cellAt(x, y) {
  const { left, top } = paneAt(x, y);
  const key = Math.floor(viewport.key + cellsIn(x - left));
  const query = Math.floor(viewport.query + cellsIn(y - top));
  const inside = x >= left && y >= top && x < left + plot.width && y < top + plot.height;
  return inside && query < shownRows() && key < rowLength(query) ? { query, key } : null;
}

/// Zooms around a point of the canvas.
function zoomAt(factor, x, y) {
  const { left, top } = paneAt(x, y);
  zoom(factor, x - left, y - top);
}

const sameCell = (a, b) => a === b || (a && b && a.query === b.query && a.key === b.key);
/// Shows what the pointer is on. Screen readers need not speak it: only keys make them.
function showCell(cell) {
  if (sameCell(cell, state.cell)) return;
  byId("readout").setAttribute("aria-live", "off");
  update({ cell });
}

const fingers = new Map(); // pointers that are down, by id
let moved = false;

map.addEventListener("pointerdown", (event) => {
  fingers.set(event.pointerId, [event.offsetX, event.offsetY]);
  if (fingers.size === 1) moved = false;
});
map.addEventListener("pointermove", (event) => {
  const now = [event.offsetX, event.offsetY];
  const before = fingers.get(event.pointerId);
  if (!before) return showCell(cellAt(...now));
  const [dx, dy] = [now[0] - before[0], now[1] - before[1]];
  if (!moved && Math.hypot(dx, dy) < 4) return; // a click with a shaky hand
  moved = true;
  fingers.set(event.pointerId, now);
  const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
  if (other) {
    const apart = (a) => Math.max(1, Math.hypot(a[0] - other[0], a[1] - other[1]));
    zoomAt(apart(now) / apart(before), ...other);
  } else if (!isWhole()) {
    map.setPointerCapture(event.pointerId);
    viewport.key -= cellsIn(dx);
    viewport.query -= cellsIn(dy);
    settle();
    rememberSoon();
  }
});
for (const kind of ["pointerup", "pointercancel"]) {
  map.addEventListener(kind, (event) => fingers.delete(event.pointerId));
}
map.addEventListener("pointerleave", (event) => {
  fingers.delete(event.pointerId); // without a capture, the map never hears of its release
  showCell(state.pinned);
});
map.addEventListener("click", (event) => {
  const cell = moved ? null : cellAt(event.offsetX, event.offsetY);
  if (cell) choose(cell);
});
map.addEventListener("dblclick", (event) => {
  if (isWhole()) zoomAt(4, event.offsetX, event.offsetY);
  else showWhole();
});
map.addEventListener(
  "wheel",
  (event) => {
    // Over the whole map, the wheel scrolls the page, as everywhere else.
    if (isWhole() && !event.ctrlKey && !event.metaKey) return hintAtWheel();
    event.preventDefault();
    zoomAt(Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY);
  },
  { passive: false },
);

const wheelHint = byId("wheel-hint");
let hinting = 0;
function hintAtWheel() {
  wheelHint.hidden = false;
  clearTimeout(hinting);
  hinting = setTimeout(() => (wheelHint.hidden = true), 1500);
}

/// Pins a cell, and chooses its query as the token that the other views show.
const choose = (cell) => update({ cell, pinned: cell, token: cell.query + offset });

map.addEventListener("keydown", (event) => {
  const keys = { "+": () => zoomHere(1.5), "=": () => zoomHere(1.5), "-": () => zoomHere(1 / 1.5), 0: showWhole };
  const [dy, dx] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [];
  if (dy === undefined && !keys[event.key]) return;
  event.preventDefault();
  if (dy === undefined) return keys[event.key]();
  if (shownRows() === 0) return;
  const step = event.shiftKey ? 10 : 1;
  const last = Math.max(0, (state.token ?? 0) - offset);
  const from = state.cell ?? { query: last, key: rowLength(last) - 1 - dx };
  const query = Math.min(Math.max(from.query + dy * step, 0), shownRows() - 1);
  const key = Math.min(Math.max(from.key + dx * step, 0), rowLength(query) - 1);
  byId("readout").setAttribute("aria-live", "polite");
  choose({ query, key });
  reveal({ query, key });
});

byId("closer").addEventListener("click", () => zoomHere(2));
byId("farther").addEventListener("click", () => zoomHere(1 / 2));
byId("whole").addEventListener("click", showWhole);

new ResizeObserver(() => {
  layOut();
  // At once: until the next frame, the browser would stretch the picture of the old size.
  drawMap();
  if (wantedPlace && plot.width > 0) {
    showPlace(wantedPlace);
    wantedPlace = null;
  }
}).observe(map);
on("run", () => plot.width > 0 && layOut());
on("weights token cell scale first found as step theme", drawMapSoon);
