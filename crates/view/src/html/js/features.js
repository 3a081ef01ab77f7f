// Features of a dictionary: those that fire at the chosen token, and where in the text one of them does.

/// { run, name, tokens: [[[feature, activation], ..], ..] }, the strongest of each token first.
const firing = blocks("features").map(read);
const firingIn = (run) => firing.find((found) => found.run === run);

/// How strongly a feature fires at each token, from 0 to 1 of its largest size in the text.
function firesAt(feature) {
  const values = (firingIn(shownRuns().at(-1)) ?? firing[0]).tokens.map(
    (fired) => Math.abs(fired.find(([one]) => one === feature)?.[1] ?? 0),
  );
  const largest = Math.max(...values);
  return values.map((value) => (largest > 0 ? value / largest : 0));
}

function showFeatures() {
  const section = byId("features").parentElement;
  section.hidden = firing.length === 0 || state.token === null;
  if (section.hidden) return;
  const found = firingIn(shownRuns().at(-1)) ?? firing[0];
  section.firstChild.textContent = compared ? `features, ${runs[found.run]}` : "features";
  section.firstChild.title = found.name;
  const fired = found.tokens[state.token];
  const largest = Math.max(...found.tokens.flat().map(([, activation]) => Math.abs(activation)));
  const entries = fired.slice(0, LISTED).map(([feature, activation]) => {
    const isChosen = state.feature === feature;
    const item = entry({
      text: `feature ${feature}`,
      number: activation.toFixed(2),
      exactly: `${activation}`,
      share: Math.abs(activation) / largest,
      color: "next-bar",
      choose: () => update({ feature: isChosen ? null : feature }),
    });
    item.firstChild.title = isChosen ? "Color the text by attention again" : "Color the text by where this feature fires";
    item.firstChild.setAttribute("aria-pressed", isChosen);
    return item;
  });
  fill(byId("features"), entries, "No feature fires here.");
}

on("weights token feature run", showFeatures);
