//! `gpt2 merge`: adds adapters to a model's weights.

use crate::adapters::{self, AdapterArg, Used};
use crate::device::ThreadsArg;
use crate::hub::HubArgs;
use crate::inputs::Inputs;
use crate::outputs::{NewFolder, Outputs};
use crate::session::{DTYPES, MODEL};
use crate::values::one_of;
use crate::{hub, output, session};
use anyhow::bail;
use candle_core::{DType, Device};
use gpt2_loader::{AdapterFiles, Checkpoint, SaveOptions, Tokenizer, TokenizerFiles, save};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The merged model is a plain checkpoint, as fast as the original, for every command, for transformers and for `gpt2 quantize`.

Examples:
  gpt2 merge --model gpt2 --adapter poems --out gpt2-poems
  gpt2 merge --model gpt2 --adapter poems=0.5 --adapter plays=0.5 --out gpt2-mixed --save-dtype f16")]
pub(crate) struct MergeArgs {
    #[arg(short, long, value_name = "DIR|FILE|NAME", help = MODEL)]
    pub(crate) model: Option<String>,
    /// The adapter, in PEFT's format: a folder or owner/name on the Hub, times WEIGHT (repeatable). A weight of -1 takes
    /// one out again
    #[arg(long = "adapter", value_name = "DIR|NAME[=WEIGHT]", required = true)]
    pub(crate) adapters: Vec<AdapterArg>,
    /// Folder for config.json, model.safetensors and tokenizer.json
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Precision of the saved weights
    #[arg(long, default_value = "f32", value_parser = one_of(DTYPES))]
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

/// The files of a merged model.
const FILES: [&str; 3] = ["config.json", "model.safetensors", "tokenizer.json"];

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    adapters: &'a [Used],
    out: &'a Path,
    parameters: u64,
}

pub(crate) fn run(args: &MergeArgs) -> anyhow::Result<()> {
    let out = &args.out;
    let mut inputs = Inputs::default();
    hub::inputs(&args.hub, &mut inputs);
    let mut outputs = Outputs::new(true);
    for name in FILES {
        let path = out.join(name);
        if !args.overwrite && path.symlink_metadata().is_ok() {
            bail!(
                "--out {}: there is a {name} already; choose another folder, or replace it with --overwrite",
                out.display()
            );
        }
        outputs.add("--out", &path);
    }
    if AdapterFiles::is_in(out) {
        bail!(
            "--out {}: holds an adapter, for which other programs would take the model; choose another folder",
            out.display()
        );
    }
    let found = adapters::find(&args.adapters, &args.hub, &mut inputs)?;
    let files = session::files(args.model.as_deref(), &args.hub)?;
    inputs.model(&files)?;
    inputs.spare_folder(&format!("--out {}", out.display()), out)?;

    let checkpoint = Checkpoint::open(&files)?;
    if let Some(format) = checkpoint.formats().first() {
        bail!(
            "{}: its weights are quantized ({format}), and adding to them would round them a second time; merge into the original, \
             then quantize",
            checkpoint.name()
        );
    }
    let model = checkpoint.load_model(DType::F32, &Device::Cpu)?;
    let tokenizer = match &files.tokenizer {
        TokenizerFiles::Absent if out.join("tokenizer.json").symlink_metadata().is_ok() => bail!(
            "--out {}: there is a tokenizer.json, and {} has none to replace it; choose another folder",
            out.display(),
            checkpoint.name()
        ),
        TokenizerFiles::Absent => None,
        _ => Some(Tokenizer::open(&files, checkpoint.config().vocab_size)?),
    };
    let (model, used) = adapters::put_on(model, &found)?;
    let model = model.merged()?;
    let _folder = NewFolder::make(out)?;
    outputs.check(&inputs)?;
    save(out, &model, tokenizer.as_ref(), SaveOptions::default().with_dtype(args.save_dtype))?;
    let parameters = model.checkpoint_config().parameter_count()?;
    let report = Report { model: checkpoint.name(), adapters: &used, out, parameters };
    output::report(args.json, &report, |report| {
        let adapters: Vec<_> =
            report.adapters.iter().map(|used| format!("{} x {}", used.name, used.weight)).collect();
        writeln!(
            output::stdout(),
            "{}: {} with {}, {parameters} parameters",
            out.display(),
            report.model,
            adapters.join(", ")
        )?;
        Ok(())
    })
}
