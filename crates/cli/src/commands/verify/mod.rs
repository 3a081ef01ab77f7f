//! `gpt2 verify`: compares every way in which this build computes attention and logits on this device with plain
//! operations on the CPU.

mod attention;
mod layers;
mod model;

use crate::device::RunArgs;
use crate::hub::HubArgs;
use crate::output;
use crate::session::MODEL;
use candle_core::{DType, Device, Tensor};
use candle_fused::Implementation;
use gpt2_loader::Checkpoint;
use gpt2_view::{Align, Table, visible_text};
use serde::Serialize;
use std::borrow::Cow;
use std::io::Write;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The exit code is 1 if any path exceeds its tolerance.

Examples:
  gpt2 verify
  gpt2 verify --model gpt2 --device cuda --json")]
pub(crate) struct VerifyArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[arg(short, long, value_name = "DIR|FILE|NAME", help_heading = "Model and device", help = MODEL)]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Serialize)]
struct Report {
    model: String,
    device: String,
    threads: usize,
    seed: u64,
    passed: bool,
    checks: Vec<Check>,
}

/// One path, and which implementation ran it. The error is the largest difference relative to the largest value.
#[derive(Serialize)]
struct Check {
    what: Cow<'static, str>,
    case: String,
    #[serde(rename = "impl")]
    implementation: &'static str,
    dtype: &'static str,
    error: f64,
    tolerance: f64,
    passed: bool,
}

pub(crate) fn run(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let device = args.run.open()?;
    let files = crate::session::files(args.model.as_deref(), &args.hub)?;
    let checkpoint = Checkpoint::open(&files)?;
    let mut verify = Verify { device, seed: args.run.seed, checks: vec![] };
    verify.attention()?;
    verify.layers()?;
    verify.model(&checkpoint)?;

    let report = Report {
        model: checkpoint.name().to_string(),
        device: format!("{:?}", verify.device.location()).to_lowercase(),
        threads: rayon::current_num_threads(),
        seed: args.run.seed,
        passed: verify.checks.iter().all(|check| check.passed),
        checks: verify.checks,
    };
    output::report(args.json, &report, print)?;
    Ok(if report.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How much one rounding to the dtype can change a number, relative to its size.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    }
}

/// How a result was computed, and how far it may be from the expected one.
#[derive(Clone, Copy)]
struct Path<'a> {
    case: &'a str,
    implementation: Implementation,
    dtype: DType,
    tolerance: f64,
}

struct Verify {
    device: Device,
    seed: u64,
    checks: Vec<Check>,
}

impl Verify {
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
        self.checks.push(Check {
            what: what.into(),
            case: case.to_string(),
            implementation: implementation.as_str(),
            dtype: dtype.as_str(),
            error,
            tolerance,
            passed: error <= tolerance, // NaN is not
        });
        Ok(())
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
    let (got, expected) = (flat(got)?, flat(expected)?);
    let largest = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(0.0, |a: f64, x| if a.is_nan() || x.is_nan() { f64::NAN } else { a.max(x.abs()) })
    };
    let difference = largest(&mut got.iter().zip(&expected).map(|(a, b)| a - b));
    Ok(difference / largest(&mut expected.iter().copied()).max(f64::MIN_POSITIVE))
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let Report { model, device, threads, checks, .. } = report;
    writeln!(out, "{}, {device}, {threads} threads", visible_text(model))?;
    writeln!(
        out,
        "against plain operations in f64 on the CPU; error = largest difference / largest value\n"
    )?;
    write!(out, "{}", results(checks))?;
    Ok(())
}

/// A row for each check, and how many are within their tolerance.
fn results(checks: &[Check]) -> String {
    let mut table = Table::new(&[
        ("path", Align::Left),
        ("case", Align::Left),
        ("impl", Align::Left),
        ("dtype", Align::Left),
        ("error", Align::Right),
        ("tolerance", Align::Right),
        ("", Align::Left),
    ]);
    for check in checks {
        table.row(vec![
            check.what.clone().into_owned(),
            check.case.clone(),
            check.implementation.into(),
            check.dtype.into(),
            format!("{:.1e}", check.error),
            format!("{:.1e}", check.tolerance),
            if check.passed { "ok" } else { "FAILED" }.into(),
        ]);
    }
    let passed = checks.iter().filter(|check| check.passed).count();
    format!("{}\n{passed} of {} paths within their tolerance\n", table.render(), checks.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_relative_and_nan_is_never_within_a_tolerance() -> anyhow::Result<()> {
        let tensor = |values: &[f32]| Tensor::new(values, &Device::Cpu);
        let expected = tensor(&[1., -4., 2.])?;
        assert!((relative_error(&tensor(&[1., -4., 3.])?, &expected)? - 0.25).abs() < 1e-12);
        let mut verify = Verify { device: Device::Cpu, seed: 0, checks: vec![] };
        let path =
            Path { case: "", implementation: Implementation::Fused, dtype: DType::F32, tolerance: 0.1 };
        for got in [[1., -4., 2.], [1., -4., 3.], [f32::NAN, -4., 2.]] {
            verify.check("a path", path, &tensor(&got)?, &expected)?;
        }
        assert_eq!(verify.checks.iter().map(|check| check.passed).collect::<Vec<_>>(), [true, false, false]);
        let results = results(&verify.checks);
        assert!(results.ends_with("\n1 of 3 paths within their tolerance\n"), "{results}");
        assert_eq!(results.matches("FAILED").count(), 2);
        Ok(())
    }
}
