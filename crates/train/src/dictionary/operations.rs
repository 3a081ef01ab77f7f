//! The sums and choices of a training step.

use candle_core::{D, DType, Device, Result, Tensor, Var};
use gpt2_model::linear::{Epilogue, Weight, WeightLayout};
use rand::seq::index::sample;
use rand_chacha::ChaCha8Rng;

/// The width of the interval around a threshold in which sums teach it (Rajamanoharan et al.'s ε, for values of norm
/// √d).
const BANDWIDTH: f64 = 0.05;
/// The logarithms of thresholds learn so many times faster than the other numbers.
pub(super) const THRESHOLD_LR_FACTOR: f64 = 10.0;

/// `max(pre, 0)` of the features that fire, and how many fire at a position. Thresholds learn from the sums that are within the
/// bandwidth of them, as if a rectangle stood there for the step's slope (Rajamanoharan et al., equations 11 and 12).
pub(super) fn jump(pre: &Tensor, fires: &Tensor, threshold: &Tensor) -> Result<(Tensor, Tensor)> {
    let apart = pre.detach().broadcast_sub(&threshold.detach())?;
    let near = apart.abs()?.lt(BANDWIDTH / 2.0)?.to_dtype(DType::F32)?; // (positions, F)
    // 0 with the threshold's gradient.
    let learns = (threshold - threshold.detach())?;
    let of_acts = near.broadcast_mul(&(threshold.detach() / BANDWIDTH)?)?.broadcast_mul(&learns)?;
    let acts = ((pre.relu()? * fires)? - of_acts)?;
    let of_count = (near / BANDWIDTH)?.broadcast_mul(&learns)?;
    let count = (fires - of_count)?.sum(D::Minus1)?.mean_all()?;
    Ok((acts, count))
}

/// The thresholds.
pub(super) fn threshold(log: &Tensor) -> Result<Tensor> {
    (log * THRESHOLD_LR_FACTOR)?.exp()
}

/// `x·W + b`, with the same bits for any number of threads.
pub(super) fn product(x: &Tensor, weight: &Var, bias: Option<&Var>) -> Result<Tensor> {
    let weight = Weight::plain(weight.as_tensor().clone(), WeightLayout::InOut)?;
    weight.forward(x, bias.map(Var::as_tensor), Epilogue::None)
}

/// 1 at the k largest numbers of each row that are above 0, else 0; of equal ones, at the first.
pub(super) fn largest(x: &Tensor, k: usize) -> Result<Tensor> {
    let (rows, columns) = x.dims2()?;
    let x: Vec<f32> = x.flatten_all()?.to_vec1()?;
    let mut chosen = vec![0f32; x.len()];
    let mut order: Vec<usize> = vec![];
    for (row, chosen) in x.chunks(columns).zip(chosen.chunks_mut(columns)) {
        order.clear();
        order.extend((0..columns).filter(|&i| row[i] > 0.0));
        if order.len() > k {
            order.select_nth_unstable_by(k, |&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
            order.truncate(k);
        }
        for &i in &order {
            chosen[i] = 1.0;
        }
    }
    Tensor::from_vec(chosen, (rows, columns), &Device::Cpu)
}

/// The number that k of each row exceed, on average.
pub(super) fn exceeded(x: &Tensor, k: usize) -> Result<f32> {
    let mut all: Vec<f32> = x.flatten_all()?.to_vec1()?;
    let at = (k * x.dim(0)?).min(all.len() - 1);
    let (_, found, _) = all.select_nth_unstable_by(at, |a, b| b.total_cmp(a));
    Ok(*found)
}

/// The mean over numbers of the variance over positions, after scaling.
pub(super) fn scaled_variance(x: &Tensor, scale: f64) -> Result<f64> {
    let x = x.to_dtype(DType::F64)?;
    let apart = x.broadcast_sub(&x.mean_keepdim(0)?)?;
    Ok(apart.sqr()?.mean_all()?.to_scalar::<f64>()? * scale * scale)
}

/// The rows divided by their norms.
pub(super) fn unit_rows(x: &Tensor) -> Result<Tensor> {
    x.broadcast_div(&x.sqr()?.sum_keepdim(1)?.sqrt()?)
}

/// At most `count` of `all` rows, in order.
pub(super) fn chosen(rng: &mut ChaCha8Rng, all: usize, count: usize) -> Result<Tensor> {
    let mut rows: Vec<usize> = sample(rng, all, count.min(all)).into_vec();
    rows.sort_unstable();
    let rows: Vec<u32> = rows
        .into_iter()
        .map(u32::try_from)
        .collect::<std::result::Result<_, _>>()
        .map_err(candle_core::Error::wrap)?;
    Tensor::new(rows, &Device::Cpu)
}
