//! The largest weights of each row, for texts so long that the rest is only noise and bulk.

use candle_core::{DType, Device, Result, Tensor};
use rayon::prelude::*;

/// The weights with all but the `k` largest of each row set to 0; among equal ones, earlier keys stay.
///
/// # Shapes
/// `weights` (.., S) of any float dtype, on any device -> f32 of the same shape on the CPU
///
/// # Errors
/// When the weights cannot be copied to the CPU, or `k` is 0.
pub fn keep_largest(weights: &Tensor, k: usize) -> Result<Tensor> {
    if k == 0 {
        candle_core::bail!("keep_largest: at least one weight of each row has to stay")
    }
    let s = weights.dims().last().copied().unwrap_or(1).max(1);
    let mut data = weights.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    if k < s {
        data.par_chunks_mut(s).for_each(|row| {
            let mut order: Vec<usize> = (0..s).collect();
            order.select_nth_unstable_by(k, |&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
            order[k..].iter().for_each(|&key| row[key] = 0.0);
        });
    }
    Tensor::from_vec(data, weights.shape(), &Device::Cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_stay() -> Result<()> {
        let weights = Tensor::new(&[[[0.1f32, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]]], &Device::Cpu)?;
        let kept = |k| -> Result<Vec<Vec<f32>>> { keep_largest(&weights, k)?.get(0)?.to_vec2() };
        assert_eq!(kept(2)?, [[0.0, 0.4, 0.0, 0.3], [0.25, 0.25, 0.0, 0.0]]);
        assert_eq!(kept(1)?, [[0.0, 0.4, 0.0, 0.0], [0.25, 0.0, 0.0, 0.0]]);
        assert_eq!(kept(4)?, kept(9)?);
        assert_eq!(kept(4)?, weights.get(0)?.to_vec2::<f32>()?);
        assert!(keep_largest(&weights, 0).is_err());
        let half = keep_largest(&weights.to_dtype(DType::F16)?.transpose(1, 2)?, 1)?;
        assert_eq!(half.dims(), [1, 4, 2]);
        Ok(())
    }
}
