// The way of a token as one drawing that moves, from the text to the probabilities. Its parts show the numbers of the stages below
// it, and open them.

/// The moments of the drawing: the stages that each adds, the first of which says what happens.
const MOMENTS = [["wte", "wpe"], ["resid_pre"], ["ln_1"], ["q", "k", "v"], ["pattern"], ["z"], ["attn_out"], ["resid_mid"], ["ln_2", "mlp_post"], ["mlp_out"], ["resid_post"], ["ln_f", "logits"], ["probabilities"]];
const LAST = MOMENTS.length - 1;
const momentOf = (name) => MOMENTS.findIndex((names) => names.includes(name));

/// The places of the columns of numbers, in a drawing of WIDE x HIGH: left, top and height. The residual stream is a line.
const [WIDE, HIGH, STREAM_Y] = [440, 196, 112];
/// Where attention and the MLP come back to the stream.
const JOINTS = { attn_out: 262, mlp_out: 336 };
const COLUMNS = {
  wte: [66, 92, 40], wpe: [80, 92, 40], resid_pre: [96, 92, 40], ln_1: [112, 44, 40], q: [130, 44, 40], k: [142, 44, 40], v: [154, 44, 40],
  z: [230, 44, 40], attn_out: [246, 44, 40], resid_mid: [276, 92, 40], ln_2: [294, 142, 40], mlp_post: [308, 142, 40], mlp_out: [322, 142, 40], resid_post: [350, 92, 40],
};
/// The stages with a name in the drawing; the others are in its tooltips.
const NAMED = { wte: "embed", ln_1: "ln", q: "q", k: "k", v: "v", z: "z", mlp_post: "MLP" };
/// Where the token is at each moment.
const STOPS = [[73, 112], [100, 112], [116, 64], [146, 64], [190, 64], [234, 64], [250, 64], [276, 112], [308, 162], [326, 162], [352, 112], [364, 112], [400, 112]];

const drawing = byId("way-drawing");
const momentSlider = byId("way-moment");
momentSlider.max = momentSlider.value = LAST;
const littleMotion = matchMedia("(prefers-reduced-motion: reduce)");
/// The present moment, with fractions while it moves.
let moment = LAST;
/// The frame or the timer that moves it on; 0 while it stands.
let motion = 0;
/// The parts that can be chosen: { name, left, top, width, height }.
let drawnParts = [];

const stageOf = (name) => stageParts.get(name)?.stage;
/// How much of a part is there: 0 before its moment, 1 after it.
const shareOf = (name) => Math.min(1, Math.max(0, moment - momentOf(name) + 1));

function drawMoving() {
  if (!isWayOpen() || !stageOf("probabilities")) return;
  const { context, width, height } = prepared(drawing);
  const scale = Math.min(width / WIDE, height / HIGH);
  context.translate((width - WIDE * scale) / 2, 0);
  context.scale(scale, scale);
  drawnParts = [];
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  drawText(context);
  drawStream(context);
  for (const [name, place] of Object.entries(COLUMNS)) drawColumn(context, name, place);
  drawAttention(context);
  drawLikely(context);
  drawnParts = drawnParts.map(({ name, box: [left, top, wide, high] }) => ({
    name, left: (width - WIDE * scale) / 2 + left * scale, top: top * scale, width: wide * scale, height: high * scale,
  }));
  if (moment < LAST) drawDot(context);
}

/// The last tokens of the text up to the followed one, which stands on the line.
function drawText(context) {
  const last = Math.min(followed, page.tokens.length - 1);
  const ink = colorOf("--ink");
  for (let n = last; n >= Math.max(0, last - 5); n--) {
    context.globalAlpha = n === last ? 1 : 0.5;
    context.fillStyle = ink;
    context.font = `${n === last ? "bold " : ""}11px ui-monospace, monospace`;
    context.textAlign = "right";
    context.fillText(page.tokens[n].slice(0, 8), 60, STREAM_Y - 17 * (last - n), 58);
  }
  context.globalAlpha = 1;
}

/// The residual stream, and the branches that leave it and come back.
function drawStream(context) {
  const line = (share, width, ...points) => {
    if (share <= 0) return;
    context.globalAlpha = share;
    context.lineWidth = width;
    context.beginPath();
    for (const [x, y] of points) context.lineTo(x, y);
    context.stroke();
    context.globalAlpha = 1;
  };
  context.strokeStyle = colorOf("--out");
  const end = 92 + (366 - 92) * Math.min(1, Math.max(0, moment / momentOf("ln_f")));
  line(shareOf("resid_pre"), 4, [92, STREAM_Y], [end, STREAM_Y]);
  context.strokeStyle = colorOf("--quiet");
  line(shareOf("ln_1"), 1.5, [107, STREAM_Y], [107, 64], [112, 64]);
  line(shareOf("attn_out"), 1.5, [254, 64], [JOINTS.attn_out, 64], [JOINTS.attn_out, STREAM_Y]);
  line(shareOf("ln_2"), 1.5, [288, STREAM_Y], [288, 162], [294, 162]);
  line(shareOf("mlp_out"), 1.5, [330, 162], [JOINTS.mlp_out, 162], [JOINTS.mlp_out, STREAM_Y]);
  for (const [name, x] of Object.entries(JOINTS)) {
    if (shareOf(name) < 1) continue;
    context.fillStyle = colorOf("--out");
    context.beginPath();
    context.arc(x, STREAM_Y, 6, 0, 7);
    context.fill();
    context.fillStyle = colorOf("--paper");
    context.font = "bold 11px system-ui, sans-serif";
    context.textAlign = "center";
    context.fillText("+", x, STREAM_Y + 0.5);
  }
}

/// The numbers of a stage as a column of cells, in its colors.
function drawColumn(context, name, [left, top, height]) {
  const share = shareOf(name);
  if (share <= 0) return;
  const { values } = stageOf(name);
  const largest = Math.max(...values.map(Math.abs), 1e-12);
  const cells = Math.min(20, values.length);
  context.fillStyle = colorOf("--paper");
  context.fillRect(left, top, 8, height);
  for (let n = 0; n < cells; n++) {
    // Of several numbers in a cell, the largest stands for them.
    const part = values.slice(Math.floor((n * values.length) / cells), Math.floor(((n + 1) * values.length) / cells));
    const x = part.reduce((most, one) => (Math.abs(one) > Math.abs(most) ? one : most), 0);
    context.globalAlpha = share * Math.sqrt(Math.abs(x) / largest);
    context.fillStyle = colorOf(x < 0 ? "--less" : "--more");
    context.fillRect(left, top + (n * height) / cells, 8, height / cells);
  }
  context.globalAlpha = 1;
  context.strokeStyle = colorOf("--line");
  context.lineWidth = 1;
  context.strokeRect(left - 0.5, top - 0.5, 9, height + 1);
  if (NAMED[name]) {
    context.fillStyle = colorOf("--quiet");
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "center";
    context.fillText(NAMED[name], left + (name === "wte" ? 11 : 4), top + height + 8);
  }
  drawnParts.push({ name, box: [left - 2, top - 2, 12, height + 4] });
}

/// The tokens with the largest weights, and lines as thick as these.
function drawAttention(context) {
  const share = shareOf("pattern");
  if (share <= 0) return;
  const { values } = stageOf("pattern");
  const order = [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, 4);
  for (const [place, n] of order.entries()) {
    const y = 16 + 24 * place;
    context.globalAlpha = share;
    context.fillStyle = colorOf("--ink");
    context.font = "11px ui-monospace, monospace";
    context.textAlign = "left";
    context.fillText(page.tokens[n].slice(0, 6), 168, y - 6, 38);
    context.fillStyle = colorOf("--quiet");
    context.font = "10px system-ui, sans-serif";
    context.fillText(percent(values[n]), 168, y + 6);
    context.strokeStyle = colorOf("--out");
    context.lineWidth = 0.5 + 5 * values[n];
    context.beginPath();
    context.moveTo(207, y);
    context.lineTo(207 + 23 * share, y + (64 - y) * share);
    context.stroke();
  }
  context.globalAlpha = 1;
  drawnParts.push({ name: "pattern", box: [166, 4, 62, 94] });
}

/// The most probable next tokens.
function drawLikely(context) {
  const share = shareOf("probabilities");
  if (share <= 0) return;
  const { values, tokens } = stageOf("probabilities");
  for (const [n, p] of values.slice(0, 5).entries()) {
    const y = STREAM_Y + 28 * (n - 2);
    context.globalAlpha = 0.3;
    context.fillStyle = colorOf("--next-bar");
    context.fillRect(370, y - 13, 70 * p * share, 26);
    context.globalAlpha = share;
    context.fillStyle = colorOf("--ink");
    context.textAlign = "left";
    context.font = "12px ui-monospace, monospace";
    context.fillText(tokens[n].slice(0, 9), 372, y - 6, 66);
    context.font = "10px system-ui, sans-serif";
    context.fillText(percent(p), 372, y + 6);
  }
  context.fillStyle = colorOf("--quiet");
  context.fillText(drawnWith(), 372, STREAM_Y + 79, 66);
  context.globalAlpha = 1;
  drawnParts.push({ name: "probabilities", box: [368, 42, 72, 154] });
}

/// The settings that make these probabilities other than the model's own.
function drawnWith() {
  const [temperature, k, p] = ["live-temperature", "live-top-k", "live-top-p"].map((id) => byId(id).value);
  const cuts = [k && `top-k ${k}`, +p < 1 && `top-p ${p}`, +temperature !== 1 && `temperature ${temperature}`];
  return cuts.filter(Boolean).join(", ");
}

/// The token on its way.
function drawDot(context) {
  const [from, to] = [STOPS[Math.floor(moment)], STOPS[Math.min(LAST, Math.ceil(moment))]];
  const [x, y] = [0, 1].map((axis) => from[axis] + (to[axis] - from[axis]) * (moment % 1));
  context.fillStyle = colorOf("--in");
  context.beginPath();
  context.arc(x, y, 5, 0, 7);
  context.fill();
}

/// Goes to a moment, and says what happens there.
function showMoment(next) {
  moment = Math.min(LAST, Math.max(0, next));
  const at = Math.floor(moment);
  momentSlider.value = at;
  const name = MOMENTS[at][0];
  momentSlider.setAttribute("aria-valuetext", MOMENTS[at].join(", "));
  byId("way-moment-text").textContent = `${MOMENTS[at].join(", ")}: ${texts.way.stages[name]}`;
  drawMoving();
}

function stopMoving() {
  cancelAnimationFrame(motion);
  clearTimeout(motion);
  motion = 0;
  byId("way-play").textContent = "▶";
  byId("way-play").setAttribute("aria-label", "Play the drawing");
}

/// The milliseconds of a moment. Those who want little motion see one moment after another.
const MOMENT_TIME = 1600;

function playMoving() {
  if (motion) return stopMoving();
  byId("way-play").textContent = "⏸";
  byId("way-play").setAttribute("aria-label", "Pause the drawing");
  showMoment(moment >= LAST ? 0 : moment);
  const isCalm = littleMotion.matches;
  let before = performance.now();
  const go = () => {
    const now = performance.now();
    showMoment(isCalm ? Math.floor(moment) + 1 : moment + (now - before) / MOMENT_TIME);
    before = now;
    if (moment >= LAST || !isWayOpen()) return stopMoving();
    motion = isCalm ? setTimeout(go, MOMENT_TIME) : requestAnimationFrame(go);
  };
  motion = isCalm ? setTimeout(go, MOMENT_TIME) : requestAnimationFrame(go);
}

const partAt = ({ offsetX: x, offsetY: y }) => drawnParts.find(({ left, top, width, height }) => x >= left && x <= left + width && y >= top && y <= top + height);
drawing.addEventListener("pointermove", (event) => {
  const part = partAt(event);
  drawing.style.cursor = part ? "pointer" : "";
  drawing.title = part ? `${part.name}: ${texts.way.stages[part.name]}` : "";
});
drawing.addEventListener("click", (event) => {
  const part = partAt(event);
  if (!part) return;
  const { details } = stageParts.get(part.name);
  details.open = true;
  details.scrollIntoView({ block: "nearest", behavior: littleMotion.matches ? "auto" : "smooth" });
});
byId("way-play").addEventListener("click", playMoving);
momentSlider.addEventListener("input", () => {
  stopMoving();
  showMoment(+momentSlider.value);
});
