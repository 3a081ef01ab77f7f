//! `gpt2 merge`: adds adapters to a model's weights.

use crate::adapters::{self, Used};
use crate::args::MergeArgs;
use crate::inputs::Inputs;
use crate::new_folder::NewFolder;
use crate::outputs::Outputs;
use crate::{hub, output, session};
use anyhow::bail;
use candle_core::{DType, Device};
use gpt2_loader::{AdapterFiles, Checkpoint, SaveOptions, Tokenizer, TokenizerFiles, save};
use serde::Serialize;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// The files of a merged model.
const FILES: [&str; 3] = ["config.json", "model.safetensors", "tokenizer.json"];

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    adapters: &'a [Used],
    out: &'a Path,
    parameters: u64,
}

pub(crate) fn run(args: &MergeArgs) -> anyhow::Result<ExitCode> {
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
            "{}: its weights are quantized ({format}), and adding to them would round them once more; merge into the original, \
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
    save(out, &model, tokenizer.as_ref(), SaveOptions::default().with_dtype(DType::from(args.save_dtype)))?;
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
    })?;
    Ok(ExitCode::SUCCESS)
}
