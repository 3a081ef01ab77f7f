//! `gpt2 merge`: adds adapters to a model's weights.

use super::new_model::NewModelArgs;
use crate::model::args::{MODEL, ThreadsArg, named, note_default};
use crate::model::hub;
use crate::model::hub::HubArgs;
use crate::output;
use crate::output::terminal::TERMINAL;
use anyhow::Context;
use gpt2_engine::open::{AdapterChoice, FoundModel};
use gpt2_engine::studies::checkpoints::merge::{Merged, Report};
use gpt2_engine::{ModelOptions, ReadFiles};
use gpt2_files::folder::OwnFolder;
use gpt2_view::visible_text;
use std::io::Write;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The merged model is a plain checkpoint, as fast as the original. Every command reads it, and so does transformers.

Examples:
  gpt2 merge --model gpt2 --adapter poems --out gpt2-poems
  gpt2 merge --model gpt2 --adapter poems=0.5 --adapter plays=0.5 --out gpt2-mixed --save-dtype f16")]
pub(crate) struct MergeArgs {
    #[arg(short, long, value_name = "DIR|FILE|NAME", help = MODEL)]
    pub(crate) model: Option<String>,
    /// The adapter, times WEIGHT: a folder, or owner/name on the Hub, in PEFT's format (repeatable). A weight of -1
    /// takes one out again
    #[arg(long = "adapter", value_name = "DIR|NAME[=WEIGHT]", required = true)]
    pub(crate) adapters: Vec<AdapterChoice>,
    #[command(flatten)]
    pub(crate) new: NewModelArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) threads: ThreadsArg,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}

pub(crate) fn run(args: &MergeArgs) -> anyhow::Result<()> {
    TERMINAL.works();
    let mut inputs = ReadFiles::default();
    hub::inputs(&args.hub, &mut inputs);
    let adapters = args.adapters.iter().map(|adapter| adapter.source.as_str());
    args.model.as_deref().into_iter().chain(adapters).for_each(|source| inputs.named(source));
    let outputs = args.new.outputs(&inputs)?;
    let options = ModelOptions { adapters: args.adapters.clone(), ..named(args.model.as_deref(), &args.hub) };
    let adapters = options.find_adapters(&TERMINAL)?;
    for adapter in &adapters {
        inputs.adapter(&adapter.files);
    }
    note_default(args.model.as_deref());
    let files = options.files(&TERMINAL)?;
    inputs.model(&files)?;
    args.new.spare(&inputs)?;

    let new = args.new.options();
    let merged = Merged::new(FoundModel { files, adapters }, &options, &new, &TERMINAL)?;
    let _folder = OwnFolder::make(&new.out).context("--out")?;
    outputs.check(&inputs)?;
    let report = merged.write(&new)?;
    output::report(args.json, &report, |Report { model, adapters, out, parameters }| {
        let adapters: Vec<_> =
            adapters.iter().map(|used| format!("{} x {}", used.name, used.weight)).collect();
        let out = out.display();
        let line = format!("{out}: {model} with {}, {parameters} parameters", adapters.join(", "));
        writeln!(output::stdout(), "{}", visible_text(&line))?;
        Ok(())
    })
}
