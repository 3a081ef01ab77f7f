// Numbers of each head: summaries, those that the file brings along, and how much a head changed between the runs.

const METRICS = {
  entropy: ["entropy", "Mean entropy of a query's weights, in nats: 0 is one key, ln n is n keys alike"],
  mean_distance: ["distance", "How far back a query looks on average, in tokens"],
  on_self: ["on itself", "Mean weight on the query's own token"],
  on_previous: ["on previous", "Mean weight on the token before"],
  on_first: ["on first", "Mean weight on the first token"],
  uniform: ["if uniform", "The value that each of the three weights above would have if attention were uniform"],
};

/// A summary's number in the shown run, or how it changed.
function inRun(source, key) {
  const [first, second] = source.runs.map((run) => run.summary?.[key] ?? NaN);
  return showsChange() ? second - first : [first, second][shownRun()];
}

/// How much each head changed; NaN until it is known.
const changes = new Float64Array(heads.length).fill(NaN);

/// The numbers that heads can be sorted and colored by: `of` a source, NaN if unknown; `signed()` if 0 is the middle.
const metrics = [
  ...(compared
    ? [{
        key: "change",
        label: "change",
        meaning: "How far the runs differ at least: the share of a query's attention that surely moved, from 0 to 1, on average",
        signed: () => false,
        of: (source) => changes[source.index] ?? NaN,
      }]
    : []),
  ...Object.keys(heads[0].runs[0].summary)
    .filter((key) => typeof (heads[0].runs[0].summary[key] ?? 0) === "number")
    .map((key) => {
      // A file may have summaries that this script has no words for.
      const [label, meaning] = METRICS[key] ?? [key.replaceAll("_", " "), ""];
      return { key, label, meaning, signed: showsChange, of: (source) => inRun(source, key), summary: true };
    }),
  ...data("numbers").map(read).map(({ name, meaning, signed, values }, n) => ({
    key: `n${n}`,
    label: name,
    meaning,
    signed: () => signed,
    of: (source) => values[source.index] ?? NaN,
  })),
];
/// A number's name: with two runs on the screen, a summary's number is how much it changed.
const labelOf = (metric) => (metric.summary && showsChange() ? `change of ${metric.label}` : metric.label);
/// What uniform attention would have is the same in both runs.
const shownMetrics = () => metrics.filter(({ key }) => !(key === "uniform" && showsChange()));
const metricOf = (key) => metrics.find((metric) => metric.key === key);

/// The end of a scale: three digits that count.
const short = (x) => String(+x.toPrecision(3));
const plain = (x) => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2));
function numberText(x, signed) {
  if (Number.isNaN(x)) return "NaN";
  const text = plain(Math.abs(x));
  // A small number that other heads' legends name must not look like none.
  const shown = +text === 0 && x !== 0 && Math.abs(x) >= 1e-6 ? Math.abs(x).toExponential(0) : text;
  return x < 0 ? `−${shown}` : signed && +shown > 0 ? `+${shown}` : shown;
}
let counted = !compared;
/// A head's number; a change that is still being counted is no NaN.
const metricText = (metric, source, x = metric.of(source)) =>
  metric.key === "change" && !counted && Number.isNaN(x) ? "…" : numberText(x, metric.signed());

/// The lowest and the highest value of a number, with 0 in the middle or at an end.
function rangeOf(metric) {
  const values = heads.map(metric.of).filter(Number.isFinite);
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  if (!metric.signed()) return [low, high];
  const most = Math.max(-low, high);
  return [-most, most];
}

/// The color of a source by a number, or null if it is unknown.
function tintOf(metric, source, [low, high]) {
  const x = metric.of(source);
  if (!Number.isFinite(x)) return null;
  return colorAt(metric.signed() ? x / (high || 1) : (x - low) / (high - low || 1), metric.signed());
}

// --- the change between two runs -------------------------------------------------------------------

/// Counts the change of a head whose weights are at hand.
function noteChange(source, a, b) {
  if (source.layer !== null && Number.isNaN(changes[source.index])) changes[source.index] = leastDistance(a, b);
}

let counting = false;
/// Counts how much each head changed, if somebody wants to know. The small maps are drawn from the first to the last, so
/// this begins with the last.
async function needChanges() {
  if (counting || !compared) return;
  counting = true;
  for (const head of heads.toReversed()) {
    if (!Number.isNaN(changes[head.index])) continue;
    noteChange(head, ...(await Promise.all([weightsOf(head, 0, false), weightsOf(head, 1, false)])));
    if (head.index % 24 === 0) changed(["numbers"]);
  }
  counted = true;
  root.dataset.counted = "";
  changed(["numbers", "counted"]);
}

/// The mean over the queries of the total variation distance, half the sum of |a - b|: each difference less its errors,
/// since those of a whole row would add up to a change of their own.
function leastDistance(a, b) {
  const [of, to] = [tables(a.levels), tables(b.levels)];
  let total = 0;
  for (let i = 0; i < queries; i++) {
    const [ofNone, toNone] = isComplete(i) ? [of.errors[0], to.errors[0]] : [mostLeftOut(a, i), mostLeftOut(b, i)];
    for (let at = rowStart(i); at < rowStart(i) + rowLength(i); at++) {
      const [before, after] = [a.codes[at], b.codes[at]];
      const error = (before === 0 ? ofNone : of.errors[before]) + (after === 0 ? toNone : to.errors[after]);
      total += Math.max(0, Math.abs(of.numbers[before] - to.numbers[after]) - error);
    }
  }
  return total / 2 / queries;
}
