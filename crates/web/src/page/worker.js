// The worker: it holds the model, and answers one question at a time.

let model = null;

/// Browsers compile a function well once it has run a few dozen times: these runs, between questions, spare the reader the slow ones.
/// The texts have nothing in common that the model would remember. Another model than the demo model may not know these words, and
/// takes longer.
const WARM = ["O Romeo, Romeo! wherefore art thou", "My lord, to be, or not to be"].map((text) => JSON.stringify({ text }));
let warmings = 40;
let isWarming = false;

function warmUp() {
  if (warmings-- <= 0) return;
  model.look(WARM[warmings % 2]);
  setTimeout(warmUp);
}

/// The model of some files.
async function opened({ name, files }) {
  const read = new wasm_bindgen.ModelFiles();
  let last = name;
  try {
    for (const { name, file } of files) {
      last = name;
      read.add(name, new Uint8Array(await file.arrayBuffer()));
    }
  } catch (error) {
    if (error instanceof WebAssembly.RuntimeError) throw error;
    read.free();
    throw new Error(`${last}: ${error.message}`);
  }
  return wasm_bindgen.Model.open(name, read);
}

/// Puts another model in the place of the present one, which stays if that fails, unless the module breaks.
async function exchange(chosen) {
  let other;
  try {
    other = await opened(chosen);
  } catch (error) {
    if (!isPlain(error)) throw error;
    return postMessage({ failed: error.message });
  }
  model.free();
  model = other;
  if (!chosen.isDemo) warmings = 0;
  postMessage({ opened: { isOwn: chosen.isOwn } });
}

/// What the model refuses is a plain error. After any other, such as a panic, nothing in the module can be relied on.
const isPlain = (error) => error?.constructor === Error;

/// Draws tokens before the model is asked for a picture.
function goneOn(look, more) {
  if (more === 0) return look;
  const ids = [...model.go_on(look, more)];
  return JSON.stringify({ ...JSON.parse(look), ids });
}

onmessage = async ({ data: { module, look, more, model: chosen, wanted } }) => {
  try {
    if (module) {
      // It is compiled while it is unpacked.
      const unpacked = module.stream().pipeThrough(new DecompressionStream("deflate"));
      const headers = { "Content-Type": "application/wasm" };
      await wasm_bindgen({ module_or_path: new Response(unpacked, { headers }) });
      const found = wasm_bindgen.Model.interface?.();
      if (found !== wanted) throw new Error(`the module is ${found}, the page ${wanted}: they are of different versions`);
      model = await opened(chosen);
      if (!chosen.isDemo) warmings = 0;
      postMessage({ ready: true });
      return;
    }
    if (chosen) return await exchange(chosen);
    const question = goneOn(look, more);
    const start = performance.now();
    postMessage({ answer: model.look(question), took: performance.now() - start });
    if (!isWarming) setTimeout(warmUp);
    isWarming = true;
  } catch (error) {
    postMessage({ error: String(error?.message ?? error), stopped: !model || !isPlain(error) });
  }
};
