//! The sums and choices of a training step.

use super::sparse::Code;
use crate::error::TrainError;
use candle_core::{DType, Device, Result, Tensor, Var};
use gpt2_model::dictionary::ActiveFeature;
use gpt2_model::linear::{Epilogue, Weight, WeightLayout};
use rand::seq::index::sample;
use rand_chacha::ChaCha8Rng;

/// The width of the interval around a threshold in which sums teach it (Rajamanoharan et al.'s ε, for values of norm
/// √d).
const BANDWIDTH: f64 = 0.05;
/// The logarithms of thresholds learn so many times faster than the other numbers.
pub(super) const THRESHOLD_LR_FACTOR: f64 = 10.0;

/// The features whose sums are above their thresholds: at a threshold a feature does not fire, as in SAELens.
pub(super) fn above(sums: &[f32], threshold: &[f32]) -> Vec<ActiveFeature> {
    features_where(sums, threshold, |sum, threshold| sum > threshold)
}

/// The features whose sums are within half a bandwidth of their thresholds.
pub(super) fn near(sums: &[f32], threshold: &[f32]) -> Vec<ActiveFeature> {
    features_where(sums, threshold, |sum, threshold| f64::from((sum - threshold).abs()) < BANDWIDTH / 2.0)
}

fn features_where(
    sums: &[f32],
    threshold: &[f32],
    is_chosen: impl Fn(f32, f32) -> bool,
) -> Vec<ActiveFeature> {
    let all = (0u32..).zip(sums.iter().zip(threshold));
    all.filter(|(_, (sum, threshold))| is_chosen(**sum, **threshold))
        .map(|(feature, (&value, _))| ActiveFeature { feature, value })
        .collect()
}

/// The k largest sums of a row, also below 0; of equal ones, the first. `features` are the row's, in order.
pub(super) fn strongest(sums: &[f32], k: usize, features: &[u32]) -> Vec<ActiveFeature> {
    let mut order: Vec<usize> = (0..sums.len()).collect();
    if k < order.len() {
        order.select_nth_unstable_by(k, |&a, &b| sums[b].total_cmp(&sums[a]).then(a.cmp(&b)));
        order.truncate(k);
        order.sort_unstable();
    }
    order.into_iter().map(|at| ActiveFeature { feature: features[at], value: sums[at] }).collect()
}

/// The gradient of the thresholds' logarithms, by a rectangle in the place of the step's slope (Rajamanoharan et al., equations 11 and
/// 12): the sums near a threshold teach it, by the gradients of their activations and of L0, the mean number that fire.
pub(super) fn of_log_threshold(
    threshold: &[f32],
    near: &Code,
    slopes: &[Vec<f32>],
    of_l0: f64,
) -> Result<Tensor> {
    let mut sums = vec![0f64; threshold.len()];
    for (active, slope) in near.iter().flatten().zip(slopes.iter().flatten()) {
        let at = active.feature as usize;
        sums[at] -= (f64::from(*slope) * f64::from(threshold[at]) + of_l0 / near.len() as f64) / BANDWIDTH;
    }
    let of_log = |(sum, threshold): (f64, &f32)| sum * f64::from(*threshold) * THRESHOLD_LR_FACTOR;
    Tensor::from_iter(sums.into_iter().zip(threshold).map(of_log), &Device::Cpu)?.to_dtype(DType::F32)
}

/// The thresholds.
pub(super) fn threshold(log: &Tensor) -> Result<Tensor> {
    (log * THRESHOLD_LR_FACTOR)?.exp()
}

/// `x·W`, with the same bits for any number of threads.
pub(super) fn product(x: &Tensor, weight: &Var) -> Result<Tensor> {
    Weight::plain(weight.as_tensor().detach(), WeightLayout::InOut)?.forward(x, None, Epilogue::None)
}

/// The columns of `weight` (d, F) times `factors` (F), summed; with the same bits for any number of threads.
pub(super) fn sum_of_columns(weight: &Var, factors: &Tensor) -> Result<Tensor> {
    let weight = Weight::plain(weight.as_tensor().detach(), WeightLayout::OutIn)?;
    weight.forward(&factors.unsqueeze(0)?, None, Epilogue::None)?.squeeze(0)
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
        let sums = [[2.02f32], [1.98], [2.03], [1.9]];
        let fired: Code = sums.iter().map(|sum| above(sum, &[2.0])).collect();
        assert_eq!(fired.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0, 1, 0]);
        let near: Code = sums.iter().map(|sum| near(sum, &[2.0])).collect();
        assert_eq!(near.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 0, 0]);
        let gradient = |slope: f32, of_l0: f64| -> Result<f32> {
            let slopes: Vec<_> = near.iter().map(|row| vec![slope; row.len()]).collect();
            // Of the threshold instead of its logarithm.
            let of_log: Vec<f32> = of_log_threshold(&[2.0], &near, &slopes, of_l0)?.to_vec1()?;
            Ok(of_log[0] / (2.0 * 10.0))
        };
        // Two sums, each with -threshold/ε; and -1/ε each, over four positions.
        let of_acts = gradient(1.0, 0.0)?;
        let of_count = gradient(0.0, 1.0)?;
        assert!((of_acts + 2.0 * 2.0 / 0.05).abs() < 1e-3, "{of_acts}");
        assert!((of_count + 2.0 / 0.05 / 4.0).abs() < 1e-4, "{of_count}");
        Ok(())
    }

    #[test]
    fn a_sum_at_its_threshold_does_not_fire() {
        let fired = above(&[0.5f32, 0.25, 0.25f32.next_up()], &[0.25; 3]);
        assert_eq!(fired.iter().map(|one| one.feature).collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn the_strongest_may_be_below_0() {
        let found = strongest(&[-3.0, -1.0, -2.0, -1.0], 2, &[5, 6, 8, 9]);
        assert_eq!(
            found.iter().map(|one| (one.feature, one.value)).collect::<Vec<_>>(),
            [(6, -1.0), (9, -1.0)]
        );
        assert_eq!(strongest(&[1.0, 2.0], 3, &[4, 7]).len(), 2);
    }
}
