//! `gpt2 compare`: how far the predictions of two models lie apart on a text.

use crate::model::args::{RunArgs, files, named};
use crate::model::hub::HubArgs;
use crate::output;
use crate::output::progress::bar;
use crate::output::terminal::TERMINAL;
use crate::values::one_of;
use anyhow::{Context, bail};
use candle_core::{DType, Device, Tensor};
use candle_fused::BlockFormat;
use gpt2_engine::open::{
    AdapterChoice, CACHES, FORMATS, UsedAdapter, checkpoint, explain_not_finite, kept_formats,
    open_tokenizer, quantized,
};
use gpt2_engine::texts::{encode, noted, read_file, read_limited};
use gpt2_engine::{ModelOptions, Spelling};
use gpt2_loader::{Files, Tokenizer};
use gpt2_model::analysis::Comparison;
use gpt2_model::finite::all_finite;
use gpt2_model::{CacheDType, ForwardArgs, Gpt2LMHeadModel, KvCache};
use gpt2_view::visible_text;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Both models need the same vocabulary. The text is cut into windows as long as the shorter context. Each token is predicted once,
except the first of a window. The windows of gpt2 score overlap, which gives a lower perplexity. The KL divergence is that of MODEL's distribution from OTHER's, in nats.

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
    /// The text to predict, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
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

#[derive(Serialize)]
struct Report {
    model: ComparedModel,
    other: ComparedModel,
    tokens: usize,
    window: usize,
    /// The tokens by which a window moves on: `window`, since windows do not overlap.
    stride: usize,
    mean_kl_divergence: f64,
    top_1_agreement: f64,
    largest_logit_difference: f64,
}

#[derive(Serialize)]
struct ComparedModel {
    name: String,
    /// The formats of its quantized weights.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    formats: Vec<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    adapters: Vec<UsedAdapter>,
    /// The dtype of its cached keys and values; `None` without a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    kv: Option<&'static str>,
    perplexity: f64,
}

struct LoadedSide {
    side: ComparedModel,
    model: Gpt2LMHeadModel,
    files: Files,
}

pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let device = args.run.open()?;
    let text = read(&args.text)?;
    let mut a = load(&args.model, args, None, &device)?;
    let mut b = load(&args.other, args, args.quantize_other, &device)?;
    let options = ModelOptions { adapters: args.adapters.clone(), ..named(Some(&args.other), &args.hub) };
    let adapters = options.find_adapters(&TERMINAL)?;
    (b.model, b.side.adapters) = options.with_adapters(b.model, &adapters, &TERMINAL)?;
    b.side.kv = args.kv_other.map(CacheDType::as_str);
    let (config, other) = (a.model.config(), b.model.config());
    if config.vocab_size != other.vocab_size {
        bail!(
            "the models have vocabularies of {} and {} tokens; compare two models with one vocabulary",
            config.vocab_size,
            other.vocab_size
        );
    }
    let tokenizer = open_tokenizer(&a.files, config.vocab_size, &TERMINAL)?;
    let mut ids = noted(encode(&tokenizer, &text, "the text")?, &TERMINAL);
    if let Ok(other) = Tokenizer::open(&b.files, config.vocab_size)
        && other.encode(&text)? != ids
    {
        bail!(
            "the tokenizers of the two models give the text different ids; compare two models with one vocabulary"
        );
    }
    let has = ids.len();
    ids.truncate(args.tokens.map_or(has, |most| usize::try_from(most).unwrap_or(usize::MAX)));
    if ids.len() < 2 {
        bail!("{}: has {has} tokens; expected at least 2", args.text.display());
    }
    let context = config.n_positions.min(other.n_positions);
    let window = args.window.map_or(context, |window| window as usize);
    if window > context {
        bail!(
            "--window {window}: the models have contexts of {} and {} tokens",
            config.n_positions,
            other.n_positions
        );
    }
    if let Some(id) = ids.iter().find(|id| **id as usize >= config.vocab_size) {
        bail!("the tokenizer gives id {id}, the models have {} tokens", config.vocab_size);
    }

    let comparison = compared(args, [&a, &b], &ids, window, &device)?;
    [a.side.perplexity, b.side.perplexity] = comparison.perplexity();
    for (role, ComparedModel { name, perplexity, .. }) in [("MODEL", &a.side), ("OTHER", &b.side)] {
        if !perplexity.is_finite() {
            bail!(
                "{role}, {name}: its perplexity exceeds the range of f64: the text is too improbable for it"
            );
        }
    }
    let report = Report {
        model: a.side,
        other: b.side,
        tokens: comparison.tokens,
        window,
        stride: window,
        mean_kl_divergence: comparison.mean_divergence(),
        top_1_agreement: comparison.agreement(),
        largest_logit_difference: comparison.largest_difference,
    };
    output::report(args.json, &report, print)
}

/// Compares the predictions of two models over a text, window by window.
fn compared(
    args: &CompareArgs,
    [a, b]: [&LoadedSide; 2],
    ids: &[u32],
    window: usize,
    device: &Device,
) -> anyhow::Result<Comparison> {
    // Attention reads all keys and values of a window from the cache, those of the newest token as well.
    let cache = |kv| KvCache::new(b.model.config(), 1, window.min(ids.len()), kv, device);
    let mut cache = args.kv_other.map(cache).transpose()?;
    let bar = bar(Some(ids.len() as u64), "{bar:30} {pos}/{len} tokens, {eta} left");
    let mut comparison = Comparison::default();
    for part in ids.chunks(window).filter(|part| part.len() > 1) {
        let inputs = Tensor::new(&part[..part.len() - 1], device)?.unsqueeze(0)?; // (1, T)
        let logits = |role: &str, of: &LoadedSide, cache: Option<&mut KvCache>| -> anyhow::Result<Tensor> {
            let logits = of.model.forward(&inputs, ForwardArgs { cache, ..Default::default() })?.logits;
            if !all_finite(&logits)? {
                bail!(
                    "{role}, {}: {}",
                    of.side.name,
                    explain_not_finite(&of.model, &inputs, None, Spelling::Flags)
                )
            }
            Ok(logits.squeeze(0)?.to_device(&Device::Cpu)?) // (T, V)
        };
        let targets = Tensor::new(&part[1..], &Device::Cpu)?;
        cache.iter_mut().for_each(KvCache::clear);
        let pair = [&logits("MODEL", a, None)?, &logits("OTHER", b, cache.as_mut())?];
        comparison.add(pair, &targets)?;
        bar.inc(part.len() as u64);
    }
    bar.finish_and_clear();
    Ok(comparison)
}

fn read(path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        return read_limited(std::io::stdin(), LONGEST_TEXT)
            .context("cannot read the text from standard input");
    }
    read_file("the text", path, LONGEST_TEXT, &TERMINAL)
}

fn load(
    name: &str,
    args: &CompareArgs,
    quantize: Option<BlockFormat>,
    device: &Device,
) -> anyhow::Result<LoadedSide> {
    let files = files(Some(name), &args.hub)?;
    let checkpoint = checkpoint(&files, &TERMINAL)?;
    let quantize = quantized("--quantize-other", quantize, Some(&checkpoint), device, Spelling::Flags)?;
    let (model, formats) = if let Some(format) = quantize {
        (checkpoint.load_quantized(format)?, vec![format])
    } else {
        let model = checkpoint.load_model(DType::F32, device)?;
        (model, kept_formats(checkpoint.formats(), DType::F32, device, &TERMINAL))
    };
    let formats = formats.into_iter().map(BlockFormat::as_str).collect();
    let side = ComparedModel {
        name: checkpoint.name().to_string(),
        formats,
        adapters: vec![],
        kv: None,
        perplexity: f64::NAN,
    };
    Ok(LoadedSide { side, model, files })
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
        "{} tokens predicted, in windows of up to {} that do not overlap",
        report.tokens, report.window
    )?;
    Ok(())
}
