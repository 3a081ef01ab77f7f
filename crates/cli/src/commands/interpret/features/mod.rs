//! `gpt2 features`: which features of a sparse autoencoder or transcoder fire in a text, and what they do.

mod args;
mod over_store;
mod print;

use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::results::exports;
use crate::study::over_texts::{Job, Ran};
use anyhow::bail;
pub(crate) use args::FeaturesArgs;
use gpt2_engine::interventions::{InterventionOptions, Prepared};
use print::print;
use std::process::ExitCode;

pub(crate) fn run(args: &FeaturesArgs) -> anyhow::Result<ExitCode> {
    args.study.interventions.no_circuit("features")?;
    if let Some(store) = &args.store {
        return over_store::run(args, store);
    }
    // Clap's `requires` gives way to a prompt, which conflicts with --store.
    let over_a_store = [
        ("--details", args.details),
        ("--pages", args.pages.is_some()),
        ("--neuronpedia", args.neuronpedia.is_some()),
    ];
    for (flag, given) in over_a_store {
        if given {
            bail!("{flag} is about a corpus: give --store instead of a text");
        }
    }
    let text = args.prompt.read()?;
    let mut outputs = Outputs::new(args.overwrite);
    if let Some(path) = &args.export {
        exports::add_to(&mut outputs, path)?;
    }
    let source = args.dictionary()?;
    let mut inputs = args.prompt.inputs();
    for path in &args.explanations {
        inputs.file("a file of explanations", path);
    }
    let opened = args.study.open_for(inputs, &outputs)?;
    // The job prepares those of each text.
    let none = Prepared::new(InterventionOptions::default(), &opened, &TERMINAL)?;
    let options = args.options(source);
    let features = options.open(&args.study.run(&none, args.export.is_some()))?;
    let prompts = &args.prompt;
    let study = &args.study;
    let export = args.export.as_deref();
    let job = Job { prompts, study, opened: &opened, chosen: None, export, outputs };
    let each = |prompt: &_, applied: &_| {
        let outcome = features.of(prompt, applied)?;
        Ok(Ran::new(outcome.report, outcome.tensors))
    };
    job.run(text, each, print)?;
    Ok(ExitCode::SUCCESS)
}
