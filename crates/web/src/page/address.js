// The state of the page in its address, beside the choices that every page has there: text, changes, settings, way and lesson. It
// follows the #, which browsers send nowhere. Addresses come from anywhere: what does not fit is ignored.

/// The fields of settings, by their names in the address.
const FIELDS = { temperature: "live-temperature", "top-k": "live-top-k", "top-p": "live-top-p", seed: "live-seed" };
/// The most letters of a text that are read from an address, and the most changes.
const [MOST_LETTERS, MOST_CHANGES] = [100_000, 64];
/// The form of a change: a word or two, and what it acts on. The model says whether it has that.
const CHANGE = /^[a-z][a-z -]{0,30} [\w.:*=,+-]{1,60}$/;
/// A number as its field takes it; anything else would be told to the console.
const NUMBER = /^(-?\d{1,20}(\.\d{1,20})?)?$/;
/// What the fields hold if the address says nothing of them.
const OWN_SETTINGS = Object.fromEntries(Object.entries(FIELDS).map(([name, id]) => [name, byId(id).value]));

/// Whether the newest question is what an address asks for.
let isFromAddress = false;
/// The address that the next question's picture takes its choices from; null for those of the page before.
let arriving = null;

/// What the address says besides the page's choices.
function addressed() {
  const said = new URLSearchParams({ text: byId("live-text").value });
  for (const change of wanted.changes) said.append("change", change);
  for (const [name, id] of Object.entries(FIELDS)) if (byId(id).value !== OWN_SETTINGS[name]) said.set(name, byId(id).value);
  if (!byId("live-compare").checked) said.set("compare", "no");
  if (isWayOpen()) said.set("way", "open");
  if (lesson !== null) said.set("lesson", lesson + 1);
  return said.toString();
}

/// Takes over the state in an address, and asks for it. Returns whether there is one.
function restore(address) {
  const said = new URLSearchParams(address);
  const number = /^\d{1,3}$/.test(said.get("lesson") ?? "") ? said.get("lesson") - 1 : -1;
  const hasLesson = number in texts.lessons;
  if (!said.has("text")) {
    // A lesson by itself sets everything up, and the way opens beside the page as it is.
    const opensWay = said.get("way") === "open";
    if (hasLesson) openLesson(number);
    else if (opensWay && !isWayOpen()) toggleWay(true);
    return hasLesson || opensWay;
  }
  halt();
  [wanted.ids, wanted.prompt] = [[], null];
  wanted.changes = [...new Set(said.getAll("change"))].filter((change) => CHANGE.test(change)).slice(0, MOST_CHANGES);
  byId("live-text").value = said.get("text").slice(0, MOST_LETTERS);
  for (const [name, id] of Object.entries(FIELDS)) putSetting(id, said.get(name) ?? OWN_SETTINGS[name], OWN_SETTINGS[name]);
  byId("live-compare").checked = said.get("compare") !== "no";
  fitText();
  showChanges();
  [isFromAddress, trouble] = [true, ""];
  if (hasLesson) resumeLesson(number);
  else if (lesson !== null) hideLessons();
  if ((said.get("way") === "open") !== isWayOpen()) putWay(!isWayOpen());
  askAnew();
  return true;
}

/// Puts a value into a field of settings, or the other one if that is none.
function putSetting(id, value, other) {
  const field = byId(id);
  field.value = NUMBER.test(value) ? value : other;
  if (!field.validity.valid) field.value = other;
  const output = byId(`${id}-shown`);
  if (output) output.textContent = field.value;
}

/// Where the model refuses what an address asks for, leaves out its changes, then its text. Returns whether it did.
function fallBack(error) {
  if (!isFromAddress) return false;
  if (wanted.changes.length > 0) wanted.changes = [];
  else {
    [wanted.ids, wanted.prompt, wanted.changes, isFromAddress] = [first.ids, first.prompt, [...first.changes], false];
    byId("live-text").value = first.text;
  }
  showChanges();
  trouble = `Not all that the address asks for is shown: ${error}`;
  askAnew();
  return true;
}

addEventListener("hashchange", () => {
  arriving = location.hash.slice(1);
  if (!restore(arriving)) arriving = null;
});

// A frame of a notebook has no address of its own.
byId("live-link").hidden = !["http:", "https:", "file:"].includes(location.protocol);
byId("live-link").addEventListener("click", async () => {
  if (!page) return;
  const link = new URL(location.href);
  link.hash = page.address();
  const isCopied = await page.copyText(link.href);
  tell(isCopied ? "The link is copied: it opens this page as you see it." : "The browser did not copy the link: take it from the address bar.", !isCopied);
});
