//! From gradients to scores: runs of a study that say how much each edge matters.

use super::graph::{Graph, Reader};
use super::pairs::PairBatch;
use super::reader_weights::ReaderWeights;
use super::scores::{EdgeGradients, EdgeScores, EdgeScoring};
use super::study::{Progress, Study};
use super::writer_outputs::{WriterOutputs, stream, wide};
use crate::circuits::f64_of;
use candle_core::{Result, Tensor};
use gpt2_model::analysis::GradientHooks;
use gpt2_model::attention::PatternOf;
use gpt2_model::hooks::{Chain, Head, Hooks, Point, Recorder, on};

/// A run over the clean text in which the values of one point lie between the two texts'.
#[derive(Debug, Clone, Copy, PartialEq)]
struct MixedRun {
    at: Point,
    /// The values' share of the way from the corrupted text's (0) to the clean text's (1).
    share: f64,
}

impl MixedRun {
    /// The values at its point, given those of the corrupted and of the clean text.
    fn mixed(&self, from: &Tensor, to: &Tensor) -> Result<Tensor> {
        if self.share >= 1.0 {
            return Ok(to.clone());
        }
        let wide_from = wide(from)?;
        let wide_to = wide(to)?;
        (&wide_from + ((wide_to - &wide_from)? * self.share)?)?.to_dtype(from.dtype())
    }
}

/// The values recorded in a run over one of the texts of a batch.
struct TextRun {
    written: WriterOutputs,
    /// The values at the points that are mixed.
    mixed: Recorder,
}

/// The data of a batch that scores are computed from.
struct ScoringData {
    /// Each writer's output in the clean run less its output in the corrupted one, (W, B·T·C)
    written: Tensor,
    /// The residual stream of the clean run, or of the corrupted run if gradients are taken there, at each [`stream`]; empty without
    /// the QK fix.
    streams: Vec<Tensor>,
    /// The sign with which an edge's change enters its score: -1 if gradients come from the clean run, where the edge
    /// would carry the corrupted run's value, and 1 if they come from the corrupted run.
    sign: f64,
}

/// The scores so far, not yet divided by the number of pairs.
struct EdgeSums {
    graph: Graph,
    /// (readers, writers), by rows
    values: Vec<f64>,
    /// The gradients at each layer's attention weights, (B, H, T, T), summed over the runs of the present batch.
    patterns: Vec<Option<Tensor>>,
}

impl Study<'_> {
    /// Scores all edges from two forward passes, and one forward and one backward pass for each run of the gradients; with the QK fix,
    /// each layer's queries, keys and attention weights are computed once more for each writer before it.
    ///
    /// # Errors
    /// For those of `progress` and of the hooks, for gradients of 0 steps, and for the QK fix under hooks that want queries, keys or
    /// scores. An operation without a gradient, as in a linear layer of one's own, counts as one on which the metric does not depend.
    pub fn edge_scores(
        &self,
        scoring: impl Into<EdgeScoring>,
        progress: &mut Progress,
    ) -> Result<EdgeScores> {
        let scoring = scoring.into();
        let (graph, layers) = (self.graph(), self.graph().layers());
        let runs = runs(scoring.gradients, layers)?;
        self.check(scoring)?;
        let weights = ReaderWeights::of(self.model)?;
        let values = vec![0.0; graph.reader_count() * graph.writer_count()];
        let mut sums = EdgeSums { graph, values, patterns: vec![None; layers] };
        let fixes = if scoring.qk_fix { layers } else { 0 };
        let mut done = 0;
        let total = self.batches().len() * (2 + runs.len() + fixes);
        let mut step = |runs: usize| {
            done += runs;
            progress(done, total)
        };
        for batch in self.batches() {
            let clean = self.run_over(&batch.clean, &runs)?;
            let corrupt = self.run_over(&batch.corrupt, &runs)?;
            step(2)?;
            let at_corrupt = scoring.gradients == EdgeGradients::Corrupt;
            let base = if at_corrupt { &corrupt.written } else { &clean.written };
            let changes = ScoringData {
                written: clean.written.zip(&corrupt.written, |a, b| a - b)?.stacked()?,
                streams: if scoring.qk_fix { base.streams(self.model)? } else { vec![] },
                sign: if at_corrupt { 1.0 } else { -1.0 },
            };
            for run in &runs {
                let from = corrupt.mixed.value(run.at)?;
                let to = clean.mixed.value(run.at)?;
                let mixed = run.mixed(&from, &to)?;
                let mix = on([run.at], |_, _| Ok(Some(mixed.clone())));
                self.add_gradients(batch, &mix, &weights, &changes, 1.0 / runs.len() as f64, &mut sums)?;
                step(1)?;
            }
            for (layer, weights) in weights.iter().enumerate().take(fixes) {
                self.add_fixed(layer, weights, &changes, &mut sums)?;
                step(1)?;
            }
        }
        let count = self.pairs().len() as f64;
        Ok(EdgeScores::new(graph, sums.values.into_iter().map(|sum| sum / count).collect()))
    }

    /// Refuses what [`edge_scores`](Self::edge_scores) would, before any run.
    ///
    /// # Errors
    /// For gradients of 0 steps, and for the QK fix under hooks behind which attention is not what queries and keys make of it.
    pub fn check(&self, scoring: EdgeScoring) -> Result<()> {
        runs(scoring.gradients, self.graph().layers())?;
        let points: [fn(usize) -> Point; 3] = [Point::Q, Point::K, Point::Scores];
        let mut all = points.iter().flat_map(|point| (0..self.graph().layers()).map(point));
        let hooks = self.hooks().filter(|_| scoring.qk_fix);
        match hooks.and_then(|hooks| all.find(|&point| hooks.wants(point))) {
            Some(point) => candle_core::bail!(
                "a change at {point}: the QK fix computes attention again, which would not have it; score without the fix"
            ),
            None => Ok(()),
        }
    }

    fn run_over(&self, ids: &Tensor, runs: &[MixedRun]) -> Result<TextRun> {
        // Before the study's own hooks, which the mixed runs have behind them, too.
        let mixed = Recorder::new(runs.iter().map(|run| run.at));
        let run = |hooks: &dyn Hooks| self.logits_between(ids, &mixed, hooks).map(drop);
        let written = WriterOutputs::record(self.graph(), run)?;
        Ok(TextRun { written, mixed })
    }

    /// Adds the scores of one gradient run over a batch, times `factor`.
    fn add_gradients(
        &self,
        batch: &PairBatch,
        before: &dyn Hooks,
        weights: &[ReaderWeights],
        changes: &ScoringData,
        factor: f64,
        sums: &mut EdgeSums,
    ) -> Result<()> {
        let layers = self.graph().layers();
        let qk_fix = !changes.streams.is_empty();
        let readers: [fn(Head) -> Reader; 3] = [Reader::Query, Reader::Key, Reader::Value];
        let of_parts: [fn(usize) -> Point; 3] = [Point::Q, Point::K, Point::V];
        // Scores of queries and keys come from the gradients at attention weights, if they are fixed.
        let linear = if qk_fix { 2..3 } else { 0..3 };
        let mut points: Vec<Point> = (0..layers).map(Point::MlpIn).collect();
        points.push(Point::ResidPost(layers - 1));
        points.extend(of_parts[linear.clone()].iter().flat_map(|point| (0..layers).map(point)));
        if qk_fix {
            points.extend((0..layers).map(Point::Pattern));
        }
        let norms = Recorder::new(
            (0..layers).flat_map(|layer| [Point::Ln1Scale(layer), Point::Ln1Normalized(layer)]),
        );
        let taps = GradientHooks::new(points);
        // Before the study's own: a temperature belongs to what comes after the queries.
        let logits = self.logits_between(&batch.clean, &Chain(&[before, &norms, &taps]), &Chain(&[]))?;
        let gradients = taps.gradients(&batch.metrics(&logits)?.sum_all()?)?;
        let at = |point: Point| wide(&gradients.of(point)?.1);
        for (layer, weights) in weights.iter().enumerate() {
            let scale = wide(&norms.value(Point::Ln1Scale(layer))?)?;
            let normalized = wide(&norms.value(Point::Ln1Normalized(layer))?)?;
            for part in linear.clone() {
                let gradient = weights.at_input(part, &at(of_parts[part](layer))?, &scale, &normalized)?;
                sums.add(readers[part](Head { layer, head: 0 }), &gradient, &changes.written, factor)?;
            }
            if qk_fix {
                let gradient = (at(Point::Pattern(layer))? * factor)?;
                let sum = sums.patterns[layer].take();
                sums.patterns[layer] = Some(sum.map_or_else(|| Ok(gradient.clone()), |sum| sum + &gradient)?);
            }
            let gradient = at(Point::MlpIn(layer))?.flatten_all()?.unsqueeze(0)?;
            sums.add(Reader::Mlp(layer), &gradient, &changes.written, factor)?;
        }
        let gradient = at(Point::ResidPost(layers - 1))?.flatten_all()?.unsqueeze(0)?;
        sums.add(Reader::Logits, &gradient, &changes.written, factor)
    }

    /// Adds the scores of the edges into a layer's queries and keys: the gradient at the attention weights times their change when
    /// one edge carries the other run's value.
    fn add_fixed(
        &self,
        layer: usize,
        weights: &ReaderWeights,
        changes: &ScoringData,
        sums: &mut EdgeSums,
    ) -> Result<()> {
        let Some(gradient) = sums.patterns[layer].take() else {
            candle_core::bail!("layer {layer}: no gradient at its attention weights")
        };
        let attention = &self.model.transformer.h[layer].attn;
        let eps = self.model.config().layer_norm_epsilon;
        let knocked_out = self.hooks().map_or_else(Vec::new, |hooks| hooks.knocked_out(layer));
        let pattern =
            |q: &Tensor, k: &Tensor| attention.pattern(q, k, None, &knocked_out, PatternOf::Weights);
        let head = Head { layer, head: 0 };
        let query = Reader::Query(head);
        let key = Reader::Key(head);
        let x = &changes.streams[stream(self.graph(), query)]; // (B, T, C)
        let (q, k) = weights.queries_and_keys(x, eps)?;
        let plain = pattern(&q, &k)?;
        for writer in 0..self.graph().writers_before(query) {
            let change = (changes.written.get(writer)?.reshape(x.shape())? * changes.sign)?;
            let (new_q, new_k) = weights.queries_and_keys(&(x + change)?, eps)?;
            for (reader, q, k) in [(query, &new_q, &k), (key, &q, &new_k)] {
                let change = ((pattern(q, k)? - &plain)? * changes.sign)?;
                let found = f64_of(&(&gradient * change)?.sum((0, 2, 3))?)?.to_vec1::<f64>()?; // (H)
                sums.add_to(reader, writer, found);
            }
        }
        Ok(())
    }
}

impl EdgeSums {
    /// Adds the product of gradients at readers, from `first` on, and changes of the writers before them.
    ///
    /// # Shapes
    /// `gradient` (R, B·T·C), `written` (W, B·T·C)
    fn add(&mut self, first: Reader, gradient: &Tensor, written: &Tensor, factor: f64) -> Result<()> {
        let written = written.narrow(0, 0, self.graph.writers_before(first))?;
        let found = f64_of(&gradient.matmul(&written.t()?)?)?.to_vec2::<f64>()?; // (R, W)
        let rows = self.values.chunks_mut(self.graph.writer_count());
        for (row, found) in rows.skip(self.graph.reader_index(first)).zip(found) {
            row.iter_mut().zip(found).for_each(|(sum, found)| *sum += factor * found);
        }
        Ok(())
    }

    /// Adds the scores of the edges from a writer to the readers from `first` on.
    fn add_to(&mut self, first: Reader, writer: usize, found: Vec<f64>) {
        let rows = self.values.chunks_mut(self.graph.writer_count());
        for (row, found) in rows.skip(self.graph.reader_index(first)).zip(found) {
            row[writer] += found;
        }
    }
}

/// The runs in which to take gradients, of a model of this many layers.
fn runs(gradients: EdgeGradients, layers: usize) -> Result<Vec<MixedRun>> {
    let between = |steps: usize| (1..=steps).map(move |k| k as f64 / steps as f64);
    let at = |at: Point, steps: usize| between(steps).map(move |share| MixedRun { at, share });
    let groups = (0..layers).flat_map(|layer| [Point::Z(layer), Point::MlpOut(layer)]);
    let runs: Vec<MixedRun> = match gradients {
        EdgeGradients::Clean => vec![MixedRun { at: Point::Embed, share: 1.0 }],
        EdgeGradients::Corrupt => vec![MixedRun { at: Point::Embed, share: 0.0 }],
        EdgeGradients::Integrated { steps } => at(Point::Embed, steps).collect(),
        EdgeGradients::IntegratedActivations { steps } => {
            [Point::Embed].into_iter().chain(groups).flat_map(|point| at(point, steps)).collect()
        }
    };
    if runs.is_empty() {
        candle_core::bail!("integrated gradients need at least one step")
    }
    Ok(runs)
}
