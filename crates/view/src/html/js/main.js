// Theme, the controls of the view, keys, and the start.

// --- theme -----------------------------------------------------------------------------------------

const toggleTheme = () => update({ theme: isDark() ? "light" : "dark" });
byId("theme").addEventListener("click", toggleTheme);
systemDark.addEventListener("change", () => changed(["theme"]), { signal });

// --- the runs --------------------------------------------------------------------------------------

const RUNS = { first: runs[0], second: runs[1], both: "both", difference: "difference" };
const RUN_MEANINGS = {
  first: `Show the run ${runs[0]}`,
  second: `Show the run ${runs[1]}`,
  both: `Show ${runs[0]} beside ${runs[1]}`,
  difference: `Show how much weight ${runs[1]} has more or less than ${runs[0]}`,
};
const runButtons = ALLOWED.run.map((value) => {
  const [label, button, name] = ["label", "input", "span"].map((tag) => document.createElement(tag));
  Object.assign(button, { type: "radio", name: "run", id: `run-${value}`, value });
  button.addEventListener("change", () => update({ run: value }));
  name.textContent = RUNS[value];
  label.title = `${RUN_MEANINGS[value]} (r)`;
  label.append(button, name);
  byId("runs").append(label);
  return button;
});
byId("runs").hidden = !compared;
on("run", () => {
  for (const button of runButtons) button.checked = button.value === state.run;
  root.dataset.run = state.run;
});
const nextRun = () => update({ run: ALLOWED.run[(ALLOWED.run.indexOf(state.run) + 1) % ALLOWED.run.length] });

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
const weighted = byId("weighted");
weighted.parentElement.hidden = !hasNorms;
weighted.addEventListener("change", () => update({ weighted: weighted.checked }));
on("weights scale first weighted theme", () => {
  scaleMenu.value = state.scale;
  hideFirst.checked = !state.first;
  weighted.checked = state.weighted;
  const sheet = sheets[0];
  if (!sheet) return;
  byId("no-norms").hidden = !state.weighted || sheet.weighted;
  const end = state.scale === "row" ? "row's largest" : short(sheet.unit);
  const byRow = state.scale === "row";
  byId("legend-start").textContent = !sheet.signed ? "0" : byRow ? "less" : `−${end}`;
  byId("legend-end").textContent = !sheet.signed ? end : byRow ? "more (row's largest)" : `+${end}`;
  byId("legend").style.backgroundImage = gradient(sheet.signed);
});

// --- keys that work everywhere ---------------------------------------------------------------------

const present = () => update({ presents: !state.presents });
byId("present").addEventListener("click", present);
on("presents", () => {
  root.classList.toggle("presenting", state.presents);
  byId("present").setAttribute("aria-pressed", state.presents);
  byId("present").textContent = state.presents ? "All controls" : "Present";
});

const help = byId("help");
byId("help-button").addEventListener("click", () => help.showModal());

byId("previous-head").addEventListener("click", () => stepHead(-1));
byId("following-head").addEventListener("click", () => stepHead(1));

for (const [kind, there] of [["compared", compared], ["weighted", hasNorms], ["stepped", prompt !== null]]) {
  help.querySelector(`.${kind}`).hidden = !there;
}

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
  a: () => sources[state.head].layer !== null && chooseLayer(sources[state.head].layer),
  r: nextRun,
  v: () => hasNorms && update({ weighted: !state.weighted }),
  ",": () => stepBy(-1),
  ".": () => stepBy(1),
  t: toggleTheme,
  g: () => openGuide(),
  p: present,
  Escape: () => update(state.presents ? { presents: false } : { token: null, cell: null, pinned: null }),
};
addEventListener("keydown", (event) => {
  // Keys that compose a letter belong to it.
  if (event.isComposing) return;
  const typing = event.target.matches?.("input:not([type=range], [type=checkbox], [type=radio]), select, textarea");
  if (typing && event.key === "Escape") return event.target.blur();
  if (typing || help.open || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
}, { signal });

// --- start -----------------------------------------------------------------------------------------

const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
document.title = `${title} – attention`;
byId("title").textContent = kept === null ? title : `${title}: the ${kept} largest weights of each row`;
byId("about").textContent = `${count(tokens.length, "token")}, ${count(heads.length, "head")}`;
byId("caption").textContent = byId("caption").title = caption;
byId("caption").hidden = caption === "";

// For programs that drive this page: what it shows now.
on("weights", () => (root.dataset.shown = chosen().map((index) => sources[index].name).join("+")));
on("theme", () => {
  root.style.colorScheme = state.theme ?? "";
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  paintSigns();
});
// Listeners run in the order in which they came; the colors go first.
listeners.unshift(listeners.pop());
addEventListener("hashchange", () => update(remembered()), { signal });
Object.assign(state, remembered(choices));
// For the first drawing, everything has changed.
changed(Object.keys(state));
const ready = loadHead().then(() => performance.mark("ready"));
// For the page of another text, which takes the place of this one.
if (choices !== undefined) {
  drawEarly();
  rememberSoon();
}
return { ready, state, update, on, sources, tokens, chosen, choiceText, address, rememberSoon, copyText };
