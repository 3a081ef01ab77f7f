//! For tests: numbers that are the same at each run, without a pattern that fits the blocks of a kernel; how far off results
//! are; and pools of threads.

use candle_core::{DType, Device, Result, Shape, Tensor};

/// `n` numbers between -1 and 1, different for each `salt`.
pub(crate) fn values(n: usize, salt: u32) -> Vec<f32> {
    let hash = |i: u32| i.wrapping_mul(2_654_435_761) >> 8; // 24 bits
    (salt..).take(n).map(|i| hash(i) as f32 / 8_388_608. - 1.).collect()
}

/// A tensor of [`values`].
pub(crate) fn numbers(shape: impl Into<Shape>, salt: u32) -> Result<Tensor> {
    let shape = shape.into();
    Tensor::from_vec(values(shape.elem_count(), salt), shape, &Device::Cpu)
}

pub(crate) fn wide(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(DType::F64)
}

/// The largest difference, relative to the largest expected value, which is f64; NaN if there is a NaN.
pub(crate) fn error(got: &Tensor, expected: &Tensor) -> Result<f64> {
    assert_eq!(got.dims(), expected.dims());
    if expected.elem_count() == 0 {
        return Ok(0.0);
    }
    let difference = (wide(got)? - expected)?.abs()?;
    // `max_all` ignores NaN; a sum does not.
    if difference.sum_all()?.to_scalar::<f64>()?.is_nan() {
        return Ok(f64::NAN);
    }
    let difference = difference.max_all()?.to_scalar::<f64>()?;
    Ok(difference / expected.abs()?.max_all()?.to_scalar::<f64>()?.max(1e-30))
}

pub(crate) fn pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads")
}
