//! `gpt2 verify`: compares every way in which this build computes attention and logits on this device with plain
//! operations on the CPU.

mod published;

use crate::model::args::{self, MODEL, RunArgs};
use crate::model::hub::HubArgs;
use crate::output::terminal::TERMINAL;
use crate::output::{self, note};
use candle_core::DType;
use gpt2_engine::open::checkpoint;
use gpt2_engine::studies::build::verify::{PathCheck, Report, verify};
use gpt2_engine::words::count;
use gpt2_view::{Align, Table, visible_text};
use published::PublishedArgs;
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

pub(crate) fn run(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    if args.published.published {
        if args.all {
            anyhow::bail!("--all: is about the paths of this build; leave it out beside --published");
        }
        return published::run(&args.published, args.json, args.model.as_deref(), &args.hub, &args.run);
    }
    let device = args.run.open()?;
    let files = args::files(args.model.as_deref(), &args.hub)?;
    let checkpoint = checkpoint(&files, &TERMINAL)?;
    let report = verify(&checkpoint, device, args.run.seed, &TERMINAL)?;
    TERMINAL.clear();
    output::report(args.json, &report, |report| print(report, args.all))?;
    Ok(if report.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
fn summary(checks: &[PathCheck]) -> String {
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
        let strain = group().map(PathCheck::strain).fold(0.0, f64::max);
        let mut row = vec![name.to_owned(), format!("{passed}/{all}")];
        row.extend(DTYPES.map(largest));
        row.push(format!("{:.0} %", 100.0 * strain));
        row.push(if passed == all { "ok" } else { "FAILED" }.into());
        table.row(row);
    }
    table.render()
}

/// A row for each check.
fn rows(checks: &[&PathCheck]) -> String {
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
    fn failures_are_listed_and_with_all_every_path() {
        let check = |error: f64| PathCheck {
            what: "a path".into(),
            case: String::new(),
            implementation: "fused",
            dtype: "f32",
            error,
            tolerance: 0.1,
            passed: error <= 0.1,
        };
        let report = Report {
            model: "m".into(),
            device: "cpu".into(),
            threads: 1,
            seed: 0,
            passed: false,
            checks: vec![check(0.0), check(0.25), check(f64::NAN)],
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
    }
}
