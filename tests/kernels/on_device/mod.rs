//! Our code on the device that `GPT2_TEST_DEVICE` names (the CPU unless it does), against the definition in f64 on the CPU, for
//! every width and dtype of our kernels for CUDA. On a GPU, calls of attention, layer norm and what follows a product
//! assert through `explain` that the code for them ran.
//!
//! A GPU's size and age choose among the kernels, so that `scripts/cuda/check.sh on-cpu` runs these tests on three GPUs: a large
//! one, one with few multiprocessors and no cache, and for [`attention::of_an_older_gpu`] one of compute capability 7.5.

mod attention;
mod candidates;
mod few_rows;
mod growing;
mod joined;
mod layers;

use crate::common::test_device;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::attention::{Mask, Sdpa};
use candle_fused::{Explanation, explain, open_cuda};
use std::sync::LazyLock;

/// The device, opened as `gpt2` opens it.
fn device() -> Device {
    static DEVICE: LazyLock<Device> = LazyLock::new(|| match test_device() {
        Device::Cpu => Device::Cpu,
        _ => open_cuda(0).expect("a GPU"),
    });
    DEVICE.clone()
}

/// Two devices of a GPU have two streams, and nothing orders what one of them reads of the other.
#[test]
fn a_gpu_has_one_device() -> Result<()> {
    if !test_device().is_cpu() {
        assert!(open_cuda(0)?.same_device(&open_cuda(0)?));
        let x = Tensor::ones((64, 64), DType::F32, &open_cuda(0)?)?;
        let there = x.matmul(&x)?.to_device(&open_cuda(0)?)?;
        assert!(difference(&there, &Tensor::full(64f64, (64, 64), &Device::Cpu)?)? <= 0.0);
    }
    Ok(())
}

/// Whoever names no implementation gets our kernels.
#[test]
fn fused_is_the_default() -> Result<()> {
    let device = device();
    let x = Tensor::ones((1, 2, 3, 64), DType::F32, &device)?;
    let (_, explanation) = explain(|| Sdpa::default().forward(&x, &x, &x, Mask::default()))?;
    assert_ours(&explanation, "attention", &device);
    Ok(())
}

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Half a unit of the last place of 1: the error of one rounding.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    }
}

/// Fails unless the code for this device ran each `operation`, and no plain operations in its place.
#[track_caller]
fn assert_ours(explanation: &Explanation, operation: &str, device: &Device) {
    let all: Vec<_> = explanation.0.iter().filter(|one| one.operation == operation).collect();
    let ours = |code: &str| {
        if device.is_cpu() { code.starts_with("fused") } else { code.starts_with("fused, on the GPU") }
    };
    assert!(!all.is_empty() && all.iter().all(|one| ours(&one.code)), "{operation}: {explanation}");
}

/// Numbers between -2 and 2 with a period of 2^32: they give scores of a few units, with clear maxima.
fn numbers(count: usize, salt: usize) -> Result<Tensor> {
    let random = (salt..salt + count).map(|i| {
        let x = u32::try_from(i).unwrap_or(0).wrapping_mul(2_654_435_769).rotate_left(9).wrapping_mul(40_503);
        f64::from(x ^ x >> 15) / f64::from(u32::MAX) * 4. - 2.
    });
    Tensor::from_iter(random, &Device::Cpu)
}

/// In f64 on the CPU.
fn wide(x: &Tensor) -> Result<Tensor> {
    x.to_device(&Device::Cpu)?.to_dtype(DType::F64)
}

/// The largest magnitude.
fn largest(x: &Tensor) -> Result<f64> {
    x.abs()?.max_all()?.to_scalar()
}

/// The largest difference. Memory that no kernel has written is NaN on the driver, which is infinitely far away.
fn difference(got: &Tensor, expected: &Tensor) -> Result<f64> {
    let all = (wide(got)? - expected)?.abs()?.flatten_all()?.to_vec1::<f64>()?;
    Ok(all.into_iter().fold(0.0, |most, x| if x.is_nan() { f64::INFINITY } else { most.max(x) }))
}
