// The search: over the text as it is, whatever tokens it is cut into.

const search = byId("search");
/// Letter by letter, so that the context of a letter changes nothing.
const fold = (text) => Array.from(text, (letter) => letter.toLowerCase()).join("");
const folded = texts.map(fold);
const joined = folded.join("");
/// The token that each place of `joined` lies in.
const tokenAt = folded.flatMap((text, position) => Array(text.length).fill(position));
let places = []; // the matches in order: their first tokens

/// The first and the last token of each match.
function matches(sought) {
  const position = /^#(\d{1,7})$/.exec(sought)?.[1];
  if (position !== undefined && +position < tokens.length) return [[+position, +position]];
  const ranges = [];
  for (let at = joined.indexOf(sought); at >= 0; at = joined.indexOf(sought, at + sought.length)) {
    ranges.push([tokenAt[at], tokenAt[at + sought.length - 1]]);
  }
  return ranges;
}

function find() {
  // A space may also be typed as the page shows it.
  const sought = fold(search.value);
  let ranges = sought === "" ? [] : matches(sought);
  if (ranges.length === 0 && sought.includes("·")) ranges = matches(sought.replaceAll("·", " "));
  places = [...new Set(ranges.map(([from]) => from))];
  const found = new Set();
  for (const [from, to] of ranges) for (let at = from; at <= to; at++) found.add(at);
  update({ found });
  tellFound();
}

search.addEventListener("input", find);
search.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || places.length === 0) return;
  const next = event.shiftKey
    ? (places.findLast((p) => p < (state.token ?? 0)) ?? places.at(-1))
    : (places.find((p) => p > (state.token ?? -1)) ?? places[0]);
  stop(); // the next step would choose another token
  if (next >= shownKeys()) update({ step: null });
  chooseToken(next);
  reveal({ query: Math.max(0, next - offset), key: next });
  tellFound();
});

function tellFound() {
  const at = places.indexOf(state.token) + 1;
  const none = search.value === "" ? "" : "not found";
  byId("found").textContent = places.length === 0 ? none : at ? `${at} of ${places.length}` : `${places.length} found`;
}

const asMenu = byId("as");
asMenu.addEventListener("change", () => update({ as: asMenu.value }));
on("as", () => (asMenu.value = state.as));
