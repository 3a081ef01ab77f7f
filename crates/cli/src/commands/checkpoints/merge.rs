//! `gpt2 merge`: adds adapters to a model's weights.

use crate::model::args::{MODEL, ThreadsArg, named, note_default};
use crate::model::hub;
use crate::model::hub::HubArgs;
use crate::output;
use crate::output::read_files::ReadFiles;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::{NewFolder, Outputs};
use crate::values::one_of;
use anyhow::{Context, anyhow, bail};
use candle_core::{DType, Device};
use gpt2_engine::ModelOptions;
use gpt2_engine::open::{AdapterChoice, DTYPES, UsedAdapter, checkpoint, open_tokenizer};
use gpt2_loader::{
    AdapterFiles, LoadError, SaveOptions, Tokenizer, TokenizerFiles, check_savable, save, stale_settings,
};
use gpt2_view::visible_text;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

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
    /// Folder for config.json, model.safetensors and tokenizer.json
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

/// The files of a merged model.
const FILES: [&str; 3] = ["config.json", "model.safetensors", "tokenizer.json"];

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    adapters: &'a [UsedAdapter],
    out: &'a Path,
    parameters: u64,
}

/// The error in this command's words.
fn worded(error: LoadError) -> anyhow::Error {
    match error {
        LoadError::NotSavable { parameter, value, .. } if !value.is_finite() => anyhow!(
            "--adapter: {parameter} becomes {value}: the adapters, times their weights, are too large for this model"
        ),
        LoadError::NotSavable { .. } => anyhow::Error::new(error).context("--save-dtype"),
        other => other.into(),
    }
}

pub(crate) fn run(args: &MergeArgs) -> anyhow::Result<()> {
    let out = &args.out;
    let mut inputs = ReadFiles::default();
    hub::inputs(&args.hub, &mut inputs);
    let adapters = args.adapters.iter().map(|adapter| adapter.source.as_str());
    args.model.as_deref().into_iter().chain(adapters).for_each(|source| inputs.named(source));
    if AdapterFiles::is_in(out) {
        bail!(
            "--out {}: holds an adapter, and other programs would take the model for one; choose another folder",
            out.display()
        );
    }
    // Before what --overwrite allows to replace: it never allows this.
    inputs.spare_folder(&format!("--out {}", out.display()), out)?;
    let mut outputs = Outputs::new(true);
    for name in FILES {
        let path = out.join(name);
        if !args.overwrite && path.symlink_metadata().is_ok() {
            bail!(
                "--out {}: holds {name} already; choose another folder, or replace it with --overwrite",
                out.display()
            );
        }
        outputs.add("--out", &path);
    }
    let options = ModelOptions { adapters: args.adapters.clone(), ..named(args.model.as_deref(), &args.hub) };
    let found = options.find_adapters(&TERMINAL)?;
    for adapter in &found {
        inputs.adapter(&adapter.files);
    }
    note_default(args.model.as_deref());
    let files = options.files(&TERMINAL)?;
    inputs.model(&files)?;
    inputs.spare_folder(&format!("--out {}", out.display()), out)?;

    let checkpoint = checkpoint(&files, &TERMINAL)?;
    if let Some(format) = checkpoint.formats().first() {
        bail!(
            "{}: its weights are quantized ({format}), and adding to them would round them a second time; merge into the original, \
             then quantize",
            checkpoint.name()
        );
    }
    let model = checkpoint.load_model(DType::F32, &Device::Cpu)?;
    // Before the adapters, so that what is not finite after them is theirs.
    check_savable(&model, None).with_context(|| format!("{}: its weights are damaged", checkpoint.name()))?;
    let tokenizer = match &files.tokenizer {
        TokenizerFiles::Absent if out.join("tokenizer.json").symlink_metadata().is_ok() => bail!(
            "--out {}: there is a tokenizer.json, and {} has none to replace it; choose another folder",
            out.display(),
            checkpoint.name()
        ),
        TokenizerFiles::Absent => None,
        _ => Some(open_tokenizer(&files, checkpoint.config().vocab_size, &TERMINAL)?),
    };
    // What is said beside another model would become part of this one.
    let writes = args.overwrite && tokenizer.as_ref().is_some_and(Tokenizer::has_settings);
    if let Some(name) = stale_settings(out, writes) {
        bail!(
            "--out {}: holds {name}, which would change the merged model; remove it, or choose another folder",
            out.display()
        );
    }
    let (model, used) = options.with_adapters(model, &found, &TERMINAL)?;
    let model = model.merged()?;
    let _folder = NewFolder::make(out).context("--out")?;
    outputs.check(&inputs)?;
    let precision = SaveOptions::default().with_dtype(args.save_dtype);
    save(out, &model, tokenizer.as_ref(), precision).map_err(worded)?;
    let parameters = model.checkpoint_config().parameter_count()?;
    let report = Report { model: checkpoint.name(), adapters: &used, out, parameters };
    output::report(args.json, &report, |report| {
        let adapters: Vec<_> =
            report.adapters.iter().map(|used| format!("{} x {}", used.name, used.weight)).collect();
        writeln!(
            output::stdout(),
            "{}",
            visible_text(&format!(
                "{}: {} with {}, {parameters} parameters",
                out.display(),
                report.model,
                adapters.join(", ")
            ))
        )?;
        Ok(())
    })
}
