// The neuron view, after BertViz (Vig 2019): what each dimension of q and k adds to the score of one cell.

const neurons = byId("neurons");
neurons.hidden = !hasVectors;

/// `q_d · k_d · scale` for each dimension d of a cell, and the most by which their sum can be wrong; null if the file
/// has no vectors of this head in the run.
function productsOf(source, run, { query, key }) {
  const packed = packedVectors(source, run);
  if (!packed) return null;
  packed.codes ??= [numbersFrom(packed.q, Int16Array), numbersFrom(packed.k, Int16Array)];
  const { width, scale, units, codes } = packed;
  const factor = scale * units[0] * units[1];
  const pairs = Array.from({ length: width }, (_, d) => [codes[0][query * width + d], codes[1][key * width + d]]);
  // The writer rounds to half a code, and a little more in its arithmetic of 32 bits.
  const half = 0.505;
  const errors = pairs.map(([q, k]) => half * (Math.abs(q) + Math.abs(k) + half));
  return {
    products: pairs.map(([q, k]) => q * k * factor),
    error: errors.reduce((a, b) => a + b, 0) * Math.abs(factor),
  };
}

const signedText = (x) => (x < 0 ? `−${(-x).toFixed(2)}` : x.toFixed(2));

function showNeurons() {
  if (neurons.hidden || !neurons.open) return;
  const source = sources[state.head];
  const { products, error } = (state.cell && chosen().length === 1 && productsOf(source, shownRun(), state.cell)) || {};
  const canvas = byId("products");
  canvas.hidden = !products;
  const note = byId("products-sum");
  const of = compared ? ` in ${runs[shownRun()]}` : "";
  byId("products-list").textContent = "";
  if (!products) {
    note.textContent = !state.cell
      ? "Choose a cell of the map."
      : chosen().length > 1
        ? "Choose a single head."
        : `The file has no queries and keys of this map${of}.`;
    return;
  }
  const sum = products.reduce((a, b) => a + b, 0);
  note.textContent = `score${of}: ${exact({ weight: sum, error })}, the sum over ${products.length} dimensions`;
  const strongest = [...products.keys()].sort((a, b) => Math.abs(products[b]) - Math.abs(products[a])).slice(0, 5);
  const named = strongest.map((d) => `${d}: ${signedText(products[d])}`).join(", ");
  byId("products-list").textContent = `strongest: ${named}`;
  canvas.setAttribute("aria-label", `Bars of each dimension's part of the score, ${named}`);
  drawProducts(canvas, products);
}

function drawProducts(canvas, products) {
  if (!fitCanvas(canvas, canvas.clientWidth, canvas.clientHeight)) return;
  const { clientWidth: width, clientHeight: height } = canvas;
  const context = canvas.getContext("2d");
  const paint = theme();
  const most = Math.max(...products.map(Math.abs)) || 1;
  const step = width / products.length;
  for (const [d, product] of products.entries()) {
    const size = (Math.abs(product) / most) * (height / 2 - 2);
    context.fillStyle = product < 0 ? paint.less : paint.more;
    context.fillRect(d * step, product < 0 ? height / 2 : height / 2 - size, Math.max(1, step - 1), size);
  }
  context.fillStyle = paint.quiet;
  context.fillRect(0, height / 2 - 0.5, width, 1);
}

neurons.addEventListener("toggle", showNeurons);
on("weights cell theme", showNeurons);
