//! `gpt2 verify --published`: a model beside numbers that others have printed of it.

use crate::model::args::{RunArgs, named, note_default};
use crate::model::hub::HubArgs;
use crate::output::terminal::TERMINAL;
use crate::output::{self, note};
use gpt2_engine::DEMO_NAME;
use gpt2_engine::interventions::{InterventionOptions, Prepared};
use gpt2_engine::studies::Run;
use gpt2_engine::studies::predict::published::{AnswerState, Checked, Options, Report, is_out_of_reach};
use gpt2_engine::words::count;
use gpt2_view::visible_text;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(crate) struct PublishedArgs {
    /// Hold the model to numbers that others have printed of it, instead
    #[arg(long)]
    pub(crate) published: bool,
    /// With --published, run the standard evaluations, too, whose data sets come from the Hub
    #[arg(long, requires = "published")]
    pub(crate) evaluations: bool,
    /// With --published, take the printed numbers from this file
    #[arg(long, value_name = "FILE", requires = "published")]
    pub(crate) answers: Option<PathBuf>,
}

/// The exit code of a run that could not check everything.
const UNCHECKED: u8 = 3;

pub(super) fn run(
    args: &PublishedArgs,
    as_json: bool,
    model: Option<&str>,
    hub: &HubArgs,
    run: &RunArgs,
) -> anyhow::Result<ExitCode> {
    let options = Options { model: key(model), answers: args.answers.clone(), evaluations: args.evaluations };
    options.check(&TERMINAL)?;
    let device = run.open()?;
    note_default(model);
    let model = named(model, hub);
    let opened = match model.find(&TERMINAL).and_then(|found| model.load(found, device, &TERMINAL)) {
        Err(error) if is_out_of_reach(&error) => {
            output::error(&error.context("nothing was checked: the model could not be fetched"));
            return Ok(ExitCode::from(UNCHECKED));
        }
        opened => opened?,
    };
    let interventions = Prepared::new(InterventionOptions::default(), &opened, &TERMINAL)?;
    let report = options.run(&Run::new(&interventions, &TERMINAL))?;
    output::report(as_json, &report, print)?;
    Ok(match &report {
        Report { unchecked, answers, .. } if *unchecked == answers.len() => ExitCode::from(UNCHECKED),
        Report { passed: false, .. } => ExitCode::FAILURE,
        Report { unchecked: 0, .. } => ExitCode::SUCCESS,
        _ if is_only_unasked(&report) => ExitCode::SUCCESS,
        _ => ExitCode::from(UNCHECKED),
    })
}

/// The name of a model in a file of answers: that on the Hub, or the last part of a path.
fn key(model: Option<&str>) -> String {
    let Some(model) = model else { return DEMO_NAME.to_owned() };
    let last = Path::new(model).file_name().map(|last| last.to_string_lossy().into_owned());
    last.unwrap_or_else(|| model.to_owned())
}

/// Whether all that was not checked was not asked for.
fn is_only_unasked(report: &Report) -> bool {
    report.answers.iter().all(|one| one.state != AnswerState::Unchecked || one.is_unasked)
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}", report.provenance.model_line())?;
    for Checked { question, expected, found, state, source, .. } in &report.answers {
        let state = match state {
            AnswerState::Right => "ok",
            AnswerState::Wrong => "FAILED",
            AnswerState::Unchecked => "not checked",
        };
        writeln!(out, "\n{state}: {}", visible_text(question))?;
        let beside = if state == "not checked" { "reason" } else { "found" };
        for (name, text) in [("printed", expected), (beside, found), ("source", source)] {
            writeln!(out, "  {name:8} {}", visible_text(text))?;
        }
    }
    let right = report.answers.iter().filter(|one| one.state == AnswerState::Right).count();
    writeln!(out, "\n{right} of {} as printed", count(report.answers.len(), "answer"))?;
    if report.unchecked > 0 {
        note(&format!("not checked, each for the reason above: {}", count(report.unchecked, "answer")));
    }
    Ok(())
}
