//! `gpt2 verify`: compares every way in which this build computes attention and logits on this device with plain
//! operations on the CPU.

mod attention;
mod layers;
mod model;
mod published;

use crate::model::args::MODEL;
use crate::model::args::RunArgs;
use crate::model::hub::HubArgs;
use crate::output::terminal::TERMINAL;
use crate::output::{self, note};
use candle_core::{DType, Device, Tensor};
use candle_fused::Implementation;
use gpt2_engine::Observer;
use gpt2_engine::open::{checkpoint, device_name};
use gpt2_engine::words::count;
use gpt2_view::{Align, Table, visible_text};
use published::PublishedArgs;
use serde::Serialize;
use std::borrow::Cow;
use std::io::Write;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The exit code is 1 if a path exceeds its tolerance.

--published holds a model to numbers that others have printed of it, each with its source: GPT-2 small's greedy continuation, its losses in
ten training steps, heads of the IOI paper; with --evaluations also LAMBADA, WikiText and HellaSwag. The exit code is 1 if one differs,
else 3 if one could not be checked, since the model or a data set could not be fetched or read; the report says why, and has all others.
docs/evaluation.md has the sources.

Examples:
  gpt2 verify   # a summary, and each path that fails
  gpt2 verify --all   # every path
  gpt2 verify --model gpt2 --device cuda --json   # on a GPU, for scripts
  gpt2 verify --published --model gpt2   # the real weights against printed numbers, in minutes
  gpt2 verify --published --model gpt2 --evaluations   # hours on a CPU")]
pub(crate) struct VerifyArgs {
    /// Print a row for every path, not only for those that exceed their tolerance
    #[arg(long)]
    pub(crate) all: bool,
    /// Print JSON, with every path
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) published: PublishedArgs,
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

impl Check {
    /// The error as a share of its tolerance; infinite for NaN.
    fn strain(&self) -> f64 {
        let part = if self.error == 0.0 { 0.0 } else { self.error / self.tolerance };
        if part.is_nan() { f64::INFINITY } else { part }
    }
}

pub(crate) fn run(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    if args.published.published {
        if args.all {
            anyhow::bail!("--all: is about the paths of this build; leave it out beside --published");
        }
        return published::run(&args.published, args.json, args.model.as_deref(), &args.hub, &args.run);
    }
    let device = args.run.open()?;
    let files = crate::model::args::files(args.model.as_deref(), &args.hub)?;
    let checkpoint = checkpoint(&files, &TERMINAL)?;
    let mut verify = Verify { device, seed: args.run.seed, checks: vec![] };
    verify.attention()?;
    verify.layers()?;
    verify.model(&checkpoint)?;
    TERMINAL.clear();

    let report = Report {
        model: checkpoint.name().to_string(),
        device: device_name(&verify.device),
        threads: rayon::current_num_threads(),
        seed: args.run.seed,
        passed: verify.checks.iter().all(|check| check.passed),
        checks: verify.checks,
    };
    output::report(args.json, &report, |report| print(report, args.all))?;
    Ok(if report.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
        Ok(TERMINAL.step("paths", self.checks.len() as u64, None)?)
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

fn print(report: &Report, all: bool) -> anyhow::Result<()> {
    write!(output::stdout(), "{}", text(report, all))?;
    if !all {
        note("every path: --all");
    }
    Ok(())
}

/// A summary and the paths that failed, or every path.
fn text(report: &Report, all: bool) -> String {
    let Report { model, device, threads, checks, .. } = report;
    let model = visible_text(model);
    let threads = count(*threads, "thread");
    let passed = checks.iter().filter(|check| check.passed).count();
    let listed: Vec<_> = checks.iter().filter(|check| all || !check.passed).collect();
    let mut tables = vec![];
    if !all {
        tables.push(summary(checks));
    }
    if !listed.is_empty() {
        tables.push(rows(&listed));
    }
    format!(
        "{model}, {device}, {threads}\n\
         against plain operations in f64 on the CPU; error = largest difference / largest value\n\n\
         {}\n{passed} of {} paths within their tolerance\n",
        tables.join("\n"),
        checks.len()
    )
}

/// A row for each thing that is computed: how many of its paths passed, its largest error in each dtype, and the most that an
/// error takes of its tolerance.
fn summary(checks: &[Check]) -> String {
    const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
    let dtypes = DTYPES.map(|dtype| (dtype.as_str(), Align::Right));
    let mut table = Table::new(
        &[
            &[("computed", Align::Left), ("passed", Align::Right)],
            &dtypes[..],
            &[("of tolerance", Align::Right), ("", Align::Left)],
        ]
        .concat(),
    );
    let mut names: Vec<&str> = vec![];
    for check in checks {
        if !names.contains(&&*check.what) {
            names.push(&check.what);
        }
    }
    for name in names {
        let group = || checks.iter().filter(|check| check.what == name);
        let all = group().count();
        let passed = group().filter(|check| check.passed).count();
        let largest = |dtype: DType| {
            let errors = group().filter(|check| check.dtype == dtype.as_str()).map(|check| check.error);
            errors
                .max_by(|a, b| a.abs().total_cmp(&b.abs()))
                .map_or_else(String::new, |error| format!("{error:.1e}"))
        };
        let strain = group().map(Check::strain).fold(0.0, f64::max);
        let mut row = vec![name.to_owned(), format!("{passed}/{all}")];
        row.extend(DTYPES.map(largest));
        row.push(format!("{:.0} %", 100.0 * strain));
        row.push(if passed == all { "ok" } else { "FAILED" }.into());
        table.row(row);
    }
    table.render()
}

/// A row for each check.
fn rows(checks: &[&Check]) -> String {
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
    table.render()
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
        let report = Report {
            model: "m".into(),
            device: "cpu".into(),
            threads: 1,
            seed: 0,
            passed: false,
            checks: verify.checks,
        };
        // The worst error is NaN, which is more than any part of a tolerance.
        let some = text(&report, false);
        let all = text(&report, true);
        let row = some.lines().nth(4).unwrap_or_default();
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["a", "path", "1/3", "NaN", "inf", "%", "FAILED"]
        );
        let rows = |text: &str, end: &str| text.lines().filter(|line| line.trim_end().ends_with(end)).count();
        assert_eq!(
            (rows(&some, "1.0e-1  FAILED"), rows(&some, "  ok")),
            (2, 0),
            "the failures alone: {some}"
        );
        assert_eq!((rows(&all, "1.0e-1  FAILED"), rows(&all, "1.0e-1  ok")), (2, 1), "{all}");
        for text in [some, all] {
            assert!(text.ends_with("\n1 of 3 paths within their tolerance\n"), "{text}");
        }
        Ok(())
    }
}
