//! `gpt2 bench`: times random weights of GPT-2 small's shape, or `--model`.

use crate::model::args::ModelArgs;
use crate::output;
use crate::output::terminal::TERMINAL;
use crate::values::one_of;
use anyhow::bail;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use gpt2_engine::open::CACHES;
use gpt2_engine::studies::build::bench::{MachineLimits, Options, Report, TARGETS, Target, Work, bench};
use gpt2_engine::studies::learn::train::TRAIN_DTYPES;
use gpt2_engine::words::{self, count};
use gpt2_model::CacheDType;
use gpt2_train::TrainDType;
use gpt2_view::visible_text;
use std::io::Write;

/// Unlike other commands, this one needs no model.
const MODEL: &str = "Time this model, or what has its shape: a folder, a GGUF file, a model on the Hugging Face Hub, or demo, which is built in \
     [default: random weights of GPT-2 small's shape]";

/// The options of one target.
const TRAIN: &str = "Only for bench train";

#[derive(Debug, clap::Args)]
#[command(mut_arg("model", |arg| arg.help(MODEL)))]
#[command(after_help = "\
Examples:
  gpt2 bench core --tokens 1024   # attention alone
  gpt2 bench forward --last --model gpt2   # a pass of GPT-2 small
  gpt2 bench decode --tokens 900 --json   # a token after a long prompt
  gpt2 bench block --tokens 1024 --isa avx2   # without AVX-512
  gpt2 bench forward --tokens 1024 --summaries   # with summaries and without, in turn")]
pub(crate) struct BenchArgs {
    /// What to time
    #[arg(value_parser = targets())]
    pub(crate) what: BenchTarget,
    /// Rows of the batch
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) batch: u16,
    /// Tokens in a row (T). For decode and generate, the tokens of the prompt
    #[arg(short, long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tokens: u32,
    /// Timed runs. One more run before them is not timed
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,
    /// forward: compute the logits of the last position only
    #[arg(long)]
    pub(crate) last: bool,
    /// forward: also summarize the attention of all heads. Every second pass is timed without
    #[arg(long)]
    pub(crate) summaries: bool,
    /// forward: read every hook point. Every second pass is timed without
    #[arg(long)]
    pub(crate) hooks: bool,
    /// forward: also compute all attention weights of the first N heads. Every second pass is timed without
    #[arg(long, value_name = "N")]
    pub(crate) weights_heads: Option<u16>,
    /// Run each block again in the backward pass
    #[arg(long, help_heading = TRAIN)]
    pub(crate) recompute: bool,
    /// Round the factors of products with weights to bf16, as train --train-dtype does
    #[arg(long, value_name = "DTYPE", value_parser = one_of(TRAIN_DTYPES), default_value = "f32", help_heading = TRAIN)]
    pub(crate) train_dtype: TrainDType,
    /// Train a LoRA adapter of rank R on all linear layers of a frozen model
    #[arg(long, value_name = "R", help_heading = TRAIN, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) lora: Option<u16>,
    /// Hold the CPU kernels to an instruction set: portable, neon, avx2, avx-vnni, avx512 or amx [default: the
    /// environment variable GPT2_ISA, or the fastest]
    #[arg(long, value_name = "ISA", value_parser = str::parse::<candle_fused::Isa>)]
    pub(crate) isa: Option<candle_fused::Isa>,
    /// decode: precision of the cached keys and values [default: that of --dtype]
    #[arg(long, value_name = "DTYPE", value_parser = one_of(CACHES))]
    pub(crate) kv: Option<CacheDType>,
    /// decode and generate: tokens per run [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) new_tokens: Option<u32>,
    /// generate: with the step for a token as one CUDA graph, on CUDA
    #[arg(long)]
    pub(crate) cuda_graph: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// The parser of what to time: a target, or `None` for the machine.
fn targets() -> impl TypedValueParser<Value = BenchTarget> {
    let values = HELP.iter().map(|(name, help)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(values).map(|name| BenchTarget(words::one_of("what", &name, TARGETS).ok()))
}

/// The target, or `None` for the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BenchTarget(Option<Target>);

const HELP: [(&str, &str); 9] = [
    ("core", "Attention alone, on q, k and v as c_attn returns them"),
    ("block", "CausalSelfAttention, from c_attn to c_proj"),
    ("forward", "The whole model"),
    ("decode", "Greedy steps with the cache, after a prompt"),
    ("generate", "The same with tokens drawn, as gpt2 generate does"),
    ("train", "Forward, backward and AdamW"),
    ("attribution", "Attribution patching of all parts between two texts"),
    (
        "features",
        "A TopK autoencoder with 32 features for each number of the stream, of which 32 fire: the features, and what they rebuild",
    ),
    ("machine", "The most that processor and memory can do; no model"),
];

pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    if let Some(isa) = args.isa {
        isa.hold()?;
    }
    args.model.refuse_processed("bench")?;
    let Some(what) = args.what.0 else { return machine(args) };
    let options = args.options(what);
    let model = args.model.options();
    TERMINAL.works();
    let run = &args.model.run;
    let report = bench(&options, &model, run.device, run.tf32, &TERMINAL)?;
    output::report(args.json, &report, print)
}

impl BenchArgs {
    fn options(&self, what: Target) -> Options {
        Options {
            what,
            batch: self.batch.into(),
            tokens: self.tokens as usize,
            runs: self.runs as usize,
            last: self.last,
            summaries: self.summaries,
            hooks: self.hooks,
            weights_heads: self.weights_heads.map(usize::from),
            recompute: self.recompute,
            train_dtype: self.train_dtype,
            lora: self.lora.map(usize::from),
            kv: self.kv,
            new_tokens: self.new_tokens.map(|steps| steps as usize),
            cuda_graph: self.cuda_graph,
            seed: self.model.run.seed,
        }
    }
}

/// The machine's limits, to compare with the other targets' times.
fn machine(args: &BenchArgs) -> anyhow::Result<()> {
    if args.model.model.is_some() {
        bail!("bench machine needs no model: leave --model out");
    }
    if !args.model.run.open()?.is_cpu() {
        bail!("bench machine measures the CPU and its memory: give --device cpu");
    }
    TERMINAL.works();
    output::report(args.json, &MachineLimits::measure(), |limits| {
        let MachineLimits { threads, isa, fma_gflops, bf16_gflops, read_gb_s } = limits;
        let mut out = output::stdout();
        writeln!(out, "{threads} threads, {isa}")?;
        writeln!(out, "f32 multiply-adds in registers: {fma_gflops:.0} GFLOP/s")?;
        if let Some(bf16_gflops) = bf16_gflops {
            writeln!(out, "bf16 products in registers: {bf16_gflops:.0} GFLOP/s")?;
        }
        writeln!(out, "reading from memory: {read_gb_s:.1} GB/s")?;
        Ok(())
    })
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}: {}", visible_text(&report.model), report.shape)?;
    let Report { what, implementation, batch, tokens, dtype, device, threads, runs, .. } = report;
    let groups = report.groups.map(|groups| format!("{groups} groups of together ")).unwrap_or_default();
    let isa = report.isa.map(|isa| format!(", {isa}")).unwrap_or_default();
    let tf32 = if report.tf32 { " with products in tf32" } else { "" };
    let kv = report.kv.map(|kv| format!(", cache in {kv}")).unwrap_or_default();
    let graph = if report.cuda_graph { ", as a CUDA graph" } else { "" };
    let weights =
        report.quantized.as_ref().map(|formats| format!(", weights in {formats}")).unwrap_or_default();
    writeln!(
        out,
        "{what}, {implementation}, batch {batch}, {tokens} tokens, {dtype}{tf32}, {device}, {threads} threads{isa}{weights}{kv}{graph}"
    )?;
    writeln!(
        out,
        "median {:.3} ms, fastest {:.3} ms, of {groups}{}",
        report.median_ms,
        report.min_ms,
        count(*runs, "run")
    )?;
    if let (Some(plain), Some(ratio)) = (report.plain_median_ms, report.ratio_to_plain) {
        writeln!(
            out,
            "without them: median {plain:.3} ms; ratio {ratio:.3}, the median of {}",
            count(*runs, "pair")
        )?;
    }
    if let (Some(ms), Some(speed)) = (report.ms_per_token, report.tokens_per_s) {
        writeln!(out, "{ms:.3} ms per token, {speed:.1} tokens/s")?;
    }
    if let Some(Work { giga_per_s, unit, peak, of_peak, least_peak }) = &report.work {
        let percent = 100.0 * of_peak;
        writeln!(
            out,
            "{giga_per_s:.1} {unit}, {percent:.0} % of the {peak:.1} that the machine does at best"
        )?;
        if *of_peak > 1.0 && *unit == "GB/s" {
            writeln!(
                out,
                "note: faster than reading memory: part of it probably stayed in the processor's caches"
            )?;
        }
        if *least_peak < 0.9 * peak {
            writeln!(
                out,
                "note: the machine's speed moved meanwhile, between {least_peak:.1} and {peak:.1} {unit}"
            )?;
        }
    }
    Ok(())
}
