//! `gpt2 live`: a page with the model in it.

use super::checkpoints::quantize::types;
use crate::input::prompt::note_file_of_that_name;
use crate::interventions::args::on_heads;
use crate::model::args::{self, MODEL};
use crate::model::hub::{self, HubArgs};
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::results::live_page;
use anyhow::bail;
use gpt2_engine::interventions::{InterventionOptions, OnHeads};
use gpt2_engine::open::{checkpoint, open_tokenizer};
use gpt2_engine::texts::{LONGEST_PROMPT, read_file};
use gpt2_engine::{DEMO_NAME, Observer, ReadFiles, Spelling};
use gpt2_loader::{Checkpoint, Files, GgufType, Source, to_gguf};
use gpt2_web::{DEMO, PageRequest};
use std::path::PathBuf;

/// The text that the page opens on where none is given.
const TEXT: &str = "O Romeo, Romeo! wherefore art thou Romeo?";

#[derive(Debug, clap::Args)]
#[command(long_about = "\
Write a page that runs a model in the browser: type, and its attention follows. It is one file, and fetches nothing. With the demo \
model it has 5 MB; another one takes four thirds of its size. Its numbers are those of gpt2 attention and gpt2 generate, up to the \
last digits")]
#[command(after_help = "\
Examples:
  gpt2 live --open                                    # type, and watch
  gpt2 live --out live.html \"O Romeo, Romeo\"          # the page as a file, opening on this text
  gpt2 live --open \"O Romeo, Romeo\" --ablate 0.3      # with a head switched off, beside the plain run
  gpt2 live --out gpt2.html --model gpt2 --quantize q8_0  # GPT-2 small in 8 bits: a page of 190 MB")]
#[command(group = clap::ArgGroup::new("where").required(true).multiple(true))]
pub(crate) struct LiveArgs {
    /// The text that the page opens on [default: O Romeo, Romeo! wherefore art thou Romeo?]
    #[arg(conflicts_with = "file")]
    pub(crate) text: Option<String>,
    /// Read that text from a file. One newline at its end is left out
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Write the page to this file
    #[arg(short, long, value_name = "FILE", group = "where")]
    pub(crate) out: Option<PathBuf>,
    /// Open the page in the browser. Without --out, it is a temporary file
    #[arg(long, group = "where")]
    pub(crate) open: bool,
    /// Let --out replace an existing file
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Switch off heads from the start: LAYER.HEAD, counted from 0, as in 0.3; '0.*' is the whole layer (repeatable)
    #[arg(long, value_name = "L.H", value_delimiter = ',', value_parser = on_heads("ablate"))]
    pub(crate) ablate: Vec<OnHeads>,
    #[arg(short, long, value_name = "DIR|FILE|NAME", help = MODEL)]
    pub(crate) model: Option<String>,
    /// Quantize the model first, as gpt2 quantize does: a page holds files of up to 400 MB
    #[arg(long, value_name = "TYPE", value_parser = types(), requires = "model")]
    pub(crate) quantize: Option<GgufType>,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}

pub(crate) fn run(args: &LiveArgs) -> anyhow::Result<()> {
    let mut outputs = Outputs::new(args.overwrite);
    if let Some(path) = &args.out {
        outputs.add("--out", path);
    }
    let mut inputs = ReadFiles::default();
    hub::inputs(&args.hub, &mut inputs);
    if let Some(path) = &args.file {
        inputs.file("the text", path);
    }
    outputs.check(&inputs)?;
    let text = text(args)?;
    let model = args.model.as_deref().filter(|model| *model != DEMO_NAME || args.quantize.is_some());
    let model = model.map(|model| files(model, args, &mut inputs)).transpose()?;
    outputs.check(&inputs)?;
    let files = model.as_ref().map_or_else(|| Source::Embedded(DEMO).open(), |files| Ok(files.clone()))?;
    let changes = InterventionOptions { heads: args.ablate.clone(), ..InterventionOptions::default() };
    let changes = changes.for_training(checkpoint(&files, &TERMINAL)?.config(), Spelling::Flags)?.texts;
    let first = PageRequest { text, changes, ..PageRequest::default() };
    let page = live_page::page(model.as_ref(), &first)?;
    live_page::deliver(&page, args.out.as_deref(), args.open, outputs)
}

/// The text to open on.
fn text(args: &LiveArgs) -> anyhow::Result<String> {
    let Some(path) = &args.file else {
        if let Some(text) = &args.text {
            note_file_of_that_name(text);
        }
        return Ok(args.text.clone().unwrap_or_else(|| TEXT.into()));
    };
    let mut text = read_file("the text", path, LONGEST_PROMPT, &TERMINAL)?;
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(text)
}

/// The files of a model, quantized if that is wanted.
fn files(model: &str, args: &LiveArgs, inputs: &mut ReadFiles) -> anyhow::Result<Files> {
    let files = args::files(Some(model), &args.hub)?;
    inputs.model(&files)?;
    let Some(kind) = args.quantize else { return Ok(files) };
    let checkpoint = Checkpoint::open(&files)?;
    if let Some(format) = checkpoint.formats().first() {
        bail!(
            "--quantize: the weights of {} are quantized already ({format}); leave it out",
            checkpoint.name()
        );
    }
    let tokenizer = open_tokenizer(&files, checkpoint.config().vocab_size, &TERMINAL)?;
    Ok(to_gguf(&checkpoint, &tokenizer, kind, &mut |done, all, _| {
        TERMINAL.step("tensors", done as u64, Some(all as u64))
    })?)
}
