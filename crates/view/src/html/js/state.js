// The user's choices, in one place: views read them, and hear when they change.

/// The head that the page opens on: the one that changed most, or the most focused one.
const opens = readOne("opens");

const state = {
  head: Math.max(0, heads.findIndex(({ name }) => name === opens)), // index into `sources`
  more: [], // further ones: the map then shows the mean of all
  run: compared ? "both" : "first",
  weighted: false, // whether weights are multiplied by the norms of the values
  token: tokens.length - 1, // the chosen position; null for none
  feature: null, // the feature that colors the text; null for attention
  cell: null, // { query, key } under the pointer or the cursor
  pinned: null, // the cell that was clicked: shown again when the pointer leaves
  view: "map",
  scale: "weight",
  first: true, // whether the first token is shown
  sort: "layer",
  tint: compared ? "change" : "none", // the number that colors the heads
  step: null, // how many tokens are shown; null for all
  found: new Set(), // positions that match the search
  as: "both", // whether those are marked as queries, keys, or both
  theme: null, // "dark" or "light"; null follows the system
  presents: false, // whether the map stands alone
};
/// What the lists, the lines and the text show; null until it is ready. With two runs, it may be their difference.
let current = null;
/// What the map shows: one sheet, or those of both runs side by side.
let sheets = [];
/// What the readout tells beside `current`: each run's numbers, or the weights before they were multiplied.
let beside = [];

const listeners = [];
/// Calls `run` after any of `keys` changes; "weights" changes when other weights arrive.
const on = (keys, run) => listeners.push({ keys: keys.split(" "), run });

function changed(keys) {
  if (signal?.aborted) return;
  for (const { keys: wanted, run } of listeners) if (wanted.some((key) => keys.includes(key))) run();
}

const LOADED = ["head", "more", "run", "weighted"];

function update(change) {
  const keys = Object.keys(change).filter((key) => state[key] !== change[key]);
  Object.assign(state, change);
  if (keys.length === 0) return;
  changed(keys);
  if (keys.some((key) => LOADED.includes(key))) loadHead();
  rememberSoon();
}

/// The indices of all sources that the map shows the mean of.
const chosen = () => [state.head, ...state.more].sort((a, b) => a - b);
const showsBoth = () => state.run === "both";
const showsChange = () => state.run === "both" || state.run === "difference";
/// The run whose weights are shown where only one fits; 0 also for both.
const shownRun = () => (state.run === "second" ? 1 : 0);
const shownRuns = () => (showsChange() ? [0, 1] : [shownRun()]);
/// The kind of a head in the shown run, or both if they differ; "" for a map that is no head.
const kindOf = (source) => [...new Set(shownRuns().map((run) => source.runs[run].kind ?? ""))].join(" → ");
/// What became of a head's output, if a shown run does not use it.
const silencedIn = (source) => shownRuns().map((run) => source.runs[run].silenced).find(Boolean);
/// Whether the map of some sources shows weights times norms: if it should, and if the file has all of these.
const isWeighted = (shown) => state.weighted && haveNorms(shown, shownRuns());
/// How many queries and keys are shown.
const shownKeys = () => state.step ?? tokens.length;
const shownRows = () => Math.max(0, shownKeys() - offset);

let loads = 0;
async function loadHead() {
  const load = ++loads;
  const weighted = isWeighted(chosen().map((index) => sources[index]));
  const get = (run, times = weighted) => sheetOf(chosen(), run, times, true);
  const wanted = showsChange()
    ? [get("difference"), get(0), get(1)]
    : [get(shownRun()), ...(weighted ? [get(shownRun(), false)] : [])];
  const loaded = await Promise.all(wanted);
  // The user may have chosen another head in the meantime.
  if (load !== loads) return;
  [current, ...beside] = loaded;
  sheets = showsBoth() ? beside : [current];
  changed(["weights"]);
}
