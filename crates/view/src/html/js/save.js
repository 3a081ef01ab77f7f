// What a reader takes along: the value, the map as a picture, and its numbers.

const saveMenu = byId("save");

/// Offers bytes as a file, without a server.
function offer(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  tellSaved(`saved ${name}`);
}

const saved = byId("saved");
let telling = 0;
function tellSaved(text) {
  saved.textContent = text;
  clearTimeout(telling);
  telling = setTimeout(() => (saved.textContent = ""), 4000);
}

/// A file's name: title, heads and run, in characters that every system allows.
function fileName(end) {
  const run = compared ? `-${RUNS[state.run]}` : "";
  const name = `${title}-${chosen().map((index) => sources[index].name).join("+")}${run}`;
  return `${name.replace(/[^\p{L}\p{N}.+-]+/gu, "-").slice(0, 80)}.${end}`;
}

/// The map's canvas has a size only while it is on the screen.
async function withMap() {
  if (state.view !== "map") update({ view: "map" });
  for (let frame = 0; frame < 2; frame++) await new Promise((done) => requestAnimationFrame(done));
}

async function savePng() {
  await withMap();
  const lines = pictureTitle();
  const [ratio, head, foot] = [2, 8 + 18 * lines.length, 28];
  const canvas = new OffscreenCanvas(map.clientWidth * ratio, (map.clientHeight + head + foot) * ratio);
  const context = canvas.getContext("2d");
  const paint = theme();
  context.fillStyle = paint.paper;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.scale(ratio, ratio);
  context.fillStyle = paint.ink;
  context.textBaseline = "middle";
  for (const [n, line] of lines.entries()) {
    context.font = `${n === 0 ? "bold " : ""}13px system-ui, sans-serif`;
    context.fillText(clip(context, line, map.clientWidth - 16), 8, 13 + 18 * n);
  }
  context.translate(0, head);
  paintMap(context, ratio);
  const { colors, start, end } = colorBar();
  const [left, middle] = [GUTTER.left + 40, map.clientHeight + foot / 2];
  for (const [n, color] of colors.entries()) {
    context.fillStyle = color;
    context.fillRect(left + 3 * n, middle - 5, 3.1, 9);
  }
  context.fillStyle = paint.ink;
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.fillText(start, left - 6, middle);
  context.textAlign = "left";
  context.fillText(end, left + 3 * colors.length + 6, middle);
  offer(fileName("png"), await canvas.convertToBlob());
}

/// What the picture shows: its title, and below that the runs and what changes the numbers or their colors, if anything.
function pictureTitle() {
  const chosenSo = [
    ...(compared ? [showsChange() ? runs.join(" → ") : RUNS[state.run]] : []),
    ...(sheets[0].weighted ? ["weight × value norm"] : []),
    ...(state.scale === "row" ? ["by row"] : []),
    ...(state.first ? [] : ["without the first token"]),
  ];
  return [[title, titleText()], chosenSo].filter((line) => line.length > 0).map((line) => line.join(" · "));
}

/// The colors of a scale from its start to its end, and the texts there.
function colorBar() {
  const { signed } = sheets[0];
  const colors = Array.from({ length: 40 }, (_, n) => `rgb(${colorAt(signed ? (n - 19.5) / 19.5 : n / 39, signed)})`);
  return { colors, start: byId("legend-start").textContent, end: `${byId("legend-end").textContent} (√ scale)` };
}

/// Beyond so many cells, they are a picture inside the picture.
const SHAPES = 5000;
const xml = (text) => String(text).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

async function saveSvg() {
  await withMap();
  const part = shownPart();
  const [across, down] = [part.right - part.left, part.bottom - part.top];
  if (across <= 0 || down <= 0) return tellSaved("no cell is shown");
  const size = Math.min(26, Math.max(3, 640 / Math.max(across, down)));
  const lines = pictureTitle();
  const [left, top, gap] = [110, 108 + 16 * lines.length, 30];
  const [w, h] = [across * size, down * size];
  const paint = theme();
  const text = (x, y, content, more = "") => `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" ${more}>${xml(content)}</text>`;
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((n) => n * size >= 12) ?? 1000;
  const context = new OffscreenCanvas(1, 1).getContext("2d");
  const cut = (content, room, font = "11px monospace") => {
    context.font = font;
    return clip(context, content, room);
  };
  // A few small cells leave room for their title, within reason.
  const headings = lines.map((line) => cut(line, 900, "bold 13px monospace"));
  const least = Math.max(430, ...headings.map((line) => 20 + context.measureText(line).width));
  const [width, height] = [Math.max(left + sheets.length * (w + gap), least), top + h + 34].map(Math.ceil);
  const named = (position, room) => cut(`${every > 1 ? `${position} ` : ""}${tokens[position]}`, room);
  const shapes = headings.map((line, n) => text(10, 20 + 16 * n, line, `font-size="13"${n === 0 ? ' font-weight="bold"' : ""}`));
  for (const [n, sheet] of sheets.entries()) {
    const start = left + n * (w + gap);
    if (sheets.length > 1) shapes.push(text(start, top - 78, cut(runs[n], w, "bold 11px monospace"), 'font-weight="bold"'));
    for (let key = part.left; key < part.right; key++) {
      if (key % every > 0) continue;
      const x = start + (key - part.left + 0.5) * size;
      shapes.push(text(x, top - 6, named(key, 68), `transform="rotate(-90 ${x.toFixed(1)} ${top - 6})" dominant-baseline="middle"`));
    }
    for (let query = part.top; query < part.bottom && n === 0; query++) {
      if ((query + offset) % every > 0) continue;
      shapes.push(text(left - 6, top + (query - part.top + 0.5) * size, named(query + offset, left - 10), 'text-anchor="end" dominant-baseline="middle"'));
    }
    shapes.push(across * down <= SHAPES ? cellShapes(sheet, part, start, top, size) : await cellImage(sheet, part, start, top, w, h));
  }
  const { colors, start, end } = colorBar();
  const bar = colors.map((fill, n) => `<rect x="${left + 60 + 3 * n}" y="${top + h + 12}" width="3.1" height="9" fill="${fill}"/>`);
  shapes.push(
    ...bar,
    text(left + 54, top + h + 20, start, 'text-anchor="end"'),
    text(left + 186, top + h + 20, end),
  );
  offer(
    fileName("svg"),
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ` +
      `font-family="monospace" font-size="11" fill="${paint.ink}"><rect width="100%" height="100%" fill="${paint.paper}"/>\n` +
      `${shapes.join("\n")}\n</svg>\n`,
    "image/svg+xml",
  );
}

function cellShapes(sheet, part, left, top, size) {
  const rects = [];
  for (let query = part.top; query < part.bottom; query++) {
    for (let key = part.left; key < Math.min(part.right, rowLength(query)); key++) {
      const t = levelOf(sheet, query, key);
      const none = shadeOf(sheet, query, key) === LEFT_OUT ? "#8884" : "#ff0090";
      const fill = Number.isNaN(t) ? none : `rgb(${colorAt(t, sheet.signed)})`;
      const [x, y] = [left + (key - part.left) * size, top + (query - part.top) * size].map((n) => n.toFixed(2));
      rects.push(`<rect x="${x}" y="${y}" width="${size.toFixed(2)}" height="${size.toFixed(2)}" fill="${fill}"><title>${xml(exact(sheet.value(query, key)))}</title></rect>`);
    }
  }
  return `<g shape-rendering="crispEdges">${rects.join("")}</g>`;
}

async function cellImage(sheet, part, left, top, w, h) {
  const picture = raster(sheet, part, part.right - part.left, part.bottom - part.top);
  const bytes = new Uint8Array(await (await picture.convertToBlob()).arrayBuffer());
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return `<image x="${left}" y="${top}" width="${w}" height="${h}" preserveAspectRatio="none" style="image-rendering:pixelated" href="data:image/png;base64,${btoa(binary)}"/>`;
}

/// An error with two digits, rounded up, that covers the rounding of the printed number to six.
function errorText(weight, error) {
  const whole = error + Math.abs(weight) * 5e-6;
  if (!(whole > 0)) return String(whole);
  const unit = 10 ** (Math.floor(Math.log10(whole)) - 1);
  return String(+(Math.ceil(whole / unit) * unit).toPrecision(2));
}

/// One line per cell of the visible part, with the most by which each number can be wrong. A token that a spreadsheet would take for a formula gets an apostrophe.
function saveCsv() {
  const part = shownPart();
  const field = (text) => `"${text.replace(/^[=+\-@]/, "'$&").replaceAll('"', '""')}"`;
  const names = showsBoth() ? ["first", "second"] : [state.run === "difference" ? "difference" : "weight"];
  const columns = sheets.flatMap((sheet, n) => {
    const name = `${names[n]}${sheet.weighted ? "_times_norm" : ""}`;
    return [name, `${name}_error`];
  });
  const lines = [["query", "query_token", "key", "key_token", ...columns].join(",")];
  for (let query = part.top; query < part.bottom; query++) {
    for (let key = part.left; key < Math.min(part.right, rowLength(query)); key++) {
      const numbers = sheets.flatMap((sheet) => {
        const { weight, error, dropped } = sheet.value(query, key);
        return dropped ? ["", ""] : [+weight.toPrecision(6), errorText(weight, error)];
      });
      lines.push([query + offset, field(tokens[query + offset]), key, field(tokens[key]), ...numbers].join(","));
    }
  }
  offer(fileName("csv"), `${lines.join("\n")}\n`, "text/csv");
}

/// Puts a text on the clipboard; returns whether the browser did.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

async function copyValue() {
  if (!state.cell) return tellSaved("choose a cell first");
  const { query, key } = state.cell;
  const detail = detailOf(state.cell);
  const text = `${titleText()}: ${exact(current.value(query, key))}${detail ? ` (${detail})` : ""}, ${query + offset} ${tokens[query + offset]} attends to ${key} ${tokens[key]}`;
  tellSaved((await copyText(text)) ? "copied" : "the browser did not copy it");
}

/// A frame of a notebook may have no clipboard of its own; a selection can still be copied. Returns whether it was.
function copySelected(text) {
  const focused = document.activeElement;
  const area = document.createElement("textarea");
  area.value = text;
  Object.assign(area.style, { position: "fixed", top: "0", opacity: "0" });
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused?.focus({ preventScroll: true });
  return copied;
}

for (const [id, run] of Object.entries({ copy: copyValue, png: savePng, svg: saveSvg, csv: saveCsv })) {
  byId(id).addEventListener("click", () => {
    saveMenu.open = false;
    saveMenu.firstElementChild.focus();
    if (current) run();
  });
}
addEventListener("pointerdown", (event) => {
  if (!saveMenu.contains(event.target)) saveMenu.open = false;
}, { signal });
saveMenu.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !saveMenu.open) return;
  event.stopPropagation();
  saveMenu.open = false;
  saveMenu.firstElementChild.focus();
});
