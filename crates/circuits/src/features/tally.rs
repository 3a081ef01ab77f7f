//! [`Tally`]: what features do over many tokens.

use super::sizes::ActivationSizes;
use candle_core::{DType, Device, Result, Tensor};
use gpt2_model::dictionary::{ActiveFeature, Dictionary, SparseActivations};
use gpt2_model::finite::all_finite;
use std::collections::VecDeque;
use std::ops::Range;

/// Rows to encode at a time, so that their f64 copies stay small.
const ROWS: usize = 1024;

/// The activity of each feature of a dictionary over many tokens: how often it fires, and where it fires most. Takes
/// any number of tokens.
#[derive(Debug)]
pub struct Tally<'a> {
    dictionary: &'a Dictionary,
    keep: usize,
    around: Around,
    tokens: usize,
    uses: Vec<Use>,
    /// The sum, and the sum of squares, of each of the value's channels.
    sums: Option<[Tensor; 2]>,
    /// The summed squared error of the reconstruction.
    missed: f64,
}

/// The number of tokens of its document to keep around a peak. Documents are cut into stretches of `before + after`
/// tokens; the strongest token of a stretch is its only peak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Around {
    /// Before it.
    pub before: usize,
    /// After it.
    pub after: usize,
}

/// A feature's activity.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Use {
    /// The number of tokens at which it fires.
    pub fired: u64,
    /// The sum of its activations.
    pub sum: f64,
    /// The sizes of its activations.
    pub sizes: ActivationSizes,
    /// The tokens at which it fires most, the strongest first.
    pub peaks: Vec<Peak>,
}

/// A token at which a feature fires.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Peak {
    /// The feature's activation.
    pub activation: f32,
    /// The document, counted from 0.
    pub document: u32,
    /// The token's position in its document, counted from 0.
    pub position: u32,
    /// The tokens before it.
    pub before: Vec<u32>,
    /// The token.
    pub id: u32,
    /// The tokens after it.
    pub after: Vec<u32>,
    /// The feature's activations at all of these: at the tokens before it, at it, and after it.
    pub activations: Vec<f32>,
}

/// Tokens one after another, and where in which document each stands.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    /// The tokens.
    pub ids: &'a [u32],
    /// The document of each.
    pub documents: &'a [u32],
    /// The position of each in its document.
    pub positions: &'a [u32],
}

impl<'a> Tally<'a> {
    /// An empty tally. Keeps the `keep` strongest peaks of each feature.
    #[must_use]
    pub fn new(dictionary: &'a Dictionary, keep: usize, around: Around) -> Self {
        let uses = vec![Use::default(); dictionary.features()];
        Self { dictionary, keep, around, tokens: 0, uses, sums: None, missed: 0.0 }
    }

    /// Adds tokens with the values that the dictionary reads, and those that it should rebuild, where they are known.
    ///
    /// # Shapes
    /// `read` (tokens, ..) of width d, `target` (tokens, ..) of width d out
    ///
    /// # Errors
    /// When there is not a value for each token, or one has another width than the dictionary or is not finite.
    pub fn add(&mut self, tokens: Tokens, read: &Tensor, target: Option<&Tensor>) -> Result<()> {
        self.add_by_parts(tokens, read, target, &mut |_| Ok(()))
    }

    /// Like [`Tally::add`]; calls `progress` with the number of these tokens that are done, every thousand or so.
    ///
    /// # Errors
    /// Gives the errors of [`Tally::add`] and of `progress`. The tally has then counted a part of the tokens: discard it.
    pub fn add_by_parts(
        &mut self,
        tokens: Tokens,
        read: &Tensor,
        target: Option<&Tensor>,
        progress: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let count = tokens.ids.len();
        let rows =
            [Some(read), target].into_iter().flatten().map(|x| x.dim(0)).collect::<Result<Vec<_>>>()?;
        let others = [tokens.documents.len(), tokens.positions.len()];
        if others.iter().chain(&rows).any(|&rows| rows != count) {
            candle_core::bail!(
                "{count} tokens, but {} documents, {} positions and values of {rows:?} tokens",
                others[0],
                others[1]
            )
        }
        let mut parts = Parts::default();
        let mut counted = 0;
        for start in (0..count).step_by(ROWS) {
            let rows = ROWS.min(count - start);
            let of = |x: &Tensor| {
                x.narrow(0, start, rows)?.flatten_from(1)?.to_device(&Device::Cpu)?.to_dtype(DType::F32)
            };
            let read = of(read)?;
            if !all_finite(&read)? {
                candle_core::bail!("a value of tokens {start} to {} is NaN or infinite", start + rows - 1)
            }
            let code = self.dictionary.encode(&read)?;
            if let Some(target) = target {
                let rebuilt = self.dictionary.decode(&code, &read)?;
                self.compare(&of(target)?, &rebuilt)?;
            }
            parts.codes.push_back(code);
            // A token counts once the activations after it are there, too.
            let end = start + rows;
            let until = if end == count { end } else { end.saturating_sub(self.around.after) };
            self.count(&parts, tokens, counted..until);
            counted = until;
            parts.forget_before(counted.saturating_sub(self.around.before));
            progress(end)?;
        }
        self.tokens += count;
        Ok(())
    }

    fn count(&mut self, parts: &Parts, tokens: Tokens, range: Range<usize>) {
        for at in range {
            for one in parts.row(at) {
                let found = &mut self.uses[one.feature as usize];
                found.fired += 1;
                found.sum += f64::from(one.value);
                found.sizes.add(one.value);
                let activation = |at: usize| parts.value(at, one.feature);
                found.offer(one.value, activation, tokens, at, self.keep, self.around);
            }
        }
    }

    fn compare(&mut self, target: &Tensor, rebuilt: &Tensor) -> Result<()> {
        let target = target.to_dtype(DType::F64)?;
        let error = (&target - rebuilt.to_dtype(DType::F64)?)?;
        self.missed += error.sqr()?.sum_all()?.to_scalar::<f64>()?;
        let [sum, squares] = [target.sum(0)?, target.sqr()?.sum(0)?];
        self.sums = Some(match self.sums.take() {
            None => [sum, squares],
            Some([a, b]) => [(a + sum)?, (b + squares)?],
        });
        Ok(())
    }

    /// The number of tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The activity of each feature, in order.
    #[must_use]
    pub fn uses(&self) -> &[Use] {
        &self.uses
    }

    /// L0: how many features fire at a token, on average.
    #[must_use]
    pub fn mean_fired(&self) -> f64 {
        self.uses.iter().map(|one| one.fired).sum::<u64>() as f64 / self.tokens.max(1) as f64
    }

    /// The share of the value's variance around its mean that the dictionary explains, over all tokens: 1 at best.
    /// `None` if nothing was compared, or the value is the same everywhere.
    ///
    /// # Errors
    /// When the device fails.
    pub fn explained_variance(&self) -> Result<Option<f64>> {
        let Some([sum, squares]) = &self.sums else { return Ok(None) };
        let all = (squares - (sum.sqr()? / self.tokens as f64)?)?.sum_all()?.to_scalar::<f64>()?;
        Ok((all > 0.0).then(|| 1.0 - self.missed / all))
    }
}

/// The activations of the latest parts of [`ROWS`] tokens: those of a whole shard can take gigabytes.
#[derive(Debug, Default)]
struct Parts {
    codes: VecDeque<SparseActivations>,
    /// The number of parts before these.
    forgotten: usize,
}

impl Parts {
    fn row(&self, at: usize) -> &[ActiveFeature] {
        self.codes[at / ROWS - self.forgotten].row(at % ROWS)
    }

    fn value(&self, at: usize, feature: u32) -> f32 {
        self.codes[at / ROWS - self.forgotten].value(at % ROWS, feature)
    }

    /// Forgets the parts that end before a token.
    fn forget_before(&mut self, at: usize) {
        while self.forgotten < at / ROWS && self.codes.pop_front().is_some() {
            self.forgotten += 1;
        }
    }
}

impl Use {
    /// Takes a token among the peaks if it is one of the strongest so far.
    fn offer(
        &mut self,
        activation: f32,
        activation_at: impl Fn(usize) -> f32,
        tokens: Tokens,
        at: usize,
        keep: usize,
        around: Around,
    ) {
        let weaker = |peak: &Peak| peak.activation.abs() < activation.abs();
        if keep == 0 || (self.peaks.len() == keep && !self.peaks.last().is_some_and(weaker)) {
            return;
        }
        let Tokens { ids, documents, positions } = tokens;
        let document = documents[at];
        let position = positions[at];
        let stretch = |position: u32| position as usize / (around.before + around.after).max(1);
        let near = |peak: &Peak| peak.document == document && stretch(peak.position) == stretch(position);
        if self.peaks.iter().any(|peak| near(peak) && !weaker(peak)) {
            return;
        }
        self.peaks.retain(|peak| !near(peak));
        let place = self.peaks.iter().take_while(|peak| !weaker(peak)).count();
        // At the same distance in the document as here.
        let follows =
            |&i: &usize| documents[i] == document && positions[i] as usize + at == position as usize + i;
        let first = at - (0..at).rev().take(around.before).take_while(follows).count();
        let last = at + (at + 1..ids.len()).take(around.after).take_while(follows).count();
        let peak = Peak {
            activation,
            document,
            position,
            before: ids[first..at].to_vec(),
            id: ids[at],
            after: ids[at + 1..=last].to_vec(),
            activations: (first..=last).map(activation_at).collect(),
        };
        self.peaks.insert(place, peak);
        self.peaks.truncate(keep);
    }
}
