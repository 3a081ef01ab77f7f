//! The command line's options. Other modules build the real objects from them.
// These comments are the help text, which would print backticks and backslashes.
#![allow(clippy::doc_markdown, rustdoc::broken_intra_doc_links)]

mod adapter;
mod attention;
mod choices;
mod circuits;
mod device;
mod finite;
mod hub;
mod interventions;
mod merge;
mod model;
mod parallel;
mod prompt;
mod quantize;
mod score;
mod shell;
mod train;

pub(crate) use adapter::AdapterArg;
pub(crate) use attention::{AttentionArgs, EffectArg, HeadsArgs, LensArgs, WithArg};
pub(crate) use choices::{BenchTarget, ColorArg, DTypeArg, KvArg};
pub(crate) use circuits::{CircuitsArgs, CompositionArg, PatchArgs};
pub(crate) use device::DeviceArg;
pub(crate) use finite::FiniteArgs;
pub(crate) use hub::{DownloadArgs, HubArgs, ModelsArgs, VerifyCacheArgs};
pub(crate) use interventions::{At, InterventionArgs, Steer};
pub(crate) use merge::MergeArgs;
pub(crate) use model::{ModelArgs, RunArgs};
pub(crate) use parallel::{ParallelArg, ParallelArgs};
pub(crate) use prompt::PromptArgs;
pub(crate) use quantize::{CompareArgs, QuantizeArgs};
pub(crate) use score::{ByArg, ScoreArgs};
pub(crate) use shell::{CompletionsArgs, ManArgs};
pub(crate) use train::TrainArgs;

use crate::values::{IndexRange, above_0, at_least_0, part};
use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Runs GPT-2 and shows its attention, on CPU, CUDA or Metal.
#[derive(Debug, Parser)]
#[command(
    name = "gpt2",
    version,
    propagate_version = true,
    after_help = "\
Examples:
  gpt2 attention \"O Romeo, Romeo\"                      what the heads do
  gpt2 attention \"O Romeo, Romeo\" --layer 1 --head 2   one head, token by token
  gpt2 forward --model gpt2 \"The capital of France\"    GPT-2 small from the Hugging Face Hub
  echo \"To be, or\" | gpt2 generate --greedy            continue text from a pipe

Start here: gpt2 attention \"O Romeo, Romeo! wherefore art thou Romeo?\""
)]
pub(crate) struct Args {
    /// Print only results and errors: no notes, no progress
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what each token attends to
    Attention(AttentionArgs),
    /// Score each head on repeated random tokens: previous-token, duplicate-token and induction heads
    Heads(HeadsArgs),
    /// Show what the model would predict after each block (the logit lens)
    Lens(LensArgs),
    /// Find the parts that carry what two prompts differ in (activation and attribution patching)
    Patch(PatchArgs),
    /// Show what the weights of heads do by token, and how heads feed one another
    Circuits(CircuitsArgs),
    /// Show the next token's probabilities and how surprising each token of the prompt is
    Forward(ForwardArgs),
    /// Continue a text
    Generate(GenerateArgs),
    /// List a checkpoint's config and tensors and audit them, without reading or fetching the weights
    Inspect(InspectArgs),
    /// Fetch a model from the Hugging Face Hub and verify it
    Download(DownloadArgs),
    /// List the models that have a short name, and the models in the cache
    Models(ModelsArgs),
    /// Hash the cached files of a model again
    VerifyCache(VerifyCacheArgs),
    /// Write a model as a GGUF file, in f16 or quantized
    Quantize(QuantizeArgs),
    /// Show what quantizing costs: how two models predict a text
    Compare(CompareArgs),
    /// Measure how well a model predicts each document of a corpus
    Score(ScoreArgs),
    /// Train a new GPT-2 on a text file, or fine-tune an existing one
    Train(TrainArgs),
    /// Add LoRA adapters to a model's weights
    Merge(MergeArgs),
    /// Time attention, a block, the whole model, decoding or a training step, and measure the machine
    Bench(BenchArgs),
    /// Check how this build computes attention and logits on this device against plain operations in f64
    Verify(VerifyArgs),
    /// Print a script that completes gpt2's options in a shell
    Completions(CompletionsArgs),
    /// Print gpt2's manual page
    Man(ManArgs),
}

impl Command {
    /// The name to type.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Attention(_) => "attention",
            Self::Heads(_) => "heads",
            Self::Lens(_) => "lens",
            Self::Patch(_) => "patch",
            Self::Circuits(_) => "circuits",
            Self::Forward(_) => "forward",
            Self::Generate(_) => "generate",
            Self::Inspect(_) => "inspect",
            Self::Download(_) => "download",
            Self::Models(_) => "models",
            Self::VerifyCache(_) => "verify-cache",
            Self::Quantize(_) => "quantize",
            Self::Compare(_) => "compare",
            Self::Score(_) => "score",
            Self::Train(_) => "train",
            Self::Merge(_) => "merge",
            Self::Bench(_) => "bench",
            Self::Verify(_) => "verify",
            Self::Completions(_) => "completions",
            Self::Man(_) => "man",
        }
    }

    /// `--parallel`
    pub(crate) fn parallel(&self) -> Option<&ParallelArgs> {
        match self {
            Self::Score(args) => Some(&args.parallel),
            Self::Train(args) => Some(&args.parallel),
            _ => None,
        }
    }

    /// `--threads`
    pub(crate) fn threads(&self) -> Option<u16> {
        match self {
            Self::Attention(args) => args.model.run.threads,
            Self::Heads(args) => args.model.run.threads,
            Self::Lens(args) => args.model.run.threads,
            Self::Patch(args) => args.model.run.threads,
            Self::Circuits(args) => args.model.run.threads,
            Self::Forward(args) => args.model.run.threads,
            Self::Generate(args) => args.model.run.threads,
            Self::Inspect(args) => args.model.run.threads,
            Self::Quantize(args) => args.threads,
            Self::Compare(args) => args.run.threads,
            Self::Score(args) => args.model.run.threads,
            Self::Train(args) => args.run.threads,
            Self::Merge(args) => args.threads,
            Self::Bench(args) => args.model.run.threads,
            Self::Verify(args) => args.run.threads,
            Self::Download(_)
            | Self::Models(_)
            | Self::VerifyCache(_)
            | Self::Completions(_)
            | Self::Man(_) => None,
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gpt2 forward \"To be, or not to\"
  gpt2 forward --model gpt2 --json --ids 15496,11,314
  gpt2 forward --ablate 1.2,1.3 --block 5:2 \"To be, or not to\"   ablate two heads; hide token 2 from token 5")]
pub(crate) struct ForwardArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    /// How many next tokens to show
    #[arg(short = 'k', long, default_value_t = 10, value_name = "K")]
    pub(crate) top_k: usize,
    /// Write logits and hidden states to a safetensors file
    #[arg(long, value_name = "FILE")]
    pub(crate) export: Option<PathBuf>,
    /// Let --export replace an existing file
    #[arg(long, requires = "export")]
    pub(crate) overwrite: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) interventions: InterventionArgs,
    #[command(flatten)]
    pub(crate) finite: FiniteArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("pages").args(["html", "open"]).multiple(true))]
#[command(group = clap::ArgGroup::new("written").args(["export", "html"]).multiple(true))]
#[command(group = clap::ArgGroup::new("weights").args(["export", "html", "open"]).multiple(true))]
#[command(after_help = "\
Examples:
  gpt2 generate \"ROMEO:\" --max-new-tokens 200
  gpt2 generate \"ROMEO:\" --open                         what each new token attended to, step by step, in the browser
  gpt2 generate --greedy --model gpt2 \"The answer is\"
  gpt2 generate --ids 15496,11 --model gpt2             prints ids")]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    /// Tokens to generate [default: 100, or fewer if the context has less room]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) max_new_tokens: Option<usize>,
    /// Below 1 prefers probable tokens, above 1 flattens the distribution; 0 is greedy
    #[arg(short, long, default_value_t = 1.0, value_parser = at_least_0, allow_negative_numbers = true)]
    pub(crate) temperature: f64,
    /// Draw from the k most probable tokens; 0 is all
    #[arg(short = 'k', long, default_value_t = 40, value_name = "K")]
    pub(crate) top_k: usize,
    /// Draw from the fewest tokens whose probabilities sum to P
    #[arg(short = 'p', long, value_name = "P", value_parser = part, allow_negative_numbers = true)]
    pub(crate) top_p: Option<f64>,
    /// Above 1, tokens that already occur in the text become less probable
    #[arg(long, default_value_t = 1.0, value_name = "R", value_parser = above_0, allow_negative_numbers = true)]
    pub(crate) repetition_penalty: f64,
    /// Always take the most probable token
    #[arg(short, long, conflicts_with_all = ["temperature", "top_k", "top_p"])]
    pub(crate) greedy: bool,
    /// Precision of the cached keys and values: f16 reads half as much of them as f32 [default: that of --dtype]
    #[arg(long, value_enum, value_name = "DTYPE")]
    pub(crate) kv: Option<KvArg>,
    /// Write the attention weights of the prompt and of each new token, one row a step, as computed from the cache:
    /// .safetensors, .npy, .jsonl or .json
    #[arg(long, value_name = "FILE")]
    pub(crate) export: Option<PathBuf>,
    /// Write a page for a browser with a slider over the steps, one file that needs no network
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Open that page in the browser; without --html, the page is a temporary file
    #[arg(long)]
    pub(crate) open: bool,
    /// Layers of --export, --html and --open: a number or a range such as 0-3 (repeatable) [default: all]
    #[arg(short, long, value_name = "L", value_delimiter = ',', requires = "weights")]
    pub(crate) layer: Vec<IndexRange>,
    /// Heads of --export, --html and --open (repeatable) [default: all]
    #[arg(short = 'H', long, value_name = "H", value_delimiter = ',', requires = "weights")]
    pub(crate) head: Vec<IndexRange>,
    /// Keep only the K largest weights of each row in the page
    #[arg(long, value_name = "K", requires = "pages", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) top: Option<u16>,
    /// Let --export and --html replace existing files
    #[arg(long, requires = "written")]
    pub(crate) overwrite: bool,
    /// Print one JSON object at the end instead of streaming
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) interventions: InterventionArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gpt2 inspect
  gpt2 inspect ./gpt2 --json
  gpt2 inspect gpt2-xl       a model on the Hub: reads a few kilobytes of its 6 GB
  gpt2 inspect ./poems       a LoRA adapter: what it changes, and by how much
  gpt2 inspect --adapter ./poems --model gpt2       the same beside the weights that it changes")]
pub(crate) struct InspectArgs {
    /// The folder or name of a model, instead of --model, or the folder of an adapter
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub(crate) name: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gpt2 bench core --tokens 1024
  gpt2 bench decode --tokens 900 --json
  gpt2 bench block --tokens 1024 --isa avx2
  gpt2 bench forward --last --model gpt2
  gpt2 bench forward --tokens 1024 --summaries       with and without, alternately")]
pub(crate) struct BenchArgs {
    /// What to time
    #[arg(value_enum)]
    pub(crate) what: BenchTarget,
    /// Rows
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) batch: u16,
    /// T; for decode, the tokens of the prompt
    #[arg(short, long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tokens: u32,
    /// Timed runs, after an untimed one
    #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,
    /// forward: logits of the last position only
    #[arg(long)]
    pub(crate) last: bool,
    /// forward: compute summaries of the attention of all heads; alternates with timed passes that do not
    #[arg(long)]
    pub(crate) summaries: bool,
    /// forward: read every hook point; alternates with timed passes that do not
    #[arg(long)]
    pub(crate) hooks: bool,
    /// forward: compute all attention weights of the first N heads; alternates with timed passes that do not
    #[arg(long, value_name = "N")]
    pub(crate) weights_heads: Option<u16>,
    /// train: run each block again in the backward pass
    #[arg(long)]
    pub(crate) recompute: bool,
    /// train: train a LoRA adapter of rank R on all linear layers of a frozen model
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) lora: Option<u16>,
    /// Hold the CPU kernels to an instruction set: portable, neon, avx2, avx-vnni, avx512 or amx [default: the environment variable
    /// GPT2_ISA, or the fastest]
    #[arg(long, value_name = "ISA", value_parser = str::parse::<candle_fused::Isa>)]
    pub(crate) isa: Option<candle_fused::Isa>,
    /// decode: precision of the cached keys and values [default: that of --dtype]
    #[arg(long, value_enum, value_name = "DTYPE")]
    pub(crate) kv: Option<KvArg>,
    /// decode: greedy steps per run
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) new_tokens: u32,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The exit code is 1 if any path exceeds its tolerance.

Examples:
  gpt2 verify
  gpt2 verify --model gpt2 --device cuda --json")]
pub(crate) struct VerifyArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Folder with config.json and weights, a GGUF file, or a model on the Hugging Face Hub [default: the
    /// built-in demo model]
    #[arg(short, long, value_name = "DIR|FILE|NAME", help_heading = "Model and device")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}
