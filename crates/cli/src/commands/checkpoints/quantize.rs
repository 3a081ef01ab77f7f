//! `gpt2 quantize`: writes a model as a GGUF file.

use crate::model::args::MODEL;
use crate::model::args::ThreadsArg;
use crate::model::hub::HubArgs;
use crate::model::{args, hub};
use crate::output;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use anyhow::Context;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use gpt2_engine::studies::checkpoints::quantize::{Quantizing, Report, check_name};
use gpt2_engine::{ReadFiles, Spelling};
use gpt2_loader::GgufType;
use gpt2_view::visible_text;
use std::io::Write;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The file holds weights, config and tokenizer. Every command here reads it with --model, and llama.cpp reads it too. It is read
back and compared before it gets its name. gpt2 compare shows what the lost digits cost on a text of yours.

A type is a mix, as llama.cpp chooses it: q4_0 has its output projection in q6_K, q4_k_m is q4_K and q6_K. Blocks of q4_K and q6_K
hold 256 numbers; where a model is too narrow for them, q5_0 and q8_0 take their place. The result says which formats the file has.

Examples:
  gpt2 quantize gpt2 --to q8_0 --out gpt2-q8_0.gguf
  gpt2 compare gpt2 gpt2-q8_0.gguf --text notes.txt   # what that costs
  gpt2 quantize --to q4_0 --out demo.gguf   # the built-in demo model")]
pub(crate) struct QuantizeArgs {
    #[arg(value_name = "MODEL", help = MODEL)]
    pub(crate) model: Option<String>,
    /// Type of the weights
    #[arg(long, value_name = "TYPE", value_parser = types())]
    pub(crate) to: GgufType,
    /// The file to write
    #[arg(short, long, value_name = "FILE.gguf")]
    pub(crate) out: PathBuf,
    /// Replace an existing file
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

/// The parser of `--to`: takes the types of a GGUF file.
pub(crate) fn types() -> impl TypedValueParser<Value = GgufType> {
    let names = GgufType::ALL.iter().map(|kind| PossibleValue::new(kind.as_str()).help(kind.about()));
    PossibleValuesParser::new(names).try_map(|name| name.to_ascii_lowercase().parse::<GgufType>())
}

pub(crate) fn run(args: &QuantizeArgs) -> anyhow::Result<()> {
    let out = &args.out;
    check_name(out, Spelling::Flags)?;
    let mut outputs = Outputs::new(args.overwrite);
    outputs.add("--out", out);
    let mut inputs = ReadFiles::default();
    hub::inputs(&args.hub, &mut inputs);
    outputs.check(&inputs)?;
    let files = args::files(args.model.as_deref(), &args.hub)?;
    inputs.model(&files)?;
    outputs.check(&inputs)?;

    let quantizing = Quantizing::new(&files, args.to, &TERMINAL)?;
    let mut written = None;
    outputs.stage(out, |temporary| {
        written = Some(quantizing.write(temporary, out, &TERMINAL)?);
        anyhow::Ok(())
    })?;
    let report = written.context("the file was not written")?;
    outputs.commit_after(|| output::report(args.json, &report, print))
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let Report { kind, bits_per_parameter, weights, because, .. } = report;
    let megabytes = report.bytes as f64 / 1e6;
    let file = visible_text(&report.file.display().to_string());
    writeln!(
        out,
        "{file}: {kind}, {megabytes:.1} MB, {bits_per_parameter:.2} bits a parameter, tokenizer included"
    )?;
    let mix = weights.iter().map(|(format, n)| format!("{n} in {}", format.to_uppercase()));
    writeln!(out, "weights: {}{because}", mix.collect::<Vec<_>>().join(", "))?;
    Ok(())
}
