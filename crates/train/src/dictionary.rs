//! [`DictionaryTrainer`]: trains a sparse autoencoder on a model's values, or a transcoder on pairs of them.
//!
//! The loss is the squared error of what is rebuilt, over the variance of the first values. A transcoder (Dunefsky et al. 2024,
//! "Transcoders Find Interpretable LLM Feature Circuits") rebuilds another value than it reads. Features fire by TopK (Gao et al. 2024,
//! "Scaling and evaluating sparse autoencoders") or above a threshold that learns, with a quadratic penalty on how many fire
//! (Rajamanoharan et al. 2024, "Jumping Ahead"). Features that have been silent for long rebuild what the others miss, in a loss
//! of its own (Gao et al., "`AuxK`"), so that they come back. In training, rows of `W_dec` keep norm 1.

mod batch_results;
mod operations;
mod resumed;
mod sparse;

use crate::error::{Result, TrainError};
use crate::optimizer::AdamWParams;
use crate::sharded::{Rates, ShardedOptimizer, facts_of_program, settings};
use batch_results::BatchResults;
use candle_core::{DType, Device, Result as CandleResult, Tensor, Var};
use gpt2_model::dictionary::{DictionaryTensors, Selection, largest};
use gpt2_model::finite::all_finite;
use gpt2_parallel::Group;
use operations::{
    THRESHOLD_LR_FACTOR, above, chosen, exceeded, near, norm_scale, of_log_threshold, product,
    scaled_variance, strongest, sum_of_columns, threshold, unit_rows,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use sparse::{Code, NumberRows, SparseGradients, of_sums, rebuilt, slopes};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The share of the loss of silent features in the whole (Gao et al.).
const SILENT_SHARE: f64 = 1.0 / 32.0;
/// The number of positions that decide the thresholds at the start.
const POSITIONS: usize = 256;

/// The rule by which few features fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sparsity {
    /// The k largest features of each position.
    TopK,
    /// The features above a threshold of their own, about k of each position.
    JumpRelu,
}

/// The settings of a [`DictionaryTrainer`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct DictionaryOptions {
    /// Of a transcoder, the width of the value that it reads: a row has that value, then the one to predict. `None` for a sparse
    /// autoencoder, which rebuilds the whole row.
    pub reads: Option<usize>,
    /// The number of features.
    pub features: usize,
    /// The rule by which few of them fire.
    pub sparsity: Sparsity,
    /// The number that fire at a position.
    pub k: usize,
    /// The largest learning rate. It rises over the first twentieth of the steps, and falls to 0 over the last fifth.
    pub lr: f64,
    /// The number of steps.
    pub steps: usize,
    /// After how many positions without firing a feature counts as silent.
    pub silent_after: usize,
    /// Decides the weights at the start.
    pub seed: u64,
}

impl DictionaryOptions {
    /// The usual settings.
    #[must_use]
    pub fn new(features: usize, k: usize, steps: usize) -> Self {
        let sparsity = Sparsity::TopK;
        Self { reads: None, features, sparsity, k, lr: 4e-3, steps, silent_after: 100_000, seed: 0 }
    }

    /// The values to read and to rebuild of some rows: of an autoencoder, the rows both times.
    fn parts(&self, rows: &Tensor) -> CandleResult<(Tensor, Tensor)> {
        let rows = rows.to_dtype(DType::F32)?;
        let Some(reads) = self.reads else { return Ok((rows.clone(), rows)) };
        let all = rows.dim(1)?;
        if reads == 0 || reads >= all {
            candle_core::bail!(
                "a transcoder that reads {reads} numbers of {all}: expected some to be left to predict"
            )
        }
        Ok((rows.narrow(1, 0, reads)?.contiguous()?, rows.narrow(1, reads, all - reads)?.contiguous()?))
    }

    /// The learning rate of a step, counted from 0.
    fn lr_at(&self, step: usize) -> f64 {
        let done = (step + 1) as f64;
        let all = self.steps as f64;
        let rising = done / (all / 20.0);
        let falling = (all - done + 1.0) / (all / 5.0);
        self.lr * rising.min(falling).min(1.0)
    }
}

/// The results of a step, before it changed anything.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct DictionaryStep {
    /// The share of the values' variance that was not rebuilt.
    pub unexplained: f64,
    /// The number of features that fired at a position, on average.
    pub l0: f64,
    /// The number of features that have been silent for long.
    pub silent: usize,
}

/// Trains a dictionary in f32 on the CPU.
#[derive(Debug)]
pub struct DictionaryTrainer {
    options: DictionaryOptions,
    w_enc: Var,
    b_enc: Var,
    w_dec: Var,
    b_dec: Var,
    /// The logarithms of the thresholds, divided by [`THRESHOLD_LR_FACTOR`].
    log_threshold: Option<Var>,
    optimizer: ShardedOptimizer,
    /// Makes the mean norm of the values that are read √d.
    scale: f64,
    /// The scale of the values that are rebuilt.
    out_scale: f64,
    /// Of the numbers to rebuild of the sample over its positions, scaled.
    variance: f64,
    /// For how many positions each feature has been silent.
    silent: Vec<usize>,
    /// The facts on which the result depends besides the values of the steps.
    begun: serde_json::Value,
}

impl DictionaryTrainer {
    /// A trainer for values like `sample`, which decide the scale, the first `b_dec` and the first thresholds. Rows of `W_dec` begin in random directions,
    /// and columns of `W_enc` as those rows, or of a transcoder in directions of their own.
    ///
    /// # Shapes
    /// `sample` (positions, d); of a transcoder, (positions, d in + d out)
    ///
    /// # Errors
    /// When `sample` is empty, the same at all positions or not finite, or an option is 0, or k is larger than the number of features.
    pub fn new(sample: &Tensor, options: DictionaryOptions) -> Result<Self> {
        let DictionaryOptions { features, k, steps, silent_after, .. } = options;
        if k == 0 || k > features || steps == 0 || silent_after == 0 {
            return Err(TrainError::other(format!(
                "a dictionary of {features} features, of which {k} fire, in {steps} steps: expected 1 or more of each, and no more that fire than there are"
            )));
        }
        let positions = sample.dim(0)?;
        if positions == 0 {
            return Err(TrainError::other("a dictionary needs values to learn from, got none"));
        }
        let (sample, target) = options.parts(sample)?;
        let d = sample.dim(1)?;
        let d_out = target.dim(1)?;
        let scale = norm_scale(&sample)?;
        let out_scale = norm_scale(&target)?;
        let variance = scaled_variance(&target, out_scale)?;
        if variance == 0.0 {
            return Err(TrainError::other(format!(
                "the values are the same at all {positions} positions: there is nothing to learn"
            )));
        }
        let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
        let mut directions = |d: usize| {
            let drawn: Vec<f32> = (0..features * d).map(|_| StandardNormal.sample(&mut rng)).collect();
            unit_rows(&Tensor::from_vec(drawn, (features, d), &Device::Cpu)?)
        };
        let w_dec = directions(d_out)?;
        // What a transcoder reads has other directions than what it predicts.
        let read = if options.reads.is_some() { directions(d)? } else { w_dec.clone() };
        // A mean of few rows is as good as one of all.
        let few = chosen(&mut rng, positions, 4096)?;
        let zeros = || Var::zeros(features, DType::F32, &Device::Cpu);
        let w_enc = Var::from_tensor(&read.t()?.contiguous()?)?;
        let b_enc = zeros()?;
        let w_dec = Var::from_tensor(&w_dec)?;
        let b_dec = Var::from_tensor(&(target.index_select(&few, 0)?.mean(0)? * out_scale)?)?;
        let log_threshold = match options.sparsity {
            Sparsity::TopK => None,
            Sparsity::JumpRelu => {
                let rows = sample.index_select(&few.narrow(0, 0, few.dim(0)?.min(POSITIONS))?, 0)?;
                let rows = (rows * scale)?;
                let rows =
                    if options.reads.is_some() { rows } else { rows.broadcast_sub(b_dec.as_tensor())? };
                let pre = product(&rows, &w_enc)?;
                let first = f64::from(exceeded(&pre, k)?.max(f32::EPSILON));
                Some(Var::from_tensor(&(zeros()?.as_tensor() + first.ln() / THRESHOLD_LR_FACTOR)?)?)
            }
        };
        let mut variables = vec![("W_enc", &w_enc), ("b_enc", &b_enc), ("W_dec", &w_dec), ("b_dec", &b_dec)];
        variables.extend(log_threshold.iter().map(|threshold| ("log_threshold", threshold)));
        let variables = variables.into_iter().map(|(name, var)| (name.to_owned(), var.clone()));
        let params = AdamWParams { weight_decay: 0.0, max_grad_norm: Some(1.0), ..AdamWParams::default() };
        let optimizer = ShardedOptimizer::new(variables.collect(), params, |_, _| None, &Device::Cpu)?;
        let silent = vec![0; features];
        let begun = serde_json::Value::Null;
        let mut trainer = Self {
            options,
            w_enc,
            b_enc,
            w_dec,
            b_dec,
            log_threshold,
            optimizer,
            scale,
            out_scale,
            variance,
            silent,
            begun,
        };
        trainer.begun = trainer.facts()?;
        Ok(trainer)
    }

    /// Shares the batches of each step out over the processes of a group, each of which has a trainer of the same sample and options.
    /// The dictionary is that of one process, bit for bit. `given` says in the user's words what the values depend on. After an error
    /// on one rank, the others may wait for it: end the job with [`Group::abort`].
    ///
    /// # Errors
    /// When a rank has other options, another sample or other facts than rank 0, another version or instruction set, or a step was
    /// already taken.
    pub fn in_group(mut self, group: Arc<dyn Group>, given: &serde_json::Value) -> Result<Self> {
        if self.optimizer.steps() > 0 {
            return Err(TrainError::other("join the group before the first step"));
        }
        group.agree(|| {
            let mut facts = facts_of_program();
            facts.extend(settings(given));
            facts.extend(settings(&self.begun));
            Result::Ok(facts)
        })?;
        self.optimizer.join(group)?;
        Ok(self)
    }

    /// Lists everything that the result depends on besides the values of the steps; before the first step.
    fn facts(&self) -> Result<serde_json::Value> {
        let DictionaryOptions { reads, features, sparsity, k, lr, steps, silent_after, seed } = self.options;
        // Of the scale, the first thresholds and the first weights.
        let mut sample = DefaultHasher::new();
        (self.scale.to_bits(), self.variance.to_bits()).hash(&mut sample);
        for (_, var) in &self.optimizer.variables {
            for value in var.flatten_all()?.to_vec1::<f32>()? {
                value.to_bits().hash(&mut sample);
            }
        }
        let mut facts = serde_json::json!({
            "features": features, "sparsity": format!("{sparsity:?}"), "k": k, "lr": lr, "steps": steps, "silent_after": silent_after,
            "seed": seed, "first values (by their fingerprint)": format!("{:016x}", sample.finish()),
        });
        if let Some(reads) = reads {
            facts["width of what is read"] = reads.into();
        }
        Ok(facts)
    }

    /// Takes a step along the mean of the gradients of these batches. In a group of R ranks, every rank gives as many, and rank i mod R
    /// computes batch i; what the others give in its place does not matter.
    ///
    /// # Shapes
    /// `batches`: (positions, d) each; of a transcoder, (positions, d in + d out)
    ///
    /// # Errors
    /// When there is no batch, one has another width, a gradient is not finite, or a rank does not answer.
    pub fn step(&mut self, batches: &[Tensor]) -> Result<DictionaryStep> {
        if batches.is_empty() {
            return Err(TrainError::other("a step needs at least one batch"));
        }
        let group = self.optimizer.group();
        let mut sums = self.optimizer.sums();
        let mut found = vec![];
        for round in batches.chunks(group.size()) {
            let mine = round.get(group.rank()).map(|x| self.gradients(x)).transpose()?;
            let bytes = mine.as_ref().map_or_else(Vec::new, |(results, _)| results.to_bytes());
            found.extend(
                group.gather_bytes(&bytes)?.iter().filter_map(|bytes| BatchResults::from_bytes(bytes)),
            );
            let gradients = mine.map(|(_, gradients)| gradients.into_iter().enumerate().collect());
            sums.add(gradients, round.len())?;
        }
        let sums = sums.rows()?;
        let step = usize::try_from(self.optimizer.steps()).map_err(TrainError::other)?;
        let lr = self.options.lr_at(step);
        self.optimizer.step(&sums, Rates { adamw: lr, muon: 0.0 }, 1.0 / batches.len() as f64)?;
        self.w_dec.set(&unit_rows(self.w_dec.as_tensor())?)?;
        for results in &found {
            self.silent = results.silent_after(&self.silent);
        }
        let mean = |of: fn(&BatchResults) -> f64| found.iter().map(of).sum::<f64>() / found.len() as f64;
        Ok(DictionaryStep {
            unexplained: mean(|batch| batch.unexplained.into()),
            l0: mean(|batch| batch.l0),
            silent: self.is_silent(&self.silent).filter(|&silent| silent).count(),
        })
    }

    /// The results of a batch of rows, and the gradients of the variables, in the optimizer's order.
    fn gradients(&self, rows: &Tensor) -> Result<(BatchResults, Vec<Tensor>)> {
        let (x, target) = self.options.parts(rows)?;
        let x = (x * self.scale)?;
        let target = (target * self.out_scale)?;
        let (positions, d_out) = target.dims2()?;
        // Sums of NaN neither fire nor teach, so that nothing else would notice.
        if positions == 0 || !all_finite(&x)? || !all_finite(&target)? {
            return Err(TrainError::other(format!(
                "a batch of {positions} values: expected some, none NaN or infinite"
            )));
        }
        let is_transcoder = self.options.reads.is_some();
        let b_dec = self.b_dec.as_tensor().detach();
        let x = if is_transcoder { x } else { x.broadcast_sub(&b_dec)? };
        let w_dec = NumberRows::of(self.w_dec.as_tensor())?;
        let FiredFeatures { code, near } = self.fired(&x)?;
        let rebuilt = rebuilt(&code, &w_dec)?.broadcast_add(&b_dec)?;
        let missed = (target - rebuilt)?;
        let squares = missed.sqr()?.mean_all()?;
        let unexplained = (&squares / self.variance)?.to_scalar()?;
        let results = BatchResults::new(positions, unexplained, &code, self.options.features);

        // Of the squares' mean over the variance.
        let count = (positions * d_out) as f64;
        let of_rebuilt = (&missed * (-2.0 / (count * self.variance)))?;
        let mut of_b_dec = of_rebuilt.sum(0)?;
        let of_rebuilt = NumberRows::of(&of_rebuilt)?;
        let x_rows = NumberRows::of(&x)?;
        let mut sums = SparseGradients::zeros(self.options.features, x.dim(1)?, d_out);
        sums.add(&code, &x_rows, &of_rebuilt, &w_dec);
        if let Some(SilentCode { code, missed }) = self.silent_code(&x, &missed, &w_dec, &results)? {
            // Of their own squares' mean over that of what was missed.
            let of_rebuilt =
                (missed * (-2.0 * SILENT_SHARE / (count * f64::from(squares.to_scalar::<f32>()?))))?;
            sums.add(&code, &x_rows, &NumberRows::of(&of_rebuilt)?, &w_dec);
        }
        let [w_enc, b_enc, of_w_dec] = sums.tensors()?;
        if !is_transcoder {
            // Each position subtracts it from what it reads.
            of_b_dec = (of_b_dec - sum_of_columns(&self.w_enc, &b_enc)?)?;
        }
        let mut gradients =
            vec![("W_enc", w_enc), ("b_enc", b_enc), ("W_dec", of_w_dec), ("b_dec", of_b_dec)];
        if let Some(log_threshold) = &self.log_threshold {
            let threshold: Vec<f32> = threshold(log_threshold.as_tensor())?.to_vec1()?;
            let slopes = slopes(&near, &of_rebuilt, &w_dec);
            // Of (L0 / k - 1)².
            let of_l0 = 2.0 * (results.l0 / self.options.k as f64 - 1.0) / self.options.k as f64;
            gradients.push(("log_threshold", of_log_threshold(&threshold, &near, &slopes, of_l0)?));
        }
        let of =
            |name: &String| gradients.iter().find(|(one, _)| one == name).map(|(_, found)| found.clone());
        let in_order: Option<Vec<_>> = self.optimizer.variables.iter().map(|(name, _)| of(name)).collect();
        Ok((results, in_order.ok_or_else(|| TrainError::other("a variable has no gradient"))?))
    }

    /// The features that fire at each row of `x`, and those whose sums teach their thresholds.
    fn fired(&self, x: &Tensor) -> Result<FiredFeatures> {
        let w_enc = &self.w_enc.as_tensor().detach();
        let b_enc = &self.b_enc.as_tensor().detach();
        let Some(log_threshold) = &self.log_threshold else {
            let code = of_sums(x, w_enc, b_enc, |row| largest(row, None, self.options.k, false))?;
            return Ok(FiredFeatures { code, near: vec![] });
        };
        let threshold: Vec<f32> = threshold(log_threshold.as_tensor())?.to_vec1()?;
        let both = of_sums(x, w_enc, b_enc, |row| (above(row, &threshold), near(row, &threshold)))?;
        let (code, near) = both.into_iter().unzip();
        Ok(FiredFeatures { code, near })
    }

    /// The strongest silent features of each row of `x`, and what these do not rebuild of what the others missed; `None` if none is
    /// silent or nothing was missed.
    fn silent_code(
        &self,
        x: &Tensor,
        missed: &Tensor,
        w_dec: &NumberRows,
        results: &BatchResults,
    ) -> Result<Option<SilentCode>> {
        // A feature that fires here is not silent, whatever other batches of the step say.
        let is_silent = self.is_silent(&results.silent_after(&self.silent)).collect::<Vec<_>>();
        let silent: Vec<u32> = (0u32..).zip(is_silent).filter_map(|(one, is)| is.then_some(one)).collect();
        if silent.is_empty() || results.unexplained == 0.0 {
            return Ok(None);
        }
        let k = silent.len().min(missed.dim(1)? / 2).max(1);
        let at = Tensor::from_slice(&silent, silent.len(), &Device::Cpu)?;
        let w_enc = self.w_enc.as_tensor().detach().index_select(&at, 1)?;
        let b_enc = self.b_enc.as_tensor().detach().index_select(&at, 0)?;
        // Without ReLU, whose gradient would leave silent what is below 0.
        let code = of_sums(x, &w_enc, &b_enc, |row| strongest(row, k, &silent))?;
        let missed = (missed - rebuilt(&code, w_dec)?)?;
        Ok(Some(SilentCode { code, missed }))
    }

    /// The processes that share the work.
    #[must_use]
    pub fn group(&self) -> &dyn Group {
        self.optimizer.group()
    }

    /// The dictionary so far, for values as they are: the scales are folded into the weights. It subtracts `b_dec` from its input,
    /// unless it is a transcoder.
    ///
    /// # Errors
    /// When the device fails.
    pub fn dictionary(&self) -> CandleResult<(DictionaryTensors, Selection)> {
        let tensors = DictionaryTensors {
            w_enc: (self.w_enc.as_tensor().detach() * self.scale)?,
            b_enc: self.b_enc.as_tensor().detach().copy()?,
            w_dec: (self.w_dec.as_tensor().detach() / self.out_scale)?,
            b_dec: (self.b_dec.as_tensor().detach() / self.out_scale)?,
            skip: None,
        };
        let selection = match &self.log_threshold {
            None => Selection::TopK { k: self.options.k, by_norm: false, absolute: false },
            Some(log_threshold) => Selection::JumpRelu(threshold(&log_threshold.as_tensor().detach())?),
        };
        Ok((tensors, selection))
    }

    /// Tells of each feature whether it has been silent for long, from the positions for which it has been.
    fn is_silent<'a>(&'a self, silent: &'a [usize]) -> impl Iterator<Item = bool> + 'a {
        silent.iter().map(|&positions| positions >= self.options.silent_after)
    }
}

/// The features that fire at each position, and those whose sums are near their thresholds.
struct FiredFeatures {
    code: Code,
    near: Code,
}

/// Silent features at each position, and what they leave of what was missed.
struct SilentCode {
    code: Code,
    missed: Tensor,
}

#[cfg(test)]
mod tests;
