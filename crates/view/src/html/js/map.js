// The heat map of one head: both token axes, zoom, the value under the pointer.

const map = document.getElementById("map");
const GUTTER = { left: 104, top: 84, right: 4, bottom: 4 };
const LARGEST_CELL = 56;
/// The map is dark in either theme: the dark theme's colours of a token's row and column.
const [OUT_ON_MAP, IN_ON_MAP] = ["#56b4e9", "#ee9b4c"];
/// The visible part: the cell at the top left corner (with fractions), and pixels per cell.
const lens = { key: 0, query: 0, size: 1 };
/// The plot's width and height in pixels.
let plot = { width: 0, height: 0 };

const wholeSize = () => Math.min(plot.width / tokens.length, plot.height / queries);
const isWhole = () => lens.size <= wholeSize() * 1.001;
const cellsIn = (pixels) => pixels / lens.size;

/// Keeps the lens on the map, and the zoom between the whole map and a large cell.
function settle() {
  const largest = Math.max(LARGEST_CELL, wholeSize());
  lens.size = Math.min(Math.max(lens.size, wholeSize()), largest);
  lens.key = Math.min(Math.max(lens.key, 0), Math.max(0, tokens.length - cellsIn(plot.width)));
  lens.query = Math.min(Math.max(lens.query, 0), Math.max(0, queries - cellsIn(plot.height)));
  // A finger on the whole map scrolls the page; on a zoomed map, it moves the map.
  map.style.touchAction = isWhole() ? "pan-y" : "none";
  drawMapSoon();
}

/// Zooms by `factor` around a point of the plot.
function zoom(factor, x, y) {
  const [key, query] = [lens.key + cellsIn(x), lens.query + cellsIn(y)];
  lens.size *= factor;
  settle(); // what a cell may be at most decides where the point comes to lie
  lens.key = key - cellsIn(x);
  lens.query = query - cellsIn(y);
  settle();
}

/// Zooms around the cell in the readout, otherwise around the middle.
function zoomHere(factor) {
  if (state.cell) reveal(state.cell);
  const middle = (first, at) => (at + 0.5 - first) * lens.size;
  const [x, y] = state.cell
    ? [middle(lens.key, state.cell.key), middle(lens.query, state.cell.query)]
    : [plot.width / 2, plot.height / 2];
  zoom(factor, x, y);
}

function showWhole() {
  lens.size = 0;
  settle();
}

/// Moves the lens so that it shows a cell.
function reveal({ query, key }) {
  const [wide, high] = [cellsIn(plot.width), cellsIn(plot.height)];
  if (key < lens.key || key + 1 > lens.key + wide) lens.key = key + 0.5 - wide / 2;
  if (query < lens.query || query + 1 > lens.query + high) lens.query = query + 0.5 - high / 2;
  settle();
}

// --- drawing ---------------------------------------------------------------------------------------

let mapDue = false;
function drawMapSoon() {
  if (mapDue) return;
  mapDue = true;
  requestAnimationFrame(() => {
    mapDue = false;
    drawMap();
  });
}

function drawMap() {
  const { clientWidth: width, clientHeight: height } = map;
  if (!current || !fitCanvas(map, width, height)) return;
  const context = map.getContext("2d");
  const paint = theme();
  const part = {
    top: Math.floor(lens.query),
    bottom: Math.min(queries, Math.ceil(lens.query + cellsIn(plot.height))),
    left: Math.floor(lens.key),
    right: Math.min(tokens.length, Math.ceil(lens.key + cellsIn(plot.width))),
  };
  const x = (key) => GUTTER.left + (key - lens.key) * lens.size;
  const y = (query) => GUTTER.top + (query - lens.query) * lens.size;
  const span = [(part.right - part.left) * lens.size, (part.bottom - part.top) * lens.size];
  const pixels = span.map((side) => Math.ceil(side * (devicePixelRatio || 1)));

  context.save();
  context.beginPath();
  context.rect(GUTTER.left, GUTTER.top, plot.width, plot.height);
  context.clip();
  context.imageSmoothingEnabled = false;
  context.drawImage(raster(current, part, ...pixels), x(part.left), y(part.top), ...span);
  if (lens.size >= 34) drawValues(context, part, x, y);
  const box = (query, key, w, h, colour) => {
    context.strokeStyle = colour;
    // Draw around small cells rather than on them, so that they stay visible.
    const inset = lens.size < 8 ? -0.5 : 0.5;
    context.strokeRect(x(key) + inset, y(query) + inset, w * lens.size - 2 * inset, h * lens.size - 2 * inset);
  };
  if (state.token !== null && state.token >= offset) {
    box(state.token - offset, 0, state.token + 1, 1, OUT_ON_MAP); // what it attends to
  }
  if (state.token !== null) {
    const first = Math.max(0, state.token - offset); // the first query that sees it
    box(first, state.token, 1, queries - first, IN_ON_MAP);
  }
  if (state.cell) {
    context.lineWidth = 2;
    box(state.cell.query, state.cell.key, 1, 1, paint.ink);
  }
  context.restore();
  drawAxes(context, part, x, y, paint);
}

function drawValues(context, part, x, y) {
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let i = part.top; i < part.bottom; i++) {
    for (let j = part.left; j < Math.min(part.right, rowLength(i)); j++) {
      const shade = shadeOf(current, i, j);
      if (shade === LEFT_OUT) continue;
      context.fillStyle = shade > SHADES * 0.5 ? "#000" : "#fff";
      // ".53": the leading 0 says nothing; for tiny weights, the colour is enough.
      const text = rounded(current.value(i, j)).replace(/^0\./, ".");
      if (text.startsWith("<") || text === "–") continue;
      context.fillText(text, x(j + 0.5), y(i + 0.5));
    }
  }
}

// --- pointer and keys ------------------------------------------------------------------------------

/// The cell at a point of the canvas; null off the map and where a query cannot see the key.
function cellAt(x, y) {
  const key = Math.floor(lens.key + cellsIn(x - GUTTER.left));
  const query = Math.floor(lens.query + cellsIn(y - GUTTER.top));
  const inside = x >= GUTTER.left && y >= GUTTER.top && query < queries && key < rowLength(query);
  return inside ? { query, key } : null;
}

const sameCell = (a, b) => a === b || (a && b && a.query === b.query && a.key === b.key);
const showCell = (cell) => sameCell(cell, state.cell) || update({ cell });

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
  if (!moved && Math.hypot(dx, dy) < 4) return; // a click that trembles
  moved = true;
  fingers.set(event.pointerId, now);
  const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
  if (other) {
    const apart = (a) => Math.max(1, Math.hypot(a[0] - other[0], a[1] - other[1]));
    zoom(apart(now) / apart(before), other[0] - GUTTER.left, other[1] - GUTTER.top);
  } else if (!isWhole()) {
    map.setPointerCapture(event.pointerId);
    lens.key -= cellsIn(dx);
    lens.query -= cellsIn(dy);
    settle();
  }
});
for (const kind of ["pointerup", "pointercancel"]) {
  map.addEventListener(kind, (event) => fingers.delete(event.pointerId));
}
map.addEventListener("pointerleave", () => showCell(state.pinned));
map.addEventListener("click", (event) => {
  const cell = moved ? null : cellAt(event.offsetX, event.offsetY);
  if (cell) choose(cell);
});
map.addEventListener("dblclick", (event) => {
  if (isWhole()) zoom(4, event.offsetX - GUTTER.left, event.offsetY - GUTTER.top);
  else showWhole();
});
map.addEventListener(
  "wheel",
  (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 300), event.offsetX - GUTTER.left, event.offsetY - GUTTER.top);
  },
  { passive: false },
);

/// Pins a cell, and chooses its query as the token that the other views show.
const choose = (cell) => update({ cell, pinned: cell, token: cell.query + offset });

map.addEventListener("keydown", (event) => {
  const keys = { "+": () => zoomHere(1.5), "=": () => zoomHere(1.5), "-": () => zoomHere(1 / 1.5), 0: showWhole };
  const [dy, dx] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [];
  if (dy === undefined && !keys[event.key]) return;
  event.preventDefault();
  if (dy === undefined) return keys[event.key]();
  const step = event.shiftKey ? 10 : 1;
  const last = Math.max(0, (state.token ?? 0) - offset);
  const from = state.cell ?? { query: last, key: rowLength(last) - 1 - dx };
  const query = Math.min(Math.max(from.query + dy * step, 0), queries - 1);
  const key = Math.min(Math.max(from.key + dx * step, 0), rowLength(query) - 1);
  choose({ query, key });
  reveal({ query, key });
});

document.getElementById("closer").addEventListener("click", () => zoomHere(2));
document.getElementById("farther").addEventListener("click", () => zoomHere(1 / 2));
document.getElementById("whole").addEventListener("click", showWhole);

new ResizeObserver(() => {
  const whole = plot.width === 0 || isWhole();
  plot = {
    width: Math.max(1, map.clientWidth - GUTTER.left - GUTTER.right),
    height: Math.max(1, map.clientHeight - GUTTER.top - GUTTER.bottom),
  };
  if (whole) lens.size = 0;
  settle();
}).observe(map);
on("weights token cell scale first found theme", drawMapSoon);
