// A word of explanation under the map: what is drawn, and what kind of head it is.

/// What the map shows, sentence by sentence.
function mapWords() {
  const all = chosen().map((index) => sources[index]);
  const words = [];
  const kind = all.length === 1 ? kindOf(all[0]) : "";
  const silenced = all.map(silencedIn).find(Boolean);
  if (silenced) words.push(`${silenced[0].toUpperCase()}${silenced.slice(1)}: wherever this head looks, the run does not use its output.`);
  if (kind in kinds) words.push(`Typical of it: ${kinds[kind]} (${kind}).`);
  if (all.length === 1 && all[0].meaning) words.push(`${all[0].meaning}.`);
  if (all.length > 1) words.push("The mean of these heads.");
  if (state.view === "lines") return [...words, "A line goes from a token (left) to one that it attends to (right): the thicker, the more weight."];
  if (state.run === "both") words.push(`First ${runs[0]}, then ${runs[1]}.`);
  if (state.run === "difference") return [...words, `Red: more weight in ${runs[1]} than in ${runs[0]}. Blue: less.`];
  words.push("A row shows what one token attends to: the brighter, the more weight.");
  if (state.weighted) words.push("Weights count times the length of the value: how much moves, not only how much is looked at.");
  if (state.scale === "row") words.push("Each row has its own colors.");
  return words;
}

on("weights view scale weighted", () => (byId("explain").textContent = mapWords().join(" ")));
