// Numbers of each head: summaries, those that the file brings along, and how much a head changed between the runs.

const METRICS = {
  entropy: ["entropy", "Mean entropy of a query's weights, in nats: 0 is one key, ln n is n keys alike"],
  mean_distance: ["distance", "How far back a query looks on average, in tokens"],
  on_self: ["on itself", "Mean weight on the query's own token, in this text"],
  on_previous: ["on previous", "Mean weight on the token before, in this text"],
  on_first: ["on first", "Mean weight on the first token of this text"],
  uniform: ["if uniform", "What on itself, on previous and on first would each be if a query gave all tokens that it sees the same weight: compare them with it"],
};

/// A summary's number in the shown run, or how it changed.
function inRun(source, key) {
  const [first, second] = source.runs.map((run) => run.summary?.[key] ?? NaN);
  return showsChange() ? second - first : [first, second][shownRun()];
}

/// How much each head changed at least; without an entry, or null, it is unknown.
const changes = compared ? readOne("changes") : {};
/// The largest change of a weight in any head: the small maps' colors end there, so that small changes show.
const largestChange = (compared && readOne("largest")) || 1;
const changeOf = (source) => changes[source.name] ?? NaN;

/// The numbers that heads can be sorted and colored by: `of` a source, NaN if unknown; `signed()` if 0 is the middle.
const metrics = [
  ...(compared
    ? [{
        key: "change",
        label: "change",
        meaning: "How far the runs differ at least: the share of a query's attention that surely moved, from 0 to 1, on average",
        signed: () => false,
        of: changeOf,
      }]
    : []),
  ...Object.keys(heads[0].runs[0].summary)
    .filter((key) => typeof (heads[0].runs[0].summary[key] ?? 0) === "number")
    .map((key) => {
      // A file may have summaries that this script has no words for.
      const [label, meaning] = METRICS[key] ?? [key.replaceAll("_", " "), ""];
      return { key, label, meaning, signed: showsChange, of: (source) => inRun(source, key), summary: true };
    }),
  ...blocks("numbers").map(read).map(({ name, meaning, signed, values }, n) => ({
    key: `n${n}`,
    label: name,
    meaning,
    signed: () => signed,
    of: (source) => values[source.index] ?? NaN,
  })),
];
/// A number's name: with two runs on the screen, a summary's number is how much it changed.
const labelOf = (metric) => (metric.summary && showsChange() ? `${metric.label}, change` : metric.label);
/// What uniform attention would have is the same in both runs.
const shownMetrics = () => metrics.filter(({ key }) => !(key === "uniform" && showsChange()));
const metricOf = (key) => metrics.find((metric) => metric.key === key);

/// The end of a scale: three digits that count.
const short = (x) => String(+x.toPrecision(3));
/// How many decimals a number of the heads has: the same for all, so that they can be compared.
function placesOf(metric) {
  const largest = Math.max(0, ...heads.map(metric.of).filter(Number.isFinite).map(Math.abs));
  if (largest >= 10) return largest >= 100 ? 0 : 1;
  return largest >= 0.005 || largest === 0 ? 2 : Math.min(12, 1 + Math.ceil(-Math.log10(largest)));
}
function numberText(x, signed, places) {
  if (Number.isNaN(x)) return "NaN";
  const text = Math.abs(x).toFixed(places);
  return +text === 0 ? text : x < 0 ? `−${text}` : signed ? `+${text}` : text;
}
const metricText = (metric, source, x = metric.of(source)) => numberText(x, metric.signed(), placesOf(metric));

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
