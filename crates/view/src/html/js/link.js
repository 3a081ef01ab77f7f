// The choices as text: in the address, so that a link or a reload restores them, and for a page that takes the place of this one.

/// What has a fixed set of values, and those; the views add theirs.
const ALLOWED = {
  view: ["map", "lines"],
  scale: ["weight", "row"],
  run: compared ? ["first", "second", "both", "difference"] : ["first"],
  theme: ["dark", "light"],
  as: ["both", "query", "key"],
};
const DEFAULT = { ...state };
let timer = 0;

function rememberSoon() {
  clearTimeout(timer);
  // Browsers limit how often an address may change.
  timer = setTimeout(remember, 400);
}

/// The choices, in the form of an address.
function choiceText() {
  const choice = new URLSearchParams({ head: chosen().map((index) => sources[index].name).join(" ") });
  choice.set("token", state.token ?? "none");
  for (const key of Object.keys(ALLOWED)) if (state[key] !== null && state[key] !== DEFAULT[key]) choice.set(key, state[key]);
  for (const key of ["view", "scale", "sort"]) choice.set(key, state[key]);
  if (state.weighted) choice.set("norms", "yes");
  if (!state.first) choice.set("first", "hidden");
  if (state.step !== null) choice.set("step", state.step);
  if (state.presents) choice.set("present", "yes");
  // The visible part in cells, so that another window shows the same part.
  if (!isWhole()) choice.set("place", [viewport.key, viewport.query, cellsIn(plot.width)].map((n) => n.toFixed(2)).join(" "));
  return choice.toString();
}

/// What the address ends with: the choices, and what the page adds to them.
const address = () => `#${[choiceText(), addition()].filter(Boolean).join("&")}`;

function remember() {
  if (signal?.aborted) return;
  try {
    history.replaceState(null, "", address());
  } catch {
    // A frame of a notebook has no address of its own.
  }
}

/// The part of some choices, those in the address as a rule, that is valid for this page. They can come from anywhere.
function remembered(text = location.hash.slice(1)) {
  const choice = new URLSearchParams(text);
  const change = {};
  const names = (choice.get("head") ?? "").split(" ");
  const indices = sources.filter(({ name }) => names.includes(name)).map(({ index }) => index);
  if (indices.length > 0) [change.head, change.more] = [indices[0], indices.slice(1)];
  const whole = (key, from, to) => {
    const text = choice.get(key) ?? "";
    return /^\d{1,7}$/.test(text) && +text >= from && +text <= to ? +text : undefined;
  };
  const token = whole("token", 0, tokens.length - 1);
  if (token !== undefined) change.token = token;
  if (choice.get("token") === "none") change.token = null;
  for (const [key, values] of Object.entries(ALLOWED)) {
    if (values.includes(choice.get(key))) change[key] = choice.get(key);
  }
  if (choice.get("first") === "hidden") change.first = false;
  if (choice.get("present") === "yes") change.presents = true;
  if (choice.get("norms") === "yes" && hasNorms) change.weighted = true;
  const step = prompt === null ? undefined : whole("step", prompt, tokens.length);
  if (step !== undefined) change.step = step;
  // Tokens of later steps are not there yet.
  const last = (change.step ?? shownKeys()) - 1;
  if ((change.token ?? state.token ?? 0) > last) change.token = last;
  const place = (choice.get("place") ?? "").split(" ").map(Number);
  if (place.length === 3 && place.every((n) => Number.isFinite(n) && n >= 0) && place[2] > 0) showPlace(place);
  return change;
}
