// Weights as pixels.

/// Finer than a code of 8 bits, so that a row with its own scale has all its shades.
const SHADES = 1024;
const NOT_A_NUMBER = SHADES;
const LEFT_OUT = SHADES + 1;

/// The bytes of a word, lowest first, depend on the machine.
const isLittle = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;
function pixel(red, green, blue, alpha = 255) {
  const bytes = isLittle ? [alpha, blue, green, red] : [red, green, blue, alpha];
  return bytes.reduce((word, byte) => word * 256 + byte);
}

/// The color of each shade, as a canvas's bytes: the anchors by the square root of the weight. The pages of other texts share them.
const painted = (showPage.painted ??= new Map());
function shadesOf(anchors) {
  const name = anchors.join();
  if (!painted.has(name)) {
    const table = new Uint32Array(SHADES + 2);
    for (let shade = 0; shade < SHADES; shade++) table[shade] = pixel(...mix((shade / (SHADES - 1)) ** 0.75, anchors));
    table[NOT_A_NUMBER] = pixel(255, 0, 144);
    table[LEFT_OUT] = pixel(128, 128, 128, 70);
    painted.set(name, table);
  }
  return painted.get(name);
}
const colors = shadesOf(palette);

const systemDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (state.theme ?? (systemDark.matches ? "dark" : "light")) === "dark";

/// Less and more than nothing: ColorBrewer's blue and red, which the color-blind tell apart, from white; on dark paper
/// they get lighter from black.
const LESS = { light: [[247, 247, 247], [146, 197, 222], [67, 147, 195], [5, 48, 97]], dark: [[27, 28, 33], [20, 70, 120], [67, 147, 195], [178, 222, 245]] };
const MORE = { light: [[247, 247, 247], [244, 165, 130], [214, 96, 77], [103, 0, 31]], dark: [[27, 28, 33], [122, 40, 20], [224, 105, 75], [255, 215, 190]] };
/// The color of each shade of a number below 0, and above.
let [lessColors, moreColors] = [colors, colors];
function paintSigns() {
  [lessColors, moreColors] = [LESS, MORE].map((anchors) => shadesOf(anchors[isDark() ? "dark" : "light"]));
}

function mix(t, anchors = palette) {
  const place = t * (anchors.length - 1);
  const below = Math.min(Math.floor(place), anchors.length - 2);
  return anchors[below].map((from, c) => Math.round(from + (anchors[below + 1][c] - from) * (place - below)));
}

/// The color of a number at `t`, 0 to 1, or -1 to 1 on the scale of signs.
function colorAt(t, signed) {
  if (!signed) return mix(Math.min(Math.max(t, 0), 1));
  return mix(Math.min(Math.abs(t), 1), (t < 0 ? LESS : MORE)[isDark() ? "dark" : "light"]);
}
/// Whether black reads better than white on a color.
const wantsBlack = ([red, green, blue]) => 0.299 * red + 0.587 * green + 0.114 * blue > 140;
const gradient = (signed) =>
  `linear-gradient(to right, ${Array.from({ length: 17 }, (_, n) => `rgb(${colorAt(signed ? n / 8 - 1 : n / 16, signed)})`)})`;

/// The factor that turns a code of row `i` into a shade, by the chosen scale.
function gain(weights, i) {
  if (state.scale === "weight") return (SHADES - 1) / weights.levels;
  const most = (state.first ? weights.rowMax : weights.rowMaxLater)[i];
  return (SHADES - 1) / Math.max(most, 1);
}

/// The shade of one cell.
function shadeOf(weights, i, j) {
  if (j === 0 && !state.first) return LEFT_OUT;
  const code = Math.abs(weights.code(i, j));
  return code > weights.levels ? NOT_A_NUMBER : Math.min(SHADES - 1, Math.floor(code * gain(weights, i)));
}

/// The place of a cell on the scale of colors: 0 to 1, or down to -1 with signs; NaN if it has none.
function levelOf(weights, i, j) {
  const shade = shadeOf(weights, i, j);
  return shade < SHADES ? (shade / (SHADES - 1)) ** 0.75 * (weights.code(i, j) < 0 ? -1 : 1) : NaN;
}

/// How strongly to draw a weight as a line or a background: 0 to 1, by the chosen scale.
const strength = (weights, i, j) => Math.abs(levelOf(weights, i, j)) || 0;

/// Draws the queries `top` to `bottom` and the keys `left` to `right` of a head into a separate canvas, one
/// pixel per cell. If there are fewer pixels than cells, a pixel shows the largest of its weights, so
/// that no thin line is lost.
function raster(weights, { top, bottom, left, right }, width, height) {
  width = Math.max(1, Math.min(width, right - left));
  height = Math.max(1, Math.min(height, bottom - top));
  const column = Uint16Array.from({ length: right - left }, (_, j) => (j * width) / (right - left));
  const shades = new Uint16Array(width * height); // 0 is no cell, n is shade n - 1
  const { codes, levels, signed } = weights;
  const isLess = new Uint8Array(signed ? width * height : 0);
  for (let i = top; i < bottom; i++) {
    const line = Math.floor(((i - top) * height) / (bottom - top)) * width;
    const start = rowStart(i);
    const factor = gain(weights, i);
    for (let j = left; j < Math.min(right, rowLength(i)); j++) {
      const number = codes[start + j];
      const code = number < 0 ? -number : number;
      let shade = Math.min(SHADES - 1, (code * factor) | 0);
      if (code > levels) shade = NOT_A_NUMBER;
      if (j === 0 && !state.first) shade = LEFT_OUT;
      const at = line + column[j - left];
      if (shade < shades[at]) continue;
      shades[at] = shade + 1;
      if (signed) isLess[at] = number < 0;
    }
  }
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let at = 0; at < pixels.length; at++) {
    const table = !signed ? colors : isLess[at] ? lessColors : moreColors;
    if (shades[at]) pixels[at] = table[shades[at] - 1];
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/// The name of the color of a cell as a line, a bar or a background: `kind` is "in" or "out", but signs go first.
const tone = (weights, i, j, kind) => (!weights.signed ? kind : weights.code(i, j) < 0 ? "less" : "more");

/// The canvas that each small map in its turn is drawn from.
const scratch = (showPage.scratch ??= new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true }));

/// The sum of some weights, each times a factor and the norms of the keys if there are any, at a lower resolution. It is
/// still attention: a pixel is the share of its queries' attention that goes to its keys, so that a thin diagonal
/// stays visible and diffuse attention stays dim.
function thumbnail(parts, { signed, unit }, width, height) {
  width = Math.max(1, Math.min(width, tokens.length));
  height = Math.max(1, Math.min(height, queries));
  const column = Uint16Array.from({ length: tokens.length }, (_, j) => (j * width) / tokens.length);
  const mass = new Float32Array(width * height);
  const rows = new Uint16Array(height);
  for (let i = 0; i < queries; i++) rows[Math.floor((i * height) / queries)] += 1;
  for (const { weights, factor, norms } of parts) {
    const { codes, levels } = weights;
    const { numbers } = tables(levels);
    for (let i = 0; i < queries; i++) {
      const line = Math.floor((i * height) / queries) * width;
      const start = rowStart(i);
      for (let j = state.first ? 0 : 1; j < rowLength(i); j++) {
        const number = factor * numbers[codes[start + j]];
        mass[line + column[j]] += norms ? number * norms[j] : number;
      }
    }
  }
  const { canvas } = scratch;
  Object.assign(canvas, { width, height });
  const image = scratch.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let y = 0; y < height; y++) {
    const line = mass.subarray(y * width, (y + 1) * width);
    const whole = state.scale === "row" ? line.reduce((most, part) => Math.max(most, Math.abs(part)), 0) : rows[y] * unit;
    const last = column[rowLength(Math.ceil(((y + 1) * queries) / height) - 1) - 1];
    for (let x = 0; x <= last; x++) {
      const part = whole === 0 ? 0 : line[x] / whole;
      const shade = Math.min(SHADES - 1, Math.round((SHADES - 1) * Math.abs(part) ** (2 / 3)));
      const table = !signed ? colors : part < 0 ? lessColors : moreColors;
      pixels[y * width + x] = table[Number.isNaN(part) ? NOT_A_NUMBER : shade];
    }
  }
  scratch.putImageData(image, 0, 0);
  return canvas;
}

/// Gives a canvas as many pixels as it takes on the screen; returns whether it is on the screen at all.
function fitCanvas(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const [across, down] = [width, height].map((pixels) => Math.round(pixels * ratio));
  const context = canvas.getContext("2d");
  // Another size costs a layout of the page.
  if (canvas.width === across && canvas.height === down && context.reset) context.reset();
  else Object.assign(canvas, { width: across, height: down });
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return canvas.width > 0 && canvas.height > 0;
}

/// The page's colors for canvases, as CSS computes them for the current theme.
function theme() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "ink", "quiet", "line", "out", "in", "mark", "less", "more"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`)]));
}

/// `text` cut to `width` with an ellipsis, for `context.fillText`.
function clip(context, text, width) {
  // A token may have any length; characters narrower than these are rare, and those beyond never fit.
  const most = Math.max(80, Math.ceil(width / 4));
  let shown = text.length > most ? text.slice(0, most) : text;
  if (shown === text && context.measureText(text).width <= width) return text;
  const letters = [...shown];
  while (letters.length > 0) {
    shown = letters.join("") + "…";
    if (context.measureText(shown).width <= width) return shown;
    letters.pop();
  }
  return "";
}
