//! Shared by the tests of several packages: the reference data, and one measure of error.

#![allow(dead_code)] // each package uses a part of it

use candle_core::{DType, Device, Tensor};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::LazyLock;

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The device of the tests that have a meaning on each: the CPU, or with `GPT2_TEST_DEVICE=cuda` or `metal` the GPU.
/// `scripts/cuda/on_device.py` and `scripts/check-metal.sh` set that; the first names the tests that are for the CPU alone.
pub(crate) fn test_device() -> Device {
    static DEVICE: LazyLock<Device> = LazyLock::new(|| match std::env::var("GPT2_TEST_DEVICE").as_deref() {
        Err(_) | Ok("" | "cpu") => Device::Cpu,
        Ok("cuda") => Device::new_cuda_with_stream(0).expect("GPT2_TEST_DEVICE=cuda: the GPU answers"),
        Ok("metal") => Device::new_metal(0).expect("GPT2_TEST_DEVICE=metal: the GPU answers"),
        Ok(other) => panic!("GPT2_TEST_DEVICE={other}: expected cpu, cuda or metal"),
    });
    DEVICE.clone()
}

/// Candle 0.11 has no tensors without elements on a GPU, where neither an allocation of 0 bytes nor a launch of no block succeeds.
pub(crate) fn has_empty_tensors() -> bool {
    test_device().is_cpu()
}

/// `tests/data/<case>`, also of a program that was built elsewhere: cargo and scripts/check-gpu.sh say where the package lies.
pub(crate) fn data(case: &str) -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    package.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()).join("../../tests/data").join(case)
}

/// The values that transformers computed for a case.
pub(crate) fn reference(case: &str) -> Result<HashMap<String, Tensor>> {
    Ok(candle_core::safetensors::load(data(case).join("reference.safetensors"), &test_device())?)
}

/// What TransformerLens computed with the model in `tests/data/circuits`.
pub(crate) fn of_transformer_lens(file: &str) -> Result<HashMap<String, Tensor>> {
    Ok(candle_core::safetensors::load(data("circuits").join(file), &test_device())?)
}

/// `max |got - expected| / max |expected|`, in f64.
pub(crate) fn relative_error(got: &Tensor, expected: &Tensor) -> Result<f64> {
    if got.dims() != expected.dims() {
        return Err(format!("shape {:?}, expected {:?}", got.dims(), expected.dims()).into());
    }
    let got = got.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    let expected = expected.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    let largest = |x: &Tensor| x.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>();
    let difference = (got - &expected)?;
    // `max` ignores NaN; a sum does not.
    if difference.sum_all()?.to_scalar::<f64>()?.is_nan() {
        return Ok(f64::NAN);
    }
    Ok(largest(&difference)? / largest(&expected)?)
}

/// Fails, with the numbers, unless `got` is within `tolerance` of `expected`.
#[track_caller]
pub(crate) fn assert_close(what: &str, got: &Tensor, expected: &Tensor, tolerance: f64) {
    let error = relative_error(got, expected).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(error <= tolerance, "{what}: relative error {error:e} is above {tolerance:e}");
}

/// `t` ids below the random models' vocabulary, different for each `salt`: (1, T).
pub(crate) fn some_ids(t: usize, salt: usize) -> Result<Tensor> {
    let ids: Vec<u32> = (0..t)
        .map(|i| u32::try_from((i * 7 + i * i * 3 + salt * 11) % 37))
        .collect::<std::result::Result<_, _>>()?;
    Ok(Tensor::from_vec(ids, (1, t), &test_device())?)
}

/// The number of cases to try a property on: `usual`, or `PROPTEST_CASES` if a slow checker asks for fewer.
pub(crate) fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// A padding mask in which about half of the keys are visible; in every fourth case, none in row 0.
pub(crate) fn some_padding(b: usize, s: usize, seed: u64) -> Vec<Vec<u8>> {
    let bit = |i: usize, j: usize| u8::from((seed >> ((i * 7 + j * 5) % 13)) & 1 == 1);
    (0..b)
        .map(|i| (0..s).map(|j| if i == 0 && seed.is_multiple_of(4) { 0 } else { bit(i, j) }).collect())
        .collect()
}

/// The largest magnitude; NaN if there is a NaN.
pub(crate) fn max_abs(x: &Tensor) -> Result<f32> {
    let values: Vec<f32> = x.to_dtype(DType::F32)?.abs()?.flatten_all()?.to_vec1()?;
    #[allow(clippy::cast_possible_truncation)] // it is one of them
    Ok(largest(values.into_iter().map(f64::from)) as f32)
}

/// The largest of some numbers that are not negative; NaN if there is a NaN, which `f64::max` would pass over.
pub(crate) fn largest(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let larger = |most: f64, x: f64| if x.is_nan() || most.is_nan() { f64::NAN } else { x.max(most) };
    numbers.into_iter().fold(0.0, larger)
}
