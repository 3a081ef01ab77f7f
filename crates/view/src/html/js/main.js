// Search, theme, keys, and the start.

const search = byId("search");
let places = []; // what was found, in order

search.addEventListener("input", () => {
  // Tokens are shown with visible spaces, so search for those.
  const sought = search.value.replaceAll(" ", "·").toLowerCase();
  const position = /^#(\d+)$/.exec(sought)?.[1];
  const matches = (text, at) => (position ? at === +position : text.toLowerCase().includes(sought));
  places = sought === "" ? [] : [...tokens.keys()].filter((at) => matches(tokens[at], at));
  update({ found: new Set(places) });
  tellFound();
});
search.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || places.length === 0) return;
  const at = places.indexOf(state.token);
  const next = event.shiftKey
    ? (places.findLast((p) => p < (state.token ?? 0)) ?? places.at(-1))
    : (places.find((p) => p > (state.token ?? -1) && at !== p) ?? places[0]);
  chooseToken(next);
  if (next >= offset) reveal({ query: next - offset, key: next });
  tellFound();
});

function tellFound() {
  const at = places.indexOf(state.token) + 1;
  const none = search.value === "" ? "" : "not found";
  byId("found").textContent = places.length === 0 ? none : at ? `${at} of ${places.length}` : `${places.length} found`;
}

// --- theme -----------------------------------------------------------------------------------------

const systemDark = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;
const isDark = () => (root.style.colorScheme || (systemDark.matches ? "dark" : "light")) === "dark";

function showTheme() {
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  changed(["theme"]);
}

function toggleTheme() {
  root.style.colorScheme = isDark() ? "light" : "dark";
  showTheme();
}
byId("theme").addEventListener("click", toggleTheme);
systemDark.addEventListener("change", showTheme);

// --- the controls of the view ----------------------------------------------------------------------

const VIEWS = ["map", "lines"];
for (const view of VIEWS) byId(`${view}-tab`).addEventListener("click", () => update({ view }));
byId("views").addEventListener("keydown", (event) => {
  if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
  update({ view: VIEWS[1 - VIEWS.indexOf(state.view)] });
  byId(`${state.view}-tab`).focus();
});
on("view", () => {
  for (const view of VIEWS) {
    const tab = byId(`${view}-tab`);
    tab.setAttribute("aria-selected", view === state.view);
    tab.tabIndex = view === state.view ? 0 : -1;
    byId(`${view}-panel`).hidden = view !== state.view;
  }
});

const scaleMenu = byId("scale");
scaleMenu.addEventListener("change", () => update({ scale: scaleMenu.value }));
const hideFirst = byId("hide-first");
hideFirst.addEventListener("change", () => update({ first: !hideFirst.checked }));
on("scale first", () => {
  scaleMenu.value = state.scale;
  hideFirst.checked = !state.first;
  byId("legend-end").textContent = state.scale === "row" ? "row's largest" : "1";
});
byId("legend").style.backgroundImage = `linear-gradient(to right, ${palette.map((c) => `rgb(${c})`)})`;

// --- keys that work everywhere ---------------------------------------------------------------------

const help = byId("help");
byId("help-button").addEventListener("click", () => help.showModal());

const KEYS = {
  "/": () => search.focus(),
  "?": () => help.showModal(),
  "[": () => stepHead(-1),
  "]": () => stepHead(1),
  j: () => stepToken(1),
  k: () => stepToken(-1),
  m: () => update({ view: "map" }),
  l: () => update({ view: "lines" }),
  s: () => update({ scale: state.scale === "row" ? "weight" : "row" }),
  f: () => update({ first: !state.first }),
  t: toggleTheme,
  Escape: () => update({ token: null, cell: null, pinned: null }),
};
addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input[type=search], select");
  if (typing && event.key === "Escape") return event.target.blur();
  if (typing || help.open || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});

// --- start -----------------------------------------------------------------------------------------

const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
document.title = `${title} – attention`;
byId("title").textContent = kept === null ? title : `${title}: the ${kept} largest weights of each row`;
byId("about").textContent = `${count(tokens.length, "token")}, ${count(heads.length, "head")}`;
byId("caption").textContent = caption;
byId("caption").hidden = caption === "";

// For programs that drive this page: the head that it shows now.
on("weights", () => (root.dataset.shown = heads[state.head].name));
addEventListener("hashchange", () => update(remembered(ALLOWED)));
const ALLOWED = { view: VIEWS, scale: ["row", "weight"], sort: [...sortMenu.options].map(({ value }) => value) };
Object.assign(state, remembered(ALLOWED));
// For the first drawing, everything has changed.
changed(Object.keys(state));
showTheme();
loadHead().then(() => performance.mark("ready"));
