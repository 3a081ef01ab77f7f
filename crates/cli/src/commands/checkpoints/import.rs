//! `gpt2 import`: writes a model that another program saved as a folder that transformers loads.

use super::new_model::NewModelArgs;
use crate::model::args::{ThreadsArg, named};
use crate::model::hub;
use crate::model::hub::HubArgs;
use crate::output;
use crate::output::terminal::TERMINAL;
use anyhow::Context;
use gpt2_engine::studies::checkpoints::import::{self, Report};
use gpt2_engine::{ReadFiles, Spelling};
use gpt2_files::folder::OwnFolder;
use std::io::Write;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A file is known by its content, whatever its name is: nanoGPT's ckpt.pt, which holds the model's sizes; llm.c's gpt2_124M.bin; GGUF
files, whole or in parts, whose quantized weights are unpacked; weights of torch.save (.bin, .pt, .pth, .ckpt) or safetensors with a
config.json beside them. Weights may lie inside a checkpoint (state_dict, model and others), under a wrapper's names (_orig_mod.,
module. and others), and as nn.Linear has them: notes say what was read how. A tokenizer beside the file goes along.

Every command reads the folder, and so does transformers.

Examples:
  gpt2 import out/ckpt.pt --out shakespeare
  gpt2 import gpt2_124M.bin --out gpt2-llmc --save-dtype bf16")]
pub(crate) struct ImportArgs {
    /// The file or folder to read, or the name of a model on the Hub
    #[arg(value_name = "FILE|DIR|NAME")]
    pub(crate) from: String,
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

pub(crate) fn run(args: &ImportArgs) -> anyhow::Result<()> {
    TERMINAL.works();
    let mut inputs = ReadFiles::default();
    hub::inputs(&args.hub, &mut inputs);
    inputs.named(&args.from);
    let outputs = args.new.outputs(&inputs)?;
    let files = import::files(&args.from, &named(None, &args.hub), &TERMINAL)?;
    inputs.model(&files)?;
    args.new.spare(&inputs)?;
    let new = args.new.options();
    import::check(&files, &new, &args.hub.options(), Spelling::Flags)?;
    let _folder = OwnFolder::make(&new.out).context("--out")?;
    outputs.check(&inputs)?;
    let report = import::write(&args.from, &files, &new, &TERMINAL)?;
    output::report(args.json, &report, |Report { out, parameters, tokenizer, name, .. }| {
        let tokenizer = if *tokenizer { ", with a tokenizer" } else { "" };
        let out = out.display();
        writeln!(output::stdout(), "{out}: {parameters} parameters of {name}{tokenizer}")?;
        Ok(())
    })
}
