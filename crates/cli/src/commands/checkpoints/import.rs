//! `gpt2 import`: writes a model that another program saved as a folder that transformers loads.

use crate::model::args::ThreadsArg;
use crate::model::hub::HubArgs;
use crate::model::{args, hub};
use crate::output;
use crate::output::progress::with_bar;
use crate::output::read_files::ReadFiles;
use crate::output::written_files::{NewFolder, Outputs};
use crate::values::one_of;
use anyhow::{Context, bail};
use candle_core::DType;
use gpt2_engine::open::DTYPES;
use gpt2_loader::{AdapterFiles, Files, Imported, Source, TokenizerFiles, import, stale_settings};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

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
    /// Folder for config.json, model.safetensors and, if there is a tokenizer, tokenizer.json
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Precision of the saved weights
    #[arg(long, value_name = "DTYPE", default_value = "f32", value_parser = one_of(DTYPES))]
    pub(crate) save_dtype: DType,
    /// Replace a model that is already in --out
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) threads: ThreadsArg,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}

/// The files of the folder.
const FILES: [&str; 3] = ["config.json", "model.safetensors", "tokenizer.json"];

#[derive(Serialize)]
struct Report<'a> {
    from: &'a str,
    out: &'a Path,
    parameters: u64,
    tokenizer: bool,
    notes: &'a [String],
}

/// The files of a model by a path, or by its name on the Hub if there is no such path.
fn files(args: &ImportArgs) -> anyhow::Result<Files> {
    let path = Path::new(&args.from);
    if path.is_file() {
        return Ok(Source::File(path.to_path_buf()).open()?);
    }
    args::files(Some(&args.from), &args.hub)
}

pub(crate) fn run(args: &ImportArgs) -> anyhow::Result<()> {
    let out = &args.out;
    let named = format!("--out {}", out.display());
    let mut inputs = ReadFiles::default();
    hub::inputs(&args.hub, &mut inputs);
    inputs.named(&args.from);
    if AdapterFiles::is_in(out) {
        bail!(
            "{named}: holds an adapter, and other programs would take the model for one; choose another folder"
        );
    }
    inputs.spare_folder(&named, out)?;
    let mut outputs = Outputs::new(true);
    for name in FILES {
        let path = out.join(name);
        if !args.overwrite && path.symlink_metadata().is_ok() {
            bail!("{named}: holds {name} already; choose another folder, or replace it with --overwrite");
        }
        outputs.add("--out", &path);
    }
    let files = files(args)?;
    inputs.model(&files)?;
    inputs.spare_folder(&named, out)?;
    if matches!(files.tokenizer, TokenizerFiles::Absent)
        && out.join("tokenizer.json").symlink_metadata().is_ok()
    {
        bail!(
            "{named}: there is a tokenizer.json, and {} has none of its own to replace it; choose another folder",
            files.name
        );
    }
    if let Some(name) = stale_settings(out, false) {
        bail!("{named}: holds {name}, which would change the model; remove it, or choose another folder");
    }
    let _folder = NewFolder::make(out).context("--out")?;
    outputs.check(&inputs)?;
    let done = with_bar("tensors read", |progress| import(&files, out, args.save_dtype, progress));
    let Imported { parameters, tokenizer, notes, .. } = done?;
    for line in &notes {
        output::note(line);
    }
    let report = Report { from: &args.from, out, parameters, tokenizer, notes: &notes };
    output::report(args.json, &report, |report| {
        let tokenizer = if report.tokenizer { ", with a tokenizer" } else { "" };
        writeln!(
            output::stdout(),
            "{}: {parameters} parameters of {}{tokenizer}",
            report.out.display(),
            files.name
        )?;
        Ok(())
    })
}
