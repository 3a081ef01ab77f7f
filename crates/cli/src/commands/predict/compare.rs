//! `gpt2 compare`: how far the predictions of two models lie apart on a text.

use crate::model::args::{RunArgs, named};
use crate::model::hub::HubArgs;
use crate::output;
use crate::output::terminal::TERMINAL;
use crate::values::one_of;
use anyhow::Context;
use candle_fused::BlockFormat;
use gpt2_engine::open::{AdapterChoice, CACHES, FORMATS, quantized};
use gpt2_engine::studies::predict::compare::{Options, Report};
use gpt2_engine::texts::{Content, folder_text, read_file, read_limited};
use gpt2_engine::{ModelOptions, Spelling};
use gpt2_loader::Checkpoint;
use gpt2_model::CacheDType;
use gpt2_view::visible_text;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
// A group, because clap forgets a required argument that conflicts with a given one.
#[command(group = clap::ArgGroup::new("text_of").args(["text", "place"]).required(true))]
#[command(after_help = "\
Both models need the same vocabulary. The text is cut into windows as long as the shorter context. Each token is predicted once,
except the first of a window. The windows of gpt2 score overlap, which gives a lower perplexity; with --stride as large as a window, it
gives that of compare. The KL divergence is that of MODEL's distribution from OTHER's, in nats.

Examples:
  gpt2 compare gpt2 gpt2-q4_0.gguf --text notes.txt
  gpt2 compare gpt2 gpt2 --quantize-other q4_0 --text notes.txt --tokens 20000 --json
  gpt2 compare gpt2 gpt2 --kv-other q8_0 --text notes.txt   # what a cache in 8 bits costs
  gpt2 compare gpt2 gpt2 --adapter poems --text poems.txt   # what an adapter changes")]
pub(crate) struct CompareArgs {
    /// The model that counts as right: a folder, a GGUF file, a model on the Hugging Face Hub, or demo, which is built in
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// The model to compare with it
    #[arg(value_name = "OTHER")]
    pub(crate) other: String,
    /// The text to predict: a file, a folder of .txt files, which are read one after another, or - for standard input
    #[arg(long, value_name = "FILE|FOLDER|-")]
    pub(crate) text: Option<PathBuf>,
    /// That text, without the name, as gpt2 score takes it
    #[arg(value_name = "TEXT", hide = true)]
    pub(crate) place: Option<PathBuf>,
    /// Quantize OTHER as it is loaded
    #[arg(long, value_name = "FORMAT", value_parser = one_of(FORMATS))]
    pub(crate) quantize_other: Option<BlockFormat>,
    /// Let OTHER read keys and values from a cache of this precision, as generate --kv does
    #[arg(long, value_name = "DTYPE", value_parser = one_of(CACHES))]
    pub(crate) kv_other: Option<CacheDType>,
    /// Put a LoRA adapter on OTHER, times WEIGHT: a folder, or owner/name on the Hub, in PEFT's format (repeatable)
    #[arg(long = "adapter", value_name = "DIR|NAME[=WEIGHT]")]
    pub(crate) adapters: Vec<AdapterChoice>,
    /// Compare only the first N tokens of the text [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..))]
    pub(crate) tokens: Option<u64>,
    /// Tokens in a window [default: the shorter context of the two models]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) window: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}

/// The longest text in bytes.
const LONGEST_TEXT: u64 = 1 << 28;

pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let quantizes = args.quantize_other.map(|_| "quantize-other");
    let caches = matches!(args.kv_other, Some(CacheDType::Q8_0)).then_some("kv-other");
    let cpu_only: Vec<&str> = quantizes.into_iter().chain(caches).collect();
    let device = args.run.open_with(&cpu_only)?;
    let path = args.text.as_ref().or(args.place.as_ref()).context("clap requires a text")?;
    let text = Content::Text(read(path)?);
    let first = named(Some(&args.model), &args.hub);
    TERMINAL.works();
    let model = first.load(first.find(&TERMINAL)?, device.clone(), &TERMINAL)?;
    let second = ModelOptions {
        quantize: args.quantize_other,
        adapters: args.adapters.clone(),
        ..named(Some(&args.other), &args.hub)
    };
    let found = second.find(&TERMINAL)?;
    if args.quantize_other.is_some() {
        let checkpoint = Checkpoint::open(&found.files)?;
        quantized("--quantize-other", args.quantize_other, Some(&checkpoint), &device, Spelling::Flags)?;
    }
    let other = second.load(found, device, &TERMINAL)?;
    let place = path.display().to_string();
    let report = args.options().compare([&model, &other], &text, &place, &TERMINAL)?;
    output::report(args.json, &report, print)
}

impl CompareArgs {
    fn options(&self) -> Options {
        let tokens = self.tokens.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
        Options { tokens, window: self.window.map(|window| window as usize), kv_other: self.kv_other }
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        return read_limited(std::io::stdin(), LONGEST_TEXT)
            .context("cannot read the text from standard input");
    }
    if path.is_dir() {
        return folder_text(path, LONGEST_TEXT, Spelling::Flags, &TERMINAL);
    }
    read_file("the text", path, LONGEST_TEXT, &TERMINAL)
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    for side in [&report.model, &report.other] {
        let formats =
            if side.formats.is_empty() { String::new() } else { format!(" ({})", side.formats.join(", ")) };
        let adapters: Vec<_> =
            side.adapters.iter().map(|used| format!(", adapter {} x {}", used.name, used.weight)).collect();
        let kv = side.kv.map(|kv| format!(", cache in {kv}")).unwrap_or_default();
        let name = visible_text(&format!("{}{}{kv}", side.name, adapters.concat()));
        writeln!(out, "perplexity {:.4}  {name}{formats}", side.perplexity)?;
    }
    writeln!(
        out,
        "mean KL divergence {:.6} nats, top-1 agreement {:.2} %, largest logit difference {:.3}",
        report.mean_kl_divergence,
        100.0 * report.top_1_agreement,
        report.largest_logit_difference
    )?;
    writeln!(
        out,
        "{} tokens predicted, in windows of up to {} that do not overlap (gpt2 score's do: more context, a lower perplexity)",
        report.tokens, report.window
    )?;
    Ok(())
}
