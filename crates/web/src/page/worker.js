// The worker: it holds the model, and answers one question at a time.

let model = null;

/// Browsers compile a function well once it has run a few dozen times: these runs, between questions, spare the reader the slow ones.
const WARM = JSON.stringify({ text: "O Romeo, Romeo! wherefore art thou" });
let warmings = 40;
let isWarming = false;

function warmUp() {
  if (warmings-- <= 0) return;
  model.look(WARM);
  setTimeout(warmUp);
}

onmessage = async ({ data: { module, look } }) => {
  try {
    if (module) {
      await wasm_bindgen({ module_or_path: module });
      model = new wasm_bindgen.Model();
      postMessage({ ready: true });
      return;
    }
    postMessage({ answer: model.look(look) });
    if (!isWarming) setTimeout(warmUp);
    isWarming = true;
  } catch (error) {
    // What the model refuses is a plain error. After any other, such as a panic, nothing in the module can be relied on.
    postMessage({ error: String(error?.message ?? error), stopped: !model || error?.constructor !== Error });
  }
};
