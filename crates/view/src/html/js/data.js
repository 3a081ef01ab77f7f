// The page's data: tokens, heads with their summaries, predictions, and what a page may have beside them.
//
// `blocks(kind)` has the blocks of a kind, whose `textContent` is JSON as a rule; `signal` ends the page's listeners when
// another page takes its place; `choices` are those of the page before, if they are not in the address, which `addition` may add to. Weights are base64
// of codes, compressed unless the page is live, one block per head and run. The page decodes a head when it has to draw it
// and forgets it when others come; only its text stays.

const byId = (id) => document.getElementById(id);
const read = (block) => JSON.parse(block.textContent);
/// What a page has one block of.
const readOne = (kind) => read(blocks(kind)[0]);

const { title, caption, tokens, texts, queries, packed, top: kept, palette, prompt, next: afterLast, kinds, ...about } = readOne("header");
/// The token after a position: the last one's is that which the model never read, or null.
const tokenAfter = (position) => tokens[position + 1] ?? afterLast;
/// The names of the runs. A page of one run needs no name for it.
const runs = about.runs.length > 0 ? about.runs : [""];
const compared = runs.length === 2;
/// The position of the first query: the queries are the last keys.
const offset = tokens.length - queries;

/// The predictions of each run, one per query; an empty list for a run without.
const predictions = runs.map(() => []);
for (const { run, data } of blocks("predictions").map(read)) predictions[run] = data;

/// The heads in the first run's order: { layer, head, name, index, runs: [{ block, levels, summary, kind, silenced }] }.
const heads = [];
/// Maps that are no heads: { label, meaning, name, index, runs }.
const maps = [];
/// All that can be chosen: a map's index follows those of the heads.
let sources = [];
{
  const weights = [...blocks("weights")];
  const written = blocks("layer").flatMap((block) => {
    const { layer, run, heads } = read(block);
    return heads.map((head) => ({ layer, run, ...head, block: weights.shift() }));
  });
  const known = new Map();
  for (const { run, layer, head, ...rest } of written.sort((a, b) => a.run - b.run)) {
    const name = `${layer}.${head}`;
    if (!known.has(name)) {
      known.set(name, { layer, head, name, label: `Layer ${layer}, head ${head}`, runs: [] });
      heads.push(known.get(name));
    }
    known.get(name).runs[run] = rest;
  }
  const mapWeights = [...blocks("map-weights")];
  for (const { run, name: label, meaning, levels } of blocks("map").map(read)) {
    let map = maps.find((other) => other.label === label && !other.runs[run]);
    if (!map) maps.push((map = { layer: null, label, meaning, name: `m${maps.length}`, runs: [] }));
    map.runs[run] = { block: mapWeights.shift(), levels };
  }
  sources = [...heads, ...maps];
  for (const [index, source] of sources.entries()) source.index = index;
}

/// Base64 of little-endian numbers as a typed array of `Kind`.
function numbersFrom(text, Kind) {
  const bytes = fromBase64(text);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const get = Kind === Float32Array ? "getFloat32" : "getInt16";
  const size = Kind.BYTES_PER_ELEMENT;
  return Kind.from({ length: bytes.length / size }, (_, i) => view[get](i * size, true));
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/// A function that reads blocks of a kind, a list of heads each, when it is first asked for one of them.
function lazily(kind) {
  let known = null;
  return (source, run) => {
    known ??= new Map(blocks(kind).flatMap(read).map((one) => [`${one.run} ${one.layer}.${one.head}`, one]));
    return known.get(`${run} ${source.name}`);
  };
}
const hasNorms = blocks("norms").length > 0;
const hasVectors = blocks("vectors").length > 0;
const packedNorms = lazily("norms");
const packedVectors = lazily("vectors");

/// ‖v_j W_O‖ of each key, or undefined if the file does not say.
function normsOf(source, run) {
  const packed = packedNorms(source, run);
  if (packed && !packed.numbers) packed.numbers = numbersFrom(packed.norms, Float32Array);
  return packed?.numbers;
}

/// Whether the file has the norms of some sources in each run of a list.
const haveNorms = (all, inRuns) => hasNorms && all.every((source) => inRuns.every((run) => normsOf(source, run)));

let largest = 0;
/// The largest norm in the file: the end of the scale of weight times norm, so that heads can be compared.
function largestNorm() {
  if (largest === 0) {
    for (const head of heads) for (const run of runs.keys()) for (const n of normsOf(head, run) ?? []) largest = Math.max(largest, n);
  }
  return largest || 1;
}
