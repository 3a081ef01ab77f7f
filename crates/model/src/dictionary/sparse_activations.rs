//! [`SparseActivations`]: the features that fire at each position, and how strongly.

use candle_core::{Device, Result, Tensor};

/// The features that fire at each position of some values. Positions are rows, counted through all batches.
#[derive(Debug, Clone, PartialEq)]
pub struct SparseActivations {
    pub(super) features: usize,
    /// The index in `fired` at which each row begins, then the index at which the last row ends.
    starts: Vec<usize>,
    fired: Vec<ActiveFeature>,
    /// The shift and scale that normalization took from each row.
    pub(super) taken: Vec<RowScaling>,
}

/// A feature that fires.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ActiveFeature {
    /// The feature, counted from 0.
    pub feature: u32,
    /// Its activation, which is not 0.
    pub value: f32,
}

/// The shift and scale that normalization took from a row `x`: the dictionary encodes `(x - shift) / scale`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RowScaling {
    pub(super) shift: f32,
    pub(super) scale: f32,
}

impl SparseActivations {
    pub(super) fn new(features: usize, rows: Vec<Vec<ActiveFeature>>, taken: Vec<RowScaling>) -> Self {
        let mut starts = vec![0];
        let mut fired = Vec::with_capacity(rows.iter().map(Vec::len).sum());
        for row in rows {
            fired.extend(row);
            starts.push(fired.len());
        }
        Self { features, starts, fired, taken }
    }

    /// The number of positions.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.taken.len()
    }

    /// The number of the dictionary's features.
    #[must_use]
    pub fn features(&self) -> usize {
        self.features
    }

    /// The features that fire at a position, by number; none if there is no such position.
    #[must_use]
    pub fn row(&self, row: usize) -> &[ActiveFeature] {
        match (self.starts.get(row), self.starts.get(row + 1)) {
            (Some(&start), Some(&end)) => &self.fired[start..end],
            _ => &[],
        }
    }

    /// The features that fire most at a position, `count` at most, the strongest first.
    #[must_use]
    pub fn strongest(&self, row: usize, count: usize) -> Vec<ActiveFeature> {
        let mut fired = self.row(row).to_vec();
        fired.sort_by(|a, b| b.value.abs().total_cmp(&a.value.abs()).then(a.feature.cmp(&b.feature)));
        fired.truncate(count);
        fired
    }

    /// Each position's features, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[ActiveFeature]> {
        (0..self.rows()).map(|row| self.row(row))
    }

    /// A feature's activation at a position: 0 where it does not fire.
    #[must_use]
    pub fn value(&self, row: usize, feature: u32) -> f32 {
        let fired = self.row(row);
        fired.binary_search_by_key(&feature, |one| one.feature).map_or(0.0, |at| fired[at].value)
    }

    /// L0: how many features fire at a position, on average.
    #[must_use]
    pub fn mean_fired(&self) -> f64 {
        if self.rows() == 0 { 0.0 } else { self.fired.len() as f64 / self.rows() as f64 }
    }

    /// The number of features that fire, over all positions.
    #[must_use]
    pub fn count_fired(&self) -> usize {
        self.fired.len()
    }

    /// All activations, with the zeros.
    ///
    /// # Shapes
    /// -> (positions, features) in f32
    ///
    /// # Errors
    /// When the device fails.
    pub fn dense(&self) -> Result<Tensor> {
        let mut all = vec![0f32; self.rows() * self.features];
        for (row, fired) in self.iter().enumerate() {
            for one in fired {
                all[row * self.features + one.feature as usize] = one.value;
            }
        }
        Tensor::from_vec(all, (self.rows(), self.features), &Device::Cpu)
    }
}
