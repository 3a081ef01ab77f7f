//! The sums and choices of a training step.

use crate::error::TrainError;
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

/// 1 where a sum is above its feature's threshold, else 0: at the threshold a feature does not fire, as in SAELens.
pub(super) fn above(pre: &Tensor, threshold: &Tensor) -> Result<Tensor> {
    pre.detach().broadcast_gt(&threshold.detach())?.to_dtype(DType::F32)
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

/// The factor that makes the mean norm of values (positions, d) √d.
pub(super) fn norm_scale(x: &Tensor) -> crate::error::Result<f64> {
    let norm = x.to_dtype(DType::F64)?.sqr()?.sum(1)?.sqrt()?.mean_all()?.to_scalar::<f64>()?;
    let scale = (x.dim(1)? as f64).sqrt() / norm;
    if !scale.is_finite() || scale == 0.0 {
        return Err(TrainError::other(format!("the values' mean norm is {norm}, expected a number above 0")));
    }
    Ok(scale)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Equations 11 and 12 of Rajamanoharan et al. with ε = 0.05, by hand: of four sums, those at most 0.025 from the threshold 2
    /// teach it.
    #[test]
    fn thresholds_learn_from_the_sums_within_half_a_bandwidth() -> Result<()> {
        let pre = Tensor::new(&[[2.02f32], [1.98], [2.03], [1.9]], &Device::Cpu)?;
        let threshold = Var::new(&[2f32], &Device::Cpu)?;
        let fires = above(&pre, threshold.as_tensor())?;
        assert_eq!(fires.flatten_all()?.to_vec1::<f32>()?, [1.0, 0.0, 1.0, 0.0]);
        let gradient = |of: &Tensor| -> Result<f32> {
            let gradients = of.backward()?;
            let found = gradients.get(threshold.as_tensor()).map(Tensor::to_vec1::<f32>).transpose()?;
            Ok(found.map_or(0.0, |found| found[0]))
        };
        let (acts, count) = jump(&pre, &fires, threshold.as_tensor())?;
        assert_eq!(acts.flatten_all()?.to_vec1::<f32>()?, [2.02, 0.0, 2.03, 0.0]);
        // Two sums, each with -threshold/ε; and -1/ε each, over four positions.
        let of_acts = gradient(&acts.sum_all()?)?;
        let of_count = gradient(&count)?;
        assert!((of_acts + 2.0 * 2.0 / 0.05).abs() < 1e-3, "{of_acts}");
        assert!((of_count + 2.0 / 0.05 / 4.0).abs() < 1e-4, "{of_count}");
        Ok(())
    }

    #[test]
    fn a_sum_at_its_threshold_does_not_fire() -> Result<()> {
        let pre = Tensor::new(&[[0.5f32, 0.25, 0.25f32.next_up()]], &Device::Cpu)?;
        let threshold = Tensor::new(&[0.25f32, 0.25, 0.25], &Device::Cpu)?;
        assert_eq!(above(&pre, &threshold)?.flatten_all()?.to_vec1::<f32>()?, [1.0, 0.0, 1.0]);
        Ok(())
    }
}
