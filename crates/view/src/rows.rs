//! Rows of weights: without the keys that a query cannot see, and with the largest weights alone.

use candle_core::{DType, Device, Result, Tensor, WithDType};
use rayon::prelude::*;

/// The visible part of causal weights: row i holds the keys 0 to `S - T + i`, so no row is empty.
///
/// `op` names the caller in an error. The values go to the CPU before they are converted, since not
/// every device has every dtype.
///
/// # Shapes
/// `weights` (T, S) -> T rows of `S - T + 1` to S numbers
///
/// # Errors
/// When `weights` is not of rank 2, has no query, or has more queries than keys.
pub(crate) fn lower_triangle<N: WithDType>(weights: &Tensor, op: &str) -> Result<Vec<Vec<N>>> {
    let &[t, s] = weights.dims() else {
        candle_core::bail!("{op}: weights have shape {:?}, expected (T, S)", weights.dims())
    };
    check(t, s, op)?;
    let mut rows = weights.to_device(&Device::Cpu)?.to_dtype(N::DTYPE)?.to_vec2::<N>()?;
    for (i, row) in rows.iter_mut().enumerate() {
        row.truncate(s - t + i + 1);
    }
    Ok(rows)
}

/// Refuses sizes without a query, or with a query that has no position.
pub(crate) fn check(queries: usize, keys: usize, op: &str) -> Result<()> {
    if queries == 0 {
        candle_core::bail!("{op}: the weights hold no query")
    }
    if queries > keys {
        candle_core::bail!("{op}: {queries} queries against {keys} keys, expected at least as many keys")
    }
    Ok(())
}

/// The weights with all but the `k` largest of each row set to 0, for texts so long that the rest is noise and bulk;
/// among equal ones, earlier keys stay.
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
    fn rows_end_at_the_query() -> Result<()> {
        let weights = Tensor::new(&[[1f32, 2., 3., 4.], [5., 6., 7., 8.]], &Device::Cpu)?;
        assert_eq!(lower_triangle::<f32>(&weights, "x")?, [vec![1., 2., 3.], vec![5., 6., 7., 8.]]);
        // A transposed view has the strides of another shape, and these numbers are exact in a half.
        let weights = weights.narrow(1, 0, 2)?.t()?.to_dtype(DType::F16)?;
        assert_eq!(lower_triangle::<f64>(&weights, "x")?, [vec![1.], vec![2., 6.]]);
        Ok(())
    }

    #[test]
    fn refuses_other_shapes() -> Result<()> {
        for (shape, said) in [
            (vec![2], "[2]"),
            (vec![1, 2, 2], "[1, 2, 2]"),
            (vec![3, 2], "3 queries"),
            (vec![0, 2], "no query"),
        ] {
            let weights = Tensor::zeros(shape, DType::F32, &Device::Cpu)?;
            let err = lower_triangle::<f32>(&weights, "op").expect_err(said).to_string();
            assert!(err.contains(said) && err.contains("op: "), "{err}");
        }
        Ok(())
    }

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
