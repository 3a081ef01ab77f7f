//! `gpt2 quantize`: writes a model as a GGUF file.

use crate::args::QuantizeArgs;
use crate::inputs::Inputs;
use crate::outputs::Outputs;
use crate::{hub, output, session};
use anyhow::bail;
use gpt2_loader::{Checkpoint, GgufType, Tokenizer, save_gguf};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    file: &'a Path,
    #[serde(rename = "type")]
    kind: &'static str,
    bytes: u64,
    parameters: u64,
    bits_per_parameter: f64,
}

pub(crate) fn run(args: &QuantizeArgs) -> anyhow::Result<ExitCode> {
    let out = &args.out;
    let mut outputs = Outputs::new(args.overwrite);
    outputs.add("--out", out);
    let mut inputs = Inputs::default();
    hub::inputs(&args.hub, &mut inputs);
    outputs.check(&inputs)?;
    let files = session::files(args.model.as_deref(), &args.hub)?;
    inputs.model(&files)?;
    outputs.check(&inputs)?;

    let kind = GgufType::from(args.to);
    let checkpoint = Checkpoint::open(&files)?;
    if let Some(format) = checkpoint.formats().first() {
        bail!(
            "{}: is quantized already ({format}), and would lose twice; start from the original",
            checkpoint.name()
        );
    }
    let tokenizer = Tokenizer::open(&files, checkpoint.config().vocab_size)?;
    let bar = if output::is_quiet() { ProgressBar::hidden() } else { ProgressBar::new(1) };
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    let mut bytes = 0;
    outputs.stage(out, |temporary| {
        save_gguf(temporary, &checkpoint, &tokenizer, kind, &mut |done, all, name| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            bar.set_message(name.to_string());
        })?;
        bytes = std::fs::metadata(temporary)?.len();
        anyhow::Ok(())
    })?;
    bar.finish_and_clear();
    let parameters = checkpoint.audit().parameter_count;
    let bits_per_parameter = 8.0 * bytes as f64 / parameters as f64;
    let report = Report {
        model: checkpoint.name(),
        file: out,
        kind: kind.as_str(),
        bytes,
        parameters,
        bits_per_parameter,
    };
    outputs.commit_after(|| {
        output::report(args.json, &report, |report| {
            let (megabytes, file) = (report.bytes as f64 / 1e6, report.file.display());
            writeln!(
                output::stdout(),
                "{file}: {kind}, {megabytes:.1} MB, {bits_per_parameter:.2} bits a parameter, tokenizer included"
            )?;
            Ok(())
        })
    })?;
    Ok(ExitCode::SUCCESS)
}
