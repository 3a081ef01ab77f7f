// A slider over the steps of a generated text: the tokens so far, the newest query, and what it predicts.

const slider = byId("step");
const playButton = byId("play");
const calm = matchMedia("(prefers-reduced-motion: reduce)");
let playing = 0;

if (prompt !== null) {
  byId("steps").hidden = false;
  [slider.min, slider.max, slider.value] = [prompt, tokens.length, tokens.length];
}

/// Shows the first `step` tokens, and chooses the last of them.
function showStep(step) {
  step = Math.min(Math.max(step, prompt), tokens.length);
  update({ step, token: step - 1, cell: null, pinned: null });
}

function stepBy(steps) {
  if (prompt === null) return;
  stop();
  showStep((state.step ?? tokens.length) + steps);
}

function stop() {
  clearInterval(playing);
  playing = 0;
  playButton.textContent = "▶";
  playButton.setAttribute("aria-label", "Play the steps");
}

function play() {
  if (playing) return stop();
  if ((state.step ?? tokens.length) >= tokens.length) showStep(prompt);
  playButton.textContent = "⏸";
  playButton.setAttribute("aria-label", "Pause the steps");
  // Those who want little motion get time to look.
  playing = setInterval(() => {
    showStep((state.step ?? tokens.length) + 1);
    if (state.step === tokens.length) stop();
  }, calm.matches ? 1500 : 250);
}

slider.addEventListener("input", () => {
  stop();
  showStep(+slider.value);
});
playButton.addEventListener("click", play);
on("step", () => {
  if (prompt === null) return;
  const step = state.step ?? tokens.length;
  slider.value = step;
  const made = step - prompt;
  const all = tokens.length - prompt + (afterLast === null ? 0 : 1);
  const text = made === 0 ? "the prompt" : `${made} of ${all}: ${tokens[step - 1]}`;
  byId("step-text").textContent = text;
  slider.setAttribute("aria-valuetext", text);
});
