// A guide for a first visit: steps, each beside the part of the page that it speaks of.

const GUIDE = [
  ["heads", compared
    ? "Each small map is how one head changes from the first run to the second: red is more weight, blue less. Choose one to see it large."
    : "Each small map is one head. Point at it for a word for where it looks most; choose it to see it large."],
  ["map-panel", compared
    ? "Both runs of the head. A row is a token, a column one that it attends to. A bright cell is a large weight. Point at a cell for its numbers."
    : "A row is a token, a column one that it attends to. A bright cell is a large weight. Point at a cell for its number."],
  ["token", "For the chosen token: what it attends to, what attends to it, and what the model expects next."],
  compared
    ? ["runs", "See one run, both, or their difference. A small map has a frame in the color of how much the head changed; that of one run shows its weights."]
    : ["tools", "Lines draws the same weights between words. Colors by row show weak weights; hide the first token if it takes most of them."],
  ["finder", "Find marks text on the map. Keys lists what the keyboard does. Guide brings this back."],
];
// What stands above the page may have a step of its own, after the map's.
for (const part of document.querySelectorAll("[data-guide]")) GUIDE.splice(2, 0, [part.id, part.dataset.guide]);
const SEEN = "gpt2-view guide";
const guide = byId("guide");
let guideStep = 0;

/// Whether the reader has closed the guide before. Without a storage, as in a notebook's frame, nothing can be remembered, so
/// that the guide would come again and again: there, it waits for its button.
function hasSeenGuide() {
  try {
    return localStorage.getItem(SEEN) !== null;
  } catch {
    return true;
  }
}

function showGuide() {
  for (const [n, [id]] of GUIDE.entries()) byId(id).classList.toggle("guided", !guide.hidden && n === guideStep);
  byId("guide-step").textContent = `${guideStep + 1} of ${GUIDE.length}`;
  byId("guide-text").textContent = GUIDE[guideStep][1];
  byId("guide-back").disabled = guideStep === 0;
  byId("guide-next").textContent = guideStep === GUIDE.length - 1 ? "Done" : "Next";
}

function goToStep(step) {
  if (step >= GUIDE.length) return closeGuide();
  guideStep = step;
  showGuide();
  // On a small window the part may be elsewhere. Only this page scrolls, not the notebook around its frame.
  const { top, bottom } = byId(GUIDE[step][0]).getBoundingClientRect();
  const under = guide.getBoundingClientRect().height;
  if (top < under || Math.min(bottom, top + 200) > innerHeight) scrollTo({ top: top + scrollY - under - 8, behavior: calm.matches ? "auto" : "smooth" });
}

function openGuide() {
  guide.hidden = false;
  goToStep(0);
  byId("guide-next").focus({ preventScroll: true });
}

function closeGuide() {
  const within = guide.contains(document.activeElement);
  guide.hidden = true;
  showGuide();
  if (within) byId("guide-button").focus({ preventScroll: true });
  try {
    localStorage.setItem(SEEN, "closed");
  } catch {
    // It waits for its button then.
  }
}

byId("guide-button").addEventListener("click", () => (guide.hidden ? openGuide() : closeGuide()));
byId("guide-back").addEventListener("click", () => goToStep(guideStep - 1));
byId("guide-next").addEventListener("click", () => goToStep(guideStep + 1));
byId("guide-close").addEventListener("click", closeGuide);
guide.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  event.stopPropagation();
  closeGuide();
});
// Pictures of the page leave it out by their address.
const wantedStep = new URLSearchParams(choices ?? location.hash.slice(1)).get("guide");
guide.hidden = hasSeenGuide() || wantedStep === "off";
guideStep = Math.min(Math.max(0, parseInt(wantedStep, 10) || 0), GUIDE.length - 1);
showGuide();
