//! A task on a model: scores of all edges, and how faithful a circuit is.

use super::circuit_run::CircuitRun;
use super::edge_set::{EdgeSet, Replacement};
use super::graph::Graph;
use super::hook_checks::check_carried;
use super::pairs::{Pair, PairBatch};
use super::writer_outputs::WriterOutputs;
use candle_core::{Result, Tensor};
use gpt2_model::hooks::{Chain, Hooks};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel};

/// A model and the pairs of a task.
///
/// ```
/// use candle_core::{DType, Device};
/// use gpt2_circuits::discovery::{EdgeGradients, Pair, Replacement, Study};
/// use gpt2_model::analysis::Metric;
/// use gpt2_model::{Config, Gpt2LMHeadModel, init};
///
/// # fn main() -> candle_core::Result<()> {
/// # let config = Config { n_layer: 2, n_head: 2, n_embd: 8, n_positions: 16, vocab_size: 11, ..Config::gpt2() };
/// # let model = Gpt2LMHeadModel::load(init::seeded(1, DType::F32, &Device::Cpu), &config)?;
/// let pairs = [Pair { clean: vec![3, 1, 3], corrupt: vec![2, 1, 3], metric: Metric::difference(1, 5) }];
/// let study = Study::new(&model, &pairs)?;
/// let scores = study.edge_scores(EdgeGradients::Integrated { steps: 5 }, &mut |_, _| Ok(()))?;
/// let circuit = scores.greedy(10).connected(Replacement::Corrupted);
/// let metrics = study.measure(&[&circuit], Replacement::Corrupted, &mut |_, _| Ok(()))?;
/// println!("with {} edges: {:?}", circuit.len(), metrics[0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Study<'a> {
    pub(super) model: &'a Gpt2LMHeadModel,
    graph: Graph,
    pairs: &'a [Pair],
    batches: Vec<PairBatch<'a>>,
    hooks: Option<&'a dyn Hooks>,
}

/// Called with the number of runs done and their total; its error ends the work.
pub type Progress<'a> = dyn FnMut(usize, usize) -> Result<()> + 'a;

/// Bytes that the values of all writers of a batch may take.
const BATCH_BYTES: usize = 256 << 20;
/// Positions that run together at most.
const POSITIONS: usize = 1024;

impl<'a> Study<'a> {
    /// A study of these pairs. Pairs of the same length run together.
    ///
    /// # Errors
    /// When there is no pair, for a pair whose texts have other lengths than 1 to N or differ in length, whose ids are not below V, or
    /// that lacks an answer, with its place counted from 0; and for a model that [`Graph::of`] refuses.
    pub fn new(model: &'a Gpt2LMHeadModel, pairs: &'a [Pair]) -> Result<Self> {
        let config = model.config();
        let graph = Graph::of(config)?;
        if pairs.is_empty() {
            candle_core::bail!("a study needs at least one pair of texts")
        }
        for (place, pair) in pairs.iter().enumerate() {
            pair.check(config).or_else(|error| candle_core::bail!("pair {place}: {error}"))?;
        }
        let of_a_position = graph.writer_count() * config.n_embd * 4;
        let positions = (BATCH_BYTES / of_a_position).clamp(1, POSITIONS);
        let batches = PairBatch::of(pairs, positions, model.device())?;
        Ok(Self { model, graph, pairs, batches, hooks: None })
    }

    /// Hooks for every run, such as [`Interventions`](gpt2_model::hooks::Interventions) on heads, with fixed means. They must treat
    /// the rows of a batch alike and apart.
    ///
    /// # Errors
    /// When they want a point where the stream changes by what no writer adds, or what a reader reads by itself: the stream behind
    /// the first block's start, what attention adds, the inputs of heads and MLPs, and `ln_1`'s points.
    pub fn with_hooks(mut self, hooks: &'a dyn Hooks) -> Result<Self> {
        check_carried(hooks, self.graph.layers())?;
        self.hooks = Some(hooks);
        Ok(self)
    }

    /// The model's graph.
    #[must_use]
    pub fn graph(&self) -> Graph {
        self.graph
    }

    /// The pairs.
    #[must_use]
    pub fn pairs(&self) -> &'a [Pair] {
        self.pairs
    }

    /// The hooks of every run.
    #[must_use]
    pub fn hooks(&self) -> Option<&'a dyn Hooks> {
        self.hooks
    }

    pub(super) fn batches(&self) -> &[PairBatch<'a>] {
        &self.batches
    }

    /// The metric of each pair's clean text, and of its corrupted one.
    ///
    /// # Errors
    /// For those of `progress` and of the hooks.
    pub fn plain(&self, progress: &mut Progress) -> Result<(Vec<f64>, Vec<f64>)> {
        let mut clean = vec![0.0; self.pairs.len()];
        let mut corrupt = vec![0.0; self.pairs.len()];
        for (done, batch) in self.batches.iter().enumerate() {
            for (ids, all) in [(&batch.clean, &mut clean), (&batch.corrupt, &mut corrupt)] {
                batch.put(&self.logits(ids, &Chain(&[]))?, all)?;
            }
            progress(done + 1, self.batches.len())?;
        }
        Ok((clean, corrupt))
    }

    /// The metric of each pair's clean text in a model that has a circuit's edges alone, for each circuit. Along other edges, readers
    /// get the replacement of what the writer adds. With all edges, it is that of the clean run, and with none and the corrupted
    /// run's values that of the corrupted run.
    ///
    /// # Errors
    /// When a circuit is one of another model's, and for those of `progress` and of the hooks.
    pub fn measure(
        &self,
        circuits: &[&EdgeSet],
        replacement: Replacement,
        progress: &mut Progress,
    ) -> Result<Vec<Vec<f64>>> {
        if circuits.iter().any(|circuit| circuit.graph() != self.graph) {
            candle_core::bail!("a circuit belongs to a model with another number of layers or heads")
        }
        let mut metrics = vec![vec![0.0; self.pairs.len()]; circuits.len()];
        let mut done = 0;
        let mut total = self.batches.len() * circuits.len();
        let fixed = match replacement {
            Replacement::Corrupted => None,
            Replacement::Mean => {
                total += self.batches.len();
                Some(self.means(&mut |runs| {
                    done += runs;
                    progress(done, total)
                })?)
            }
            Replacement::Zero => Some(WriterOutputs::zeros(self.model, self.graph)?),
        };
        for batch in &self.batches {
            let corrupt = || self.written(&batch.corrupt);
            let other = fixed.clone().map_or_else(corrupt, Ok)?;
            let streams = other.streams(self.model)?;
            for (circuit, metrics) in circuits.iter().zip(&mut metrics) {
                let run = CircuitRun::with(circuit, &other, &streams);
                batch.put(&self.logits(&batch.clean, &run)?, metrics)?;
                done += 1;
                progress(done, total)?;
            }
        }
        Ok(metrics)
    }

    /// The mean of what each writer adds in the corrupted runs.
    fn means(&self, step: &mut dyn FnMut(usize) -> Result<()>) -> Result<WriterOutputs> {
        WriterOutputs::mean(self.batches.iter().map(|batch| {
            let written = self.written(&batch.corrupt)?;
            step(1)?;
            Ok((written, batch.corrupt.elem_count()))
        }))
    }

    /// Each writer's output in a run over `ids` (B, T).
    pub(super) fn written(&self, ids: &Tensor) -> Result<WriterOutputs> {
        WriterOutputs::record(self.graph, |hooks| self.logits(ids, hooks).map(drop))
    }

    /// The logits that the metrics read, (B, 1, V) or (B, T, V), with hooks that come after the study's own.
    pub(super) fn logits(&self, ids: &Tensor, hooks: &dyn Hooks) -> Result<Tensor> {
        self.logits_between(ids, &Chain(&[]), hooks)
    }

    /// The logits that the metrics read, (B, 1, V) or (B, T, V), with hooks before and after the study's own.
    pub(super) fn logits_between(
        &self,
        ids: &Tensor,
        before: &dyn Hooks,
        after: &dyn Hooks,
    ) -> Result<Tensor> {
        let all: Vec<&dyn Hooks> = [before].into_iter().chain(self.hooks).chain([after]).collect();
        let chain = Chain(&all);
        let last_logits_only = !self.pairs.iter().any(|pair| pair.metric.reads_all_positions());
        let args = ForwardArgs { hooks: Some(&chain), last_logits_only, ..Default::default() };
        Ok(self.model.forward(ids, args)?.logits)
    }
}
