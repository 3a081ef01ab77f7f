// The file's data: tokens, heads with their summaries, predictions, and the weights of each head.
//
// Weights are in script elements that the browser does not run, one per head: base64 of deflate of codes.
// The page decodes a head when it has to draw it and forgets it when others come; only its text stays.

const read = (node) => JSON.parse(node.textContent);
const { title, caption, tokens, queries, top: kept, palette } = read(document.getElementById("header"));
const predictions = read(document.getElementById("predictions"));
/// The position of the first query: the queries are the last keys.
const offset = tokens.length - queries;

const blocks = document.querySelectorAll("script.weights");
const heads = [...document.querySelectorAll("script.layer")]
  .flatMap((node) => {
    const { layer, heads } = read(node);
    return heads.map((head) => ({ layer, ...head, name: `${layer}.${head.head}` }));
  })
  .map((head, index) => ({ ...head, index, block: blocks[index] }));

/// Where row `i` starts among the codes: row `r` holds `offset + r + 1` of them.
const rowStart = (i) => i * (offset + 1) + (i * (i - 1)) / 2;
/// How many keys query `i` sees.
const rowLength = (i) => offset + i + 1;

/// One head's weights as codes 0 to `levels`; `levels + 1` stands for NaN.
class Weights {
  constructor(codes, levels) {
    Object.assign(this, { codes, levels });
    // The largest code of each row, with and without the first key: one of them ends the row's colours.
    this.rowMax = new Uint16Array(queries);
    this.rowMaxLater = new Uint16Array(queries);
    for (let i = 0; i < queries; i++) {
      const start = rowStart(i);
      let later = 0;
      for (let j = start + 1; j < start + rowLength(i); j++) {
        if (codes[j] > later && codes[j] <= levels) later = codes[j];
      }
      this.rowMaxLater[i] = later;
      this.rowMax[i] = codes[start] <= levels ? Math.max(later, codes[start]) : later;
    }
  }

  code(i, j) {
    return this.codes[rowStart(i) + j];
  }

  /// A weight and the most by which it can differ from the tensor's; `dropped` if the file keeps only the
  /// largest of a row and this is not one of them. The writer rounds
  /// `levels · w^(2/3)`, so the error is half a step times the slope of `s^(3/2)`.
  value(i, j) {
    const code = this.code(i, j);
    if (code > this.levels) return { weight: NaN, error: NaN };
    if (code === 0 && kept !== null) return { weight: 0, error: 0, dropped: true };
    const s = code / this.levels;
    const half = 0.5 / this.levels;
    return { weight: s * Math.sqrt(s), error: 1.5 * half * Math.sqrt(s + half) };
  }
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function decode({ block, levels }) {
  const packed = new Blob([fromBase64(block.textContent)]);
  const stream = packed.stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  if (levels < 256) return new Weights(bytes, levels);
  // Two bytes per code: all high bytes, then all low ones.
  const codes = new Uint16Array(bytes.length / 2);
  for (let i = 0; i < codes.length; i++) codes[i] = (bytes[i] << 8) | bytes[codes.length + i];
  return new Weights(codes, levels);
}

const KEPT = 8; // heads: going back and forth between a few is instant, and memory stays small
const cache = new Map();

/// The weights of a head, from the cache or decoded; `keep` is for the head on the screen.
function weightsOf(head, keep) {
  const found = cache.get(head.index);
  if (found) return found;
  const weights = decode(head);
  if (keep) {
    cache.set(head.index, weights);
    if (cache.size > KEPT) cache.delete(cache.keys().next().value);
  }
  return weights;
}

// --- numbers ---------------------------------------------------------------------------------------

/// A weight with the digits that its error allows, at most three: "0.53"; "< 0.0004" if it allows none.
/// The error is less than 1 in the last digit.
function rounded({ weight, error, dropped }) {
  if (dropped) return "–";
  if (Number.isNaN(weight)) return "NaN";
  const certain = Math.floor(-Math.log10(error));
  const places = Math.min(certain, 2 - Math.floor(Math.log10(weight || 1)));
  const text = weight.toFixed(Math.max(0, places));
  return +text > 0 ? text : `< ${roundUp(weight + error)}`;
}

/// Rounds up to a number with one digit that is not 0.
function roundUp(x) {
  const places = Math.ceil(-Math.log10(x));
  return (Math.ceil(x * 10 ** places) / 10 ** places).toFixed(places);
}

/// A weight and its error: "0.530 ± 0.004". The error covers the rounding of the printed number.
function exact({ weight, error, dropped }) {
  if (dropped) return `not among the ${kept} largest of its row`;
  if (Number.isNaN(weight)) return "not a number";
  const places = Math.ceil(-Math.log10(error));
  const unit = 10 ** -places;
  const bound = Math.ceil(error / unit + 0.5) * unit;
  return `${weight.toFixed(places)} ± ${bound.toFixed(places)}`;
}

const percent = (p) => (p >= 0.0995 ? (100 * p).toFixed(0) : (100 * p).toPrecision(2)) + " %";
