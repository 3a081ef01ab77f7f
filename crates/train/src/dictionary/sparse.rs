//! Sums, choices and gradients that touch only the features that fire.

use candle_core::{Device, Result, Tensor};
use gpt2_model::dictionary::ActiveFeature;
use gpt2_model::linear::{Epilogue, Weight, WeightLayout};
use rayon::prelude::*;

/// Positions whose sums are in memory at a time.
const ROWS: usize = 256;

/// Features at each position.
pub(super) type Code = Vec<Vec<ActiveFeature>>;

/// Numbers of a matrix in memory, by row.
pub(super) struct NumberRows {
    numbers: Vec<f32>,
    width: usize,
}

impl NumberRows {
    /// # Shapes
    /// `x` (rows, width)
    pub(super) fn of(x: &Tensor) -> Result<Self> {
        Ok(Self { numbers: x.flatten_all()?.to_vec1()?, width: x.dim(1)? })
    }

    fn zeros(rows: usize, width: usize) -> Self {
        Self { numbers: vec![0.0; rows * width], width }
    }

    fn row(&self, at: usize) -> &[f32] {
        &self.numbers[at * self.width..][..self.width]
    }

    fn tensor(self) -> Result<Tensor> {
        let rows = self.numbers.len() / self.width;
        Tensor::from_vec(self.numbers, (rows, self.width), &Device::Cpu)
    }
}

/// The results of `choose` for each row of `x·W + b`.
///
/// # Shapes
/// `x` (positions, d), `w` (d, F), `b` (F)
pub(super) fn of_sums<T: Send>(
    x: &Tensor,
    w: &Tensor,
    b: &Tensor,
    choose: impl Fn(&[f32]) -> T + Sync,
) -> Result<Vec<T>> {
    let weight = Weight::pack(w, WeightLayout::InOut)?;
    let positions = x.dim(0)?;
    let mut found = Vec::with_capacity(positions);
    for first in (0..positions).step_by(ROWS) {
        let rows = x.narrow(0, first, ROWS.min(positions - first))?;
        let sums = NumberRows::of(&weight.forward(&rows, Some(b), Epilogue::None)?)?;
        found.par_extend(sums.numbers.par_chunks(sums.width).map(&choose));
    }
    Ok(found)
}

/// `code·W`, (positions, d out)
///
/// # Shapes
/// `w_dec` (F, d out)
pub(super) fn rebuilt(code: &Code, w_dec: &NumberRows) -> Result<Tensor> {
    let mut sums = NumberRows::zeros(code.len(), w_dec.width);
    sums.numbers.par_chunks_mut(w_dec.width).zip(code).for_each(|(sum, row)| {
        for &ActiveFeature { feature, value } in row {
            add(sum, value, w_dec.row(feature as usize));
        }
    });
    sums.tensor()
}

/// For each feature of a code, the gradient of its activation: its direction's product with that of what is rebuilt.
///
/// # Shapes
/// `of_rebuilt` (positions, d out), `w_dec` (F, d out)
pub(super) fn slopes(code: &Code, of_rebuilt: &NumberRows, w_dec: &NumberRows) -> Vec<Vec<f32>> {
    let of_row = |(position, row): (usize, &Vec<ActiveFeature>)| {
        let of_rebuilt = of_rebuilt.row(position);
        row.iter().map(|active| dot(of_rebuilt, w_dec.row(active.feature as usize))).collect()
    };
    code.par_iter().enumerate().map(of_row).collect()
}

/// The sums of gradients of the encoder and of the decoder's directions.
pub(super) struct SparseGradients {
    /// (F, d)
    w_enc: NumberRows,
    /// (F)
    b_enc: Vec<f32>,
    /// (F, d out)
    w_dec: NumberRows,
}

/// An activation of a feature, and its gradient.
struct ActiveAt {
    position: usize,
    value: f32,
    slope: f32,
}

impl SparseGradients {
    pub(super) fn zeros(features: usize, d: usize, d_out: usize) -> Self {
        Self {
            w_enc: NumberRows::zeros(features, d),
            b_enc: vec![0.0; features],
            w_dec: NumberRows::zeros(features, d_out),
        }
    }

    /// Adds those of a code whose activations are sums, with the same bits for any number of threads.
    ///
    /// # Shapes
    /// `x` (positions, d), `of_rebuilt` (positions, d out), `w_dec` (F, d out)
    pub(super) fn add(&mut self, code: &Code, x: &NumberRows, of_rebuilt: &NumberRows, w_dec: &NumberRows) {
        let mut by_feature: Vec<Vec<ActiveAt>> = self.b_enc.iter().map(|_| vec![]).collect();
        for (position, (row, slopes)) in code.iter().zip(slopes(code, of_rebuilt, w_dec)).enumerate() {
            for (active, slope) in row.iter().zip(slopes) {
                by_feature[active.feature as usize].push(ActiveAt { position, value: active.value, slope });
            }
        }
        let encoders = self.w_enc.numbers.par_chunks_mut(self.w_enc.width).zip(&mut self.b_enc);
        let directions = self.w_dec.numbers.par_chunks_mut(self.w_dec.width);
        encoders.zip(directions).zip(by_feature).for_each(|(((w_enc, b_enc), direction), all)| {
            for ActiveAt { position, value, slope } in all {
                add(w_enc, slope, x.row(position));
                *b_enc += slope;
                add(direction, value, of_rebuilt.row(position));
            }
        });
    }

    /// The gradients of `W_enc` (d, F), `b_enc` (F) and `W_dec` (F, d out).
    pub(super) fn tensors(self) -> Result<[Tensor; 3]> {
        let w_enc = self.w_enc.tensor()?.t()?.contiguous()?;
        let features = self.b_enc.len();
        Ok([w_enc, Tensor::from_vec(self.b_enc, features, &Device::Cpu)?, self.w_dec.tensor()?])
    }
}

/// `sum += factor · x`
fn add(sum: &mut [f32], factor: f32, x: &[f32]) {
    for (sum, x) in sum.iter_mut().zip(x) {
        *sum += factor * x;
    }
}

/// The product of two rows, in lanes that a processor adds at once.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let (a, rest_a) = a.as_chunks::<16>();
    let (b, rest_b) = b.as_chunks::<16>();
    for (a, b) in a.iter().zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    let rest: f32 = rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}
