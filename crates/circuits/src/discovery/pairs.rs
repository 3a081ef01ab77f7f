//! Pairs of texts that differ in what a task is about.

use crate::circuits::f64_of;
use candle_core::{Device, Result, Tensor};
use gpt2_model::Config;
use gpt2_model::analysis::Metric;
use std::collections::BTreeMap;

/// A clean text, which the model should get right, a corrupted one of the same length, and what tells them apart.
#[derive(Debug, Clone)]
pub struct Pair {
    /// T ids
    pub clean: Vec<u32>,
    /// T ids
    pub corrupt: Vec<u32>,
    /// The metric of the prediction after the last token, or of the text.
    pub metric: Metric,
}

impl Pair {
    /// Refuses texts of other lengths than 1 to N or of different lengths, ids that are not below V, and a metric without a token.
    ///
    /// # Errors
    /// When the pair breaks one of these rules.
    pub fn check(&self, config: &Config) -> Result<()> {
        let Self { clean, corrupt, metric } = self;
        let (n, v) = (config.n_positions, config.vocab_size);
        if clean.len() != corrupt.len() {
            candle_core::bail!(
                "the clean text has {} tokens and the corrupted one {}, so their positions do not correspond",
                clean.len(),
                corrupt.len()
            )
        }
        if !(1..=n).contains(&clean.len()) {
            candle_core::bail!("a text has {} tokens, expected 1 to {n} (n_positions)", clean.len())
        }
        if let Some(id) = clean.iter().chain(corrupt).find(|&&id| id as usize >= v) {
            candle_core::bail!("token {id} is not in 0..{v} (vocab_size)")
        }
        metric.check(v)
    }
}

/// Pairs of the same length, which run together.
#[derive(Debug)]
pub(super) struct PairBatch<'a> {
    /// The indices of these pairs among all pairs.
    places: Vec<usize>,
    pairs: Vec<&'a Pair>,
    /// (B, T)
    pub(super) clean: Tensor,
    /// (B, T)
    pub(super) corrupt: Tensor,
}

impl<'a> PairBatch<'a> {
    /// All pairs, at most `positions` at a time.
    pub(super) fn of(pairs: &'a [Pair], positions: usize, device: &Device) -> Result<Vec<Self>> {
        let mut by_length: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (place, pair) in pairs.iter().enumerate() {
            by_length.entry(pair.clean.len()).or_default().push(place);
        }
        let mut batches = vec![];
        for (t, places) in by_length {
            for places in places.chunks((positions / t).max(1)) {
                let pairs: Vec<_> = places.iter().map(|&place| &pairs[place]).collect();
                let ids = |of: fn(&Pair) -> &[u32]| {
                    let ids = pairs.iter().flat_map(|pair| of(pair)).copied().collect();
                    Tensor::from_vec(ids, (pairs.len(), t), device)
                };
                let clean = ids(|pair| &pair.clean)?;
                let corrupt = ids(|pair| &pair.corrupt)?;
                batches.push(Self { places: places.to_vec(), pairs, clean, corrupt });
            }
        }
        Ok(batches)
    }

    /// The metric of each pair, differentiable: (B, 1 or T, V) -> (B)
    pub(super) fn metrics(&self, logits: &Tensor) -> Result<Tensor> {
        let of_pair = |(row, pair): (usize, &&Pair)| pair.metric.of_texts(&logits.narrow(0, row, 1)?)?.get(0);
        Tensor::stack(&self.pairs.iter().enumerate().map(of_pair).collect::<Result<Vec<_>>>()?, 0)
    }

    /// Puts the metric of each pair where the pair stands among all: (B, 1 or T, V) -> places of `all`
    pub(super) fn put(&self, logits: &Tensor, all: &mut [f64]) -> Result<()> {
        let found = f64_of(&self.metrics(logits)?)?.to_vec1::<f64>()?;
        self.places.iter().zip(found).for_each(|(&place, metric)| all[place] = metric);
        Ok(())
    }
}
