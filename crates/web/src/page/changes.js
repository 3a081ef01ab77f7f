// Heads that are switched off or scaled, and links that are cut.

/// The chosen heads by name; none if a map is chosen that is no head.
const chosenHeads = () => page.chosen().map((index) => page.sources[index]).filter(({ layer }) => layer !== null).map(({ name }) => name);

/// The change that cuts the chosen link.
const cutOf = ({ query, key }) => `block ${query}:${key}`;

function showButtons() {
  if (!page) return;
  const heads = chosenHeads();
  const named = heads.length === 1 ? `head ${heads[0]}` : `${heads.length} heads`;
  const isOff = heads.length > 0 && heads.every((head) => wanted.changes.includes(`ablate ${head}`));
  byId("live-ablate").hidden = byId("live-scaling").hidden = heads.length === 0;
  byId("live-ablate").textContent = isOff ? `Switch on ${named}` : `Switch off ${named}`;
  byId("live-scale").textContent = `Scale ${named} by`;
  const { pinned } = page.state;
  byId("live-cut").hidden = !pinned;
  if (pinned) {
    const verb = wanted.changes.includes(cutOf(pinned)) ? "Join" : "Cut";
    byId("live-cut").textContent = `${verb} ${pinned.query} → ${pinned.key}`;
  }
  byId("live-factor").value = factor;
  byId("live-beside").hidden = wanted.changes.length === 0;
  const { effect } = shown;
  byId("live-effect").textContent = effect ? `next ${effect.token}: ${percent(effect.plain)} → ${percent(effect.changed)}` : "";
}

/// A probability, as the lists of the page write it.
const percent = (p) => (p > 0 && p < 0.0005 ? "< 0.1 %" : `${(100 * p).toFixed(1)} %`);
/// What the chosen heads would be multiplied by, as typed.
let factor = "0.5";

/// Takes some changes out and puts others in.
function change(taken, put) {
  wanted.changes = [...wanted.changes.filter((one) => !taken(one)), ...put];
  showChanges();
  showButtons();
  askAnew();
}

/// Whether a change ablates or scales one of some heads.
const isOf = (heads) => (one) => heads.some((head) => one === `ablate ${head}` || one.startsWith(`scale ${head}=`));

function showChanges() {
  const one = (text) => {
    const [item, button] = [make("li"), make("button", "", `${text} ✕`)];
    button.type = "button";
    button.title = "Undo this change";
    button.setAttribute("aria-label", `Undo ${text}`);
    button.addEventListener("click", () => {
      change((other) => other === text, []);
      const next = byId("live-changes").querySelector("button") ?? byId("live-ablate");
      (next.hidden ? byId("live-text") : next).focus({ preventScroll: true });
    });
    item.append(button);
    return item;
  };
  byId("live-changes").replaceChildren(...wanted.changes.map(one));
}

function switchHeads() {
  const heads = chosenHeads();
  const isOff = heads.every((head) => wanted.changes.includes(`ablate ${head}`));
  change(isOf(heads), isOff ? [] : heads.map((head) => `ablate ${head}`));
}

function scaleHeads() {
  if (factor === "" || !byId("live-factor").validity.valid) return tell("Give a factor to scale by, a number.", true);
  const heads = chosenHeads();
  change(isOf(heads), heads.map((head) => `scale ${head}=${+factor}`));
}

function cutLink() {
  if (!page.state.pinned) return;
  const cut = cutOf(page.state.pinned);
  change((one) => one === cut, wanted.changes.includes(cut) ? [] : [cut]);
}

// Each answer has buttons of its own.
document.addEventListener("click", ({ target }) => {
  const run = { "live-ablate": switchHeads, "live-scale": scaleHeads, "live-cut": cutLink }[target.id];
  run?.();
});
document.addEventListener("input", ({ target }) => {
  if (target.id === "live-factor") factor = target.value;
});
