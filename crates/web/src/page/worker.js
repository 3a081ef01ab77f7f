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

/// A model from files; the one before stays if this fails.
async function open({ name, files }) {
  // What is compiled by now is compiled well, and another model may know none of these words.
  warmings = 0;
  const dropped = new wasm_bindgen.Dropped();
  for (const { name, file } of files) dropped.add(name, new Uint8Array(await file.arrayBuffer()));
  const opened = wasm_bindgen.Model.open(name, dropped);
  model.free();
  model = opened;
  postMessage({ opened: model.name() });
}

onmessage = async ({ data: { module, look, model: chosen } }) => {
  try {
    if (module) {
      await wasm_bindgen({ module_or_path: module });
      model = new wasm_bindgen.Model();
      postMessage({ ready: true });
      return;
    }
    if (chosen) return await open(chosen);
    postMessage({ answer: model.look(look) });
    if (!isWarming) setTimeout(warmUp);
    isWarming = true;
  } catch (error) {
    // What the model refuses is a plain error, and a file that cannot be read is the browser's. After any other, such as a panic,
    // nothing in the module can be relied on.
    const isPlain = error?.constructor === Error || error instanceof DOMException;
    postMessage({ error: String(error?.message ?? error), stopped: !model || !isPlain });
  }
};
