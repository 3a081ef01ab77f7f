//! Causal weights as rows of numbers, without the keys that a query cannot see.

use candle_core::{Device, Result, Tensor, WithDType};

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

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::DType;

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
}
