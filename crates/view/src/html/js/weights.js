// The numbers of one map: a head's weights as they are in the file, or computed from those of several.

/// Where row `i` starts among the cells: row `r` holds `offset + r + 1` of them.
const rowStart = (i) => i * (offset + 1) + (i * (i - 1)) / 2;
/// How many keys query `i` sees.
const rowLength = (i) => offset + i + 1;
const CELLS = rowStart(queries);
/// Whether the file has all weights of a row. It keeps only the largest, if at all, so that it has all of a short one.
const isComplete = (i) => kept === null || rowLength(i) <= kept;
/// The most that a weight can be that the file leaves out of row `i`: the smallest that it has of the row.
function mostLeftOut({ codes, levels }, i) {
  let least = levels;
  for (let at = rowStart(i); at < rowStart(i) + rowLength(i); at++) if (codes[at] > 0 && codes[at] < least) least = codes[at];
  return tables(levels).numbers[least] + tables(levels).errors[least];
}

/// Numbers as codes 0 to `levels`, or also the negative ones; `levels + 1` stands for NaN. A code `c` is the number
/// `unit · (c / levels)^(3/2)`. If the numbers were computed, `exactly` has them and their errors.
class Weights {
  constructor(codes, levels, { unit = 1, signed = false, weighted = false, exactly = null } = {}) {
    Object.assign(this, { codes, levels, unit, signed, weighted, exactly });
    // The largest code of each row, with and without the first key: one of them ends the row's colors.
    this.rowMax = new Uint16Array(queries);
    this.rowMaxLater = new Uint16Array(queries);
    this.places = this.decimals();
    for (let i = 0; i < queries; i++) {
      const start = rowStart(i);
      let later = 0;
      for (let j = start + 1; j < start + rowLength(i); j++) {
        const size = codes[j] < 0 ? -codes[j] : codes[j];
        if (size > later && size <= levels) later = size;
      }
      this.rowMaxLater[i] = later;
      const first = Math.abs(codes[start]);
      this.rowMax[i] = first <= levels ? Math.max(later, first) : later;
    }
  }

  /// How many decimals a short number has: as many as the largest error allows, and three at most, fewer for large units.
  decimals() {
    let worst = tables(this.levels).errors[this.levels];
    if (this.exactly) worst = this.exactly[1].reduce((most, error) => Math.max(most, error || 0), 0);
    const certain = worst > 0 ? Math.floor(-Math.log10(worst)) : 3;
    return Math.max(0, Math.min(3, certain, 4 - Math.ceil(Math.log10(this.unit * 1.001))));
  }

  code(i, j) {
    return this.codes[rowStart(i) + j];
  }

  /// A number and the most by which it can differ from the tensor's; `dropped` if the file keeps only the largest of
  /// a row and this is not one of them. The writer rounds `levels · w^(2/3)`, so the error is half a step times the
  /// slope of `s^(3/2)`.
  value(i, j) {
    const { signed, places } = this;
    const code = this.code(i, j);
    if (code > this.levels) return { weight: NaN, error: NaN };
    if (this.exactly) {
      const [weight, error] = this.exactly.map((numbers) => numbers[rowStart(i) + j]);
      return error < 0 ? { weight: 0, error: 0, dropped: true } : { weight, error, signed, places };
    }
    if (code === 0 && !isComplete(i)) return { weight: 0, error: 0, dropped: true };
    return { weight: tables(this.levels).numbers[code], error: tables(this.levels).errors[code], places };
  }
}

/// The tables of numbers, which the pages of other texts share.
const known = (showPage.tables ??= new Map());
/// The number and the error that each code stands for.
function tables(levels) {
  if (!known.has(levels)) {
    const half = 0.5 / levels;
    const of = (one) => Float64Array.from({ length: levels + 2 }, (_, c) => (c > levels ? NaN : one(c / levels)));
    known.set(levels, { numbers: of((s) => s * Math.sqrt(s)), errors: of((s) => 1.5 * half * Math.sqrt(s + half)) });
  }
  return known.get(levels);
}

async function decode({ block, levels }) {
  let bytes = fromBase64(block.textContent);
  if (packed) {
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  }
  if (levels < 256) return new Weights(bytes, levels);
  // Two bytes per code: all high bytes, then all low ones.
  const codes = new Uint16Array(bytes.length / 2);
  for (let i = 0; i < codes.length; i++) codes[i] = (bytes[i] << 8) | bytes[codes.length + i];
  return new Weights(codes, levels);
}

const KEPT = 8; // maps: switching between a few is instant, and memory use stays small
const cache = new Map();

function cached(key, keep, make) {
  const found = cache.get(key);
  if (found) return found;
  const weights = make();
  if (keep) {
    cache.set(key, weights);
    if (cache.size > KEPT) cache.delete(cache.keys().next().value);
  }
  return weights;
}

/// The weights of one source in one run, from the cache or decoded; `keep` is for those on the screen.
function weightsOf(source, run, keep) {
  return cached(`${source.index} ${run}`, keep, () => decode(source.runs[run]));
}

/// The map of some sources: their mean in a run, 0 or 1, or how it differs from the first to the second; times the
/// norms of the values, if `weighted`.
function sheetOf(indices, run, weighted, keep) {
  if (indices.length === 1 && !weighted && run !== "difference") return weightsOf(sources[indices[0]], run, keep);
  return cached(`${indices} ${run} ${weighted}`, keep, () => compute(indices, run, weighted));
}

/// Sums in place, source by source, so that the memory does not grow with their number.
async function compute(indices, run, weighted) {
  const numbers = new Float32Array(CELLS);
  const errors = new Float32Array(CELLS);
  const seen = kept === null ? null : new Uint8Array(CELLS);
  const terms = run === "difference" ? [[1, 1], [0, -1]] : [[run, 1]];
  for (const index of indices) {
    for (const [of, sign] of terms) {
      const weights = await weightsOf(sources[index], of, false);
      const norms = weighted ? normsOf(sources[index], of) : undefined;
      add(weights, sign / indices.length, norms, numbers, errors, seen);
    }
  }
  if (seen) for (let at = 0; at < CELLS; at++) if (!seen[at]) errors[at] = -1;
  const signed = run === "difference";
  const unit = weighted ? largestNorm() : 1;
  const levels = signed ? 32766 : 65534;
  const codes = signed ? new Int16Array(CELLS) : new Uint16Array(CELLS);
  for (let at = 0; at < CELLS; at++) {
    const root = Math.cbrt(numbers[at] / unit);
    const code = Math.min(levels, Math.round(root * root * levels));
    codes[at] = Number.isNaN(code) ? levels + 1 : root < 0 ? -code : code;
  }
  return new Weights(codes, levels, { unit, signed, weighted, exactly: [numbers, errors] });
}

function add(weights, factor, norms, numbers, errors, seen) {
  const { codes, levels } = weights;
  const table = tables(levels);
  const size = Math.abs(factor);
  for (let i = 0; i < queries; i++) {
    const start = rowStart(i);
    const end = rowLength(i);
    const complete = isComplete(i);
    const errorOfNone = complete ? table.errors[0] : mostLeftOut(weights, i);
    for (let j = 0; j < end; j++) {
      const code = codes[start + j];
      const norm = norms ? norms[j] : 1;
      numbers[start + j] += factor * norm * table.numbers[code];
      errors[start + j] += size * norm * (code === 0 ? errorOfNone : table.errors[code]);
      if (seen && (complete || code > 0)) seen[start + j] = 1;
    }
  }
}

// --- numbers as text -------------------------------------------------------------------------------

const sign = (text, { weight, signed }) => (weight < 0 ? `−${text}` : signed && +text > 0 ? `+${text}` : text);

/// A short number, with as many decimals as all of its map: "0.530"; "< 0.001" if that shows none of its digits.
function rounded(value) {
  const { weight, error, signed, dropped, places } = value;
  if (dropped) return "–";
  if (Number.isNaN(weight)) return "NaN";
  const size = Math.abs(weight);
  // An error of 3 leaves the tens.
  const step = 10 ** Math.max(0, Math.ceil(Math.log10(error || 1)));
  const text = step > 1 ? String(Math.round(size / step) * step) : size.toFixed(places);
  if (+text > 0) return sign(text, value);
  return size + error > 0 ? `${signed ? "|change| " : ""}< ${(10 ** -places).toFixed(places)}` : text;
}

/// A number and its error: "0.530 ± 0.004". The error covers the rounding of the printed number.
function exact(value) {
  const { weight, error, dropped } = value;
  if (dropped) return `not among the ${kept} largest of its row`;
  if (Number.isNaN(weight)) return "not a number";
  if (error <= 0) return String(weight);
  const places = Math.max(0, Math.ceil(-Math.log10(error)));
  const unit = 10 ** -places;
  const bound = Math.ceil(error / unit + 0.5) * unit;
  return `${sign(Math.abs(weight).toFixed(places), value)} ± ${bound.toFixed(places)}`;
}

/// A probability; JSON has no NaN, so that one comes as null.
const percent = (p) => p === null ? "NaN" : p > 0 && p < 0.0005 ? "< 0.1 %" : `${(100 * p).toFixed(1)} %`;
