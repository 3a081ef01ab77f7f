//! `gpt2 quantize`: writes a model as a GGUF file.

use crate::model::args::MODEL;
use crate::model::args::ThreadsArg;
use crate::model::hub::HubArgs;
use crate::model::{args, hub};
use crate::output;
use crate::output::progress::bar;
use crate::output::read_files::ReadFiles;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use anyhow::{anyhow, bail};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use gpt2_engine::open::{checkpoint, open_tokenizer};
use gpt2_loader::{Checkpoint, Encoding, GgufType, LoadError, Source, save_gguf};
use gpt2_model::parameters::WPE;
use gpt2_view::visible_text;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

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
    PossibleValuesParser::new(names).try_map(|name| name.parse::<GgufType>())
}

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    file: &'a Path,
    #[serde(rename = "type")]
    kind: &'static str,
    bytes: u64,
    parameters: u64,
    bits_per_parameter: f64,
    /// The number of weight tensors in each format.
    weights: BTreeMap<String, usize>,
}

/// The numbers in a block of `q4_K` or `q6_K`.
const LARGE_BLOCK: usize = 256;

/// Counts the tensors of more than one dimension in each format of a GGUF file. Positions, in f32 in every type, are
/// not counted.
fn weights_of(path: &Path) -> anyhow::Result<BTreeMap<String, usize>> {
    let written = Checkpoint::open(&Source::Gguf(path.into()).open()?)?;
    let mut weights = BTreeMap::new();
    for (_, tensor) in written.tensors().filter(|(name, of)| of.shape.len() > 1 && *name != WPE) {
        let format = match tensor.dtype {
            Encoding::Blocks(format) => format.as_str().to_owned(),
            other => other.to_string().to_lowercase(),
        };
        *weights.entry(format).or_default() += 1;
    }
    Ok(weights)
}

/// Explains formats that the file's type does not name: rows of `width` numbers may not divide into large blocks.
fn because(kind: GgufType, width: usize) -> String {
    let (need, instead) = match kind {
        GgufType::Q4_0 => ("Q6_K needs", "the output projection got Q8_0"),
        GgufType::Q4KM => ("Q4_K and Q6_K need", "the others got Q5_0 and Q8_0"),
        _ => return String::new(),
    };
    if width.is_multiple_of(LARGE_BLOCK) {
        return String::new();
    }
    format!("; {need} rows whose length is a multiple of {LARGE_BLOCK}; {instead}")
}

/// Runs `work`, which tells how many tensors are done, how many there are, and the name of the next.
pub(crate) fn with_bar<T>(work: impl FnOnce(&mut dyn FnMut(usize, usize, &str)) -> T) -> T {
    let bar = bar(Some(1), "{bar:30} {pos}/{len} {msg}");
    let result = work(&mut |done, all, name| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
        bar.set_message(name.to_string());
    });
    bar.finish_and_clear();
    result
}

/// The error in this command's words: ids are no way out, since the file holds the tokenizer.
fn no_tokenizer(error: LoadError) -> anyhow::Error {
    match error {
        LoadError::NoTokenizer { name, vocab_size } => anyhow!(
            "{name}: no tokenizer here, and a GGUF file holds one; put its tokenizer.json, or vocab.json with merges.txt, into \
             the folder (a vocabulary of {vocab_size} is not GPT-2's own 50257)"
        ),
        LoadError::OtherTokenizer { name, reason, remedy } => {
            anyhow!("{name}: tokenizer: {reason}; a GGUF file holds the tokenizer: {remedy}")
        }
        other => other.into(),
    }
}

pub(crate) fn run(args: &QuantizeArgs) -> anyhow::Result<()> {
    let out = &args.out;
    if !out.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf")) {
        bail!(
            "--out {}: expected a name that ends in .gguf, by which every command knows the format",
            out.display()
        );
    }
    let mut outputs = Outputs::new(args.overwrite);
    outputs.add("--out", out);
    let mut inputs = ReadFiles::default();
    hub::inputs(&args.hub, &mut inputs);
    outputs.check(&inputs)?;
    let files = args::files(args.model.as_deref(), &args.hub)?;
    inputs.model(&files)?;
    outputs.check(&inputs)?;

    let kind = args.to;
    let checkpoint = checkpoint(&files, &TERMINAL)?;
    if let Some(format) = checkpoint.formats().first() {
        bail!(
            "{}: is quantized already ({format}), and quantizing it again would lose more precision; start from the original",
            checkpoint.name()
        );
    }
    let tokenizer =
        open_tokenizer(&files, checkpoint.config().vocab_size, &TERMINAL).map_err(no_tokenizer)?;
    let mut bytes = 0;
    let mut weights = BTreeMap::new();
    outputs.stage(out, |temporary| {
        with_bar(|progress| save_gguf(temporary, &checkpoint, &tokenizer, kind, progress))?;
        bytes = std::fs::metadata(temporary)?.len();
        weights = weights_of(temporary)?;
        anyhow::Ok(())
    })?;
    let parameters = checkpoint.audit().parameter_count;
    let bits_per_parameter = 8.0 * bytes as f64 / parameters as f64;
    let report = Report {
        model: checkpoint.name(),
        file: out,
        kind: kind.as_str(),
        bytes,
        parameters,
        bits_per_parameter,
        weights,
    };
    let width = checkpoint.config().n_embd;
    outputs.commit_after(|| {
        output::report(args.json, &report, |report| {
            let megabytes = report.bytes as f64 / 1e6;
            let file = visible_text(&report.file.display().to_string());
            writeln!(
                output::stdout(),
                "{file}: {kind}, {megabytes:.1} MB, {bits_per_parameter:.2} bits a parameter, tokenizer included"
            )?;
            let mix: Vec<String> = report.weights.iter().map(|(format, n)| format!("{n} in {}", format.to_uppercase())).collect();
            writeln!(output::stdout(), "weights: {}{}", mix.join(", "), because(kind, width))?;
            Ok(())
        })
    })
}
