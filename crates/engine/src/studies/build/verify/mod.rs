//! Every way in which this build computes attention and logits on a device, against plain operations in f64 on the CPU. It loads the
//! checkpoint in each dtype, so it is a function of its own instead of a [`Study`](crate::studies::Study).

mod attention;
mod layers;
mod model;

use crate::observer::Observer;
use crate::open::device_name;
use candle_core::{DType, Device, Tensor};
use candle_fused::Implementation;
use gpt2_loader::Checkpoint;
use serde::Serialize;
use std::borrow::Cow;

/// The error of each path.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The model's name.
    pub model: String,
    /// The device.
    pub device: String,
    /// The threads of the CPU.
    pub threads: usize,
    /// The seed of the random inputs.
    pub seed: u64,
    /// Whether every path is within its tolerance.
    pub passed: bool,
    /// Each path.
    pub checks: Vec<PathCheck>,
}

/// One path, and which implementation ran it.
#[derive(Debug, Serialize)]
pub struct PathCheck {
    /// The result that it computes.
    pub what: Cow<'static, str>,
    /// The sizes of its inputs.
    pub case: String,
    /// The implementation that ran.
    #[serde(rename = "impl")]
    pub implementation: &'static str,
    /// The precision of its inputs.
    pub dtype: &'static str,
    /// The largest difference relative to the largest value.
    pub error: f64,
    /// The most that the error may be.
    pub tolerance: f64,
    /// Whether it is no more.
    pub passed: bool,
}

impl PathCheck {
    /// The error as a share of its tolerance; infinite for NaN.
    #[must_use]
    pub fn strain(&self) -> f64 {
        let part = if self.error == 0.0 { 0.0 } else { self.error / self.tolerance };
        if part.is_nan() { f64::INFINITY } else { part }
    }
}

/// Checks the paths of attention and of layers on random inputs, and those of the checkpoint's model.
///
/// # Errors
/// When a path cannot run at all, or the observer ends it.
pub fn verify(
    checkpoint: &Checkpoint,
    device: Device,
    seed: u64,
    observer: &dyn Observer,
) -> anyhow::Result<Report> {
    let mut verify = Verify { device, seed, observer, checks: vec![] };
    verify.attention()?;
    verify.layers()?;
    verify.model(checkpoint)?;
    let Verify { device, checks, .. } = verify;
    Ok(Report {
        model: checkpoint.name().to_string(),
        device: device_name(&device),
        threads: rayon::current_num_threads(),
        seed,
        passed: checks.iter().all(|check| check.passed),
        checks,
    })
}

/// The largest relative error of one rounding to the dtype.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    }
}

/// A way to compute a result, and the error that it may have.
#[derive(Clone, Copy)]
struct Path<'a> {
    case: &'a str,
    implementation: Implementation,
    dtype: DType,
    tolerance: f64,
}

struct Verify<'a> {
    device: Device,
    seed: u64,
    observer: &'a dyn Observer,
    checks: Vec<PathCheck>,
}

impl Verify<'_> {
    /// Compares the output of a path with the expected one and records the result.
    fn check(
        &mut self,
        what: impl Into<Cow<'static, str>>,
        path: Path,
        got: &Tensor,
        expected: &Tensor,
    ) -> anyhow::Result<()> {
        let error = relative_error(got, expected)?;
        let Path { case, implementation, dtype, tolerance } = path;
        self.checks.push(PathCheck {
            what: what.into(),
            case: case.to_string(),
            implementation: implementation.as_str(),
            dtype: dtype.as_str(),
            error,
            tolerance,
            passed: error <= tolerance, // NaN is not
        });
        Ok(self.observer.step("paths", self.checks.len() as u64, None)?)
    }
}

/// `max |got - expected| / max |expected|`; NaN if either holds NaN.
fn relative_error(got: &Tensor, expected: &Tensor) -> anyhow::Result<f64> {
    let flat = |x: &Tensor| -> anyhow::Result<Vec<f64>> {
        Ok(x.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?)
    };
    if got.dims() != expected.dims() {
        anyhow::bail!("a path gives {:?} instead of {:?}", got.dims(), expected.dims())
    }
    let got = flat(got)?;
    let expected = flat(expected)?;
    let largest = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(0.0, |a: f64, x| if a.is_nan() || x.is_nan() { f64::NAN } else { a.max(x.abs()) })
    };
    let difference = largest(&mut got.iter().zip(&expected).map(|(a, b)| a - b));
    Ok(difference / largest(&mut expected.iter().copied()).max(f64::MIN_POSITIVE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::Silent;

    #[test]
    fn an_error_is_relative_and_nan_is_never_within_a_tolerance() -> anyhow::Result<()> {
        let tensor = |values: &[f32]| Tensor::new(values, &Device::Cpu);
        let expected = tensor(&[1., -4., 2.])?;
        assert!((relative_error(&tensor(&[1., -4., 3.])?, &expected)? - 0.25).abs() < 1e-12);
        let mut verify = Verify { device: Device::Cpu, seed: 0, observer: &Silent, checks: vec![] };
        let path =
            Path { case: "", implementation: Implementation::Fused, dtype: DType::F32, tolerance: 0.1 };
        for got in [[1., -4., 2.], [1., -4., 3.], [f32::NAN, -4., 2.]] {
            verify.check("a path", path, &tensor(&got)?, &expected)?;
        }
        let passed: Vec<bool> = verify.checks.iter().map(|check| check.passed).collect();
        assert_eq!(passed, [true, false, false]);
        // NaN is more than any part of a tolerance.
        let strains: Vec<f64> = verify.checks.iter().map(PathCheck::strain).collect();
        assert!(strains[0] <= 0.0 && (strains[1] - 2.5).abs() < 1e-9 && strains[2].is_infinite());
        Ok(())
    }
}
