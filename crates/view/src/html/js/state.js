// The user's choices, in one place: views read them, and hear when they change.

const state = {
  head: 0, // index into `heads`
  token: tokens.length - 1, // the chosen position; null for none
  cell: null, // { query, key } under the pointer or the cursor
  pinned: null, // the cell that was clicked: shown again when the pointer leaves
  view: "map",
  scale: "row",
  first: true, // whether the first token is shown
  sort: "layer",
  found: new Set(), // positions that match the search
};
/// The decoded weights of `state.head`; null until they are ready.
let current = null;

const listeners = [];
/// Calls `run` after any of `keys` changes; "weights" changes when another head's weights arrive.
const on = (keys, run) => listeners.push({ keys: keys.split(" "), run });

function changed(keys) {
  for (const { keys: wanted, run } of listeners) if (wanted.some((key) => keys.includes(key))) run();
}

function update(change) {
  const keys = Object.keys(change).filter((key) => state[key] !== change[key]);
  Object.assign(state, change);
  if (keys.length === 0) return;
  changed(keys);
  if (keys.includes("head")) loadHead();
  rememberSoon();
}

async function loadHead() {
  const index = state.head;
  const weights = await weightsOf(heads[index], true);
  // The user may have chosen another head in the meantime.
  if (index !== state.head) return;
  current = weights;
  changed(["weights"]);
}

// --- the choices in the address, so that a link or a reload restores them --------------------------

const REMEMBERED = ["view", "scale", "sort"];
let timer = 0;

function rememberSoon() {
  clearTimeout(timer);
  // Browsers limit how often an address may change.
  timer = setTimeout(() => {
    const choice = new URLSearchParams({ head: heads[state.head].name });
    if (state.token !== null) choice.set("token", state.token);
    for (const key of REMEMBERED) choice.set(key, state[key]);
    if (!state.first) choice.set("first", "hidden");
    history.replaceState(null, "", `#${choice}`);
  }, 400);
}

/// The part of the address that is valid for this page. Addresses can come from anywhere.
function remembered(allowed) {
  const choice = new URLSearchParams(location.hash.slice(1));
  const change = {};
  const head = heads.findIndex(({ name }) => name === choice.get("head"));
  if (head >= 0) change.head = head;
  if (/^\d+$/.test(choice.get("token")) && +choice.get("token") < tokens.length) {
    change.token = +choice.get("token");
  }
  for (const key of REMEMBERED) {
    if (allowed[key].includes(choice.get(key))) change[key] = choice.get(key);
  }
  if (choice.get("first") === "hidden") change.first = false;
  return change;
}
