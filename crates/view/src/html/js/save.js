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

function tellSaved(text) {
  byId("saved").textContent = text;
  setTimeout(() => (byId("saved").textContent = ""), 4000);
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
  const [ratio, head] = [2, 26];
  const canvas = new OffscreenCanvas(map.clientWidth * ratio, (map.clientHeight + head) * ratio);
  const context = canvas.getContext("2d");
  const paint = theme();
  context.fillStyle = paint.paper;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.scale(ratio, ratio);
  context.fillStyle = paint.ink;
  context.font = "bold 13px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.fillText(clip(context, pictureTitle(), map.clientWidth - 16), 8, head / 2);
  context.translate(0, head);
  paintMap(context, ratio);
  offer(fileName("png"), await canvas.convertToBlob());
}

const pictureTitle = () =>
  [title, titleText(), ...(compared ? [showsChange() ? runs.join(" → ") : RUNS[state.run]] : [])].join(" · ");

/// Beyond so many cells, they are a picture inside the picture.
const SHAPES = 5000;
const xml = (text) => String(text).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

async function saveSvg() {
  await withMap();
  const part = shownPart();
  const [across, down] = [part.right - part.left, part.bottom - part.top];
  if (across <= 0 || down <= 0) return tellSaved("no cell is shown");
  const size = Math.min(26, Math.max(3, 640 / Math.max(across, down)));
  const [left, top, gap] = [110, 120, 30];
  const [w, h] = [across * size, down * size];
  const paint = theme();
  const text = (x, y, content, more = "") => `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" ${more}>${xml(content)}</text>`;
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((n) => n * size >= 12) ?? 1000;
  const short = (position) => {
    const letters = [...tokens[position]];
    return `${every > 1 ? `${position} ` : ""}${letters.length > 14 ? `${letters.slice(0, 13).join("")}…` : tokens[position]}`;
  };
  const shapes = [text(10, 20, pictureTitle(), 'font-weight="bold" font-size="13"')];
  for (const [n, sheet] of sheets.entries()) {
    const start = left + n * (w + gap);
    if (sheets.length > 1) shapes.push(text(start + w, top - 6 + 16, runs[n], 'text-anchor="end" font-weight="bold"'));
    for (let key = part.left; key < part.right; key++) {
      if (key % every > 0) continue;
      const x = start + (key - part.left + 0.5) * size;
      shapes.push(text(x, top - 6, short(key), `transform="rotate(-90 ${x.toFixed(1)} ${top - 6})" dominant-baseline="middle"`));
    }
    for (let query = part.top; query < part.bottom && n === 0; query++) {
      if ((query + offset) % every > 0) continue;
      shapes.push(text(left - 6, top + (query - part.top + 0.5) * size, short(query + offset), 'text-anchor="end" dominant-baseline="middle"'));
    }
    shapes.push(across * down <= SHAPES ? cellShapes(sheet, part, start, top, size) : await cellImage(sheet, part, start, top, w, h));
  }
  const { signed } = sheets[0];
  const bar = Array.from({ length: 40 }, (_, n) => {
    const fill = `rgb(${colourAt(signed ? (n - 19.5) / 19.5 : n / 39, signed)})`;
    return `<rect x="${left + 60 + 3 * n}" y="${top + h + 12}" width="3.1" height="9" fill="${fill}"/>`;
  });
  shapes.push(
    ...bar,
    text(left + 54, top + h + 20, byId("legend-start").textContent, 'text-anchor="end"'),
    text(left + 186, top + h + 20, `${byId("legend-end").textContent} (by √)`),
  );
  const [width, height] = [left + Math.max(sheets.length * (w + gap), 320), top + h + 34].map(Math.ceil);
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
      const shade = shadeOf(sheet, query, key);
      const t = (shade / (SHADES - 1)) ** 0.75 * (sheet.code(query, key) < 0 ? -1 : 1);
      const fill = shade < SHADES ? `rgb(${colourAt(t, sheet.signed)})` : shade === LEFT_OUT ? "#8884" : "#ff0090";
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

/// One line per cell of the visible part. A token that a spreadsheet would take for a formula gets an apostrophe.
function saveCsv() {
  const part = shownPart();
  const field = (text) => `"${text.replace(/^[=+\-@]/, "'$&").replaceAll('"', '""')}"`;
  const columns = showsBoth() ? ["first", "second"] : state.run === "difference" ? ["difference"] : [state.weighted && hasNorms ? "weight_times_norm" : "weight"];
  const lines = [["query", "query_token", "key", "key_token", ...columns].join(",")];
  for (let query = part.top; query < part.bottom; query++) {
    for (let key = part.left; key < Math.min(part.right, rowLength(query)); key++) {
      const numbers = sheets.map((sheet) => {
        const { weight, dropped } = sheet.value(query, key);
        return dropped ? "" : +weight.toPrecision(6);
      });
      lines.push([query + offset, field(tokens[query + offset]), key, field(tokens[key]), ...numbers].join(","));
    }
  }
  offer(fileName("csv"), `${lines.join("\n")}\n`, "text/csv");
}

async function copyValue() {
  if (!state.cell) return tellSaved("choose a cell first");
  const { query, key } = state.cell;
  const detail = detailOf(state.cell);
  const text = `${titleText()}: ${exact(current.value(query, key))}${detail ? ` (${detail})` : ""}, ${query + offset} ${tokens[query + offset]} attends to ${key} ${tokens[key]}`;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // A frame of a notebook may have no clipboard of its own; a selection can still be copied.
    const area = document.createElement("textarea");
    area.value = text;
    saveMenu.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  tellSaved("copied");
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
});
saveMenu.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !saveMenu.open) return;
  event.stopPropagation();
  saveMenu.open = false;
  saveMenu.firstElementChild.focus();
});
