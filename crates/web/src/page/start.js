// The keys that a page without a model does not have, and the start.

const LIVE_KEYS = { o: switchHeads, w: switchWay, n: () => byId("live-next").click() };
addEventListener("keydown", (event) => {
  const isTyping = event.target.matches?.("input:not([type=range], [type=checkbox], [type=radio]), select, textarea");
  if (isTyping || event.isComposing || event.ctrlKey || event.metaKey || event.altKey || byId("help").open || !page) return;
  if (!Object.hasOwn(LIVE_KEYS, event.key)) return;
  event.preventDefault();
  LIVE_KEYS[event.key]();
});
for (const [key, meaning] of [["o", "switch the chosen heads off, or on again"], ["w", "the way of the chosen token; ↑ ↓ go from stage to stage"], ["n", "draw the next token"]]) {
  const line = make("div");
  line.append(make("dt", "", key), make("dd", "", meaning));
  byId("help").querySelector("dl").append(line);
}

showChanges();
fitText();
if (!globalThis.WebAssembly || !globalThis.DecompressionStream) {
  isDown = true;
  tell("This browser is too old for the model.", true);
} else {
  if (!restore(location.hash.slice(1))) askAnew();
  startOrTell();
}
