//! Options of the commands that look at attention: `attention`, `heads` and `lens`.
// These comments are the help text, which would print backticks and backslashes.
#![allow(clippy::doc_markdown, rustdoc::broken_intra_doc_links)]

use super::choices::ColorArg;
use super::finite::FiniteArgs;
use super::interventions::InterventionArgs;
use super::model::ModelArgs;
use super::prompt::PromptArgs;
use crate::values::IndexRange;
use clap::ValueEnum;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("page").args(["html", "open"]).multiple(true))]
#[command(group = clap::ArgGroup::new("files").args(["export", "png", "html"]).multiple(true))]
#[command(after_help = "\
Examples:
  gpt2 attention \"O Romeo, Romeo\"
  gpt2 attention --layer 0-1 --head 2 \"O Romeo, Romeo\"
  gpt2 attention --open \"O Romeo, Romeo\"                       every head in the browser
  gpt2 attention --effect \"The capital of France is\" --target \" Paris\" --model gpt2
  gpt2 attention --png heads.png --export weights.npy --file prompt.txt")]
pub(crate) struct AttentionArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    /// Layers to show token by token: a number or a range such as 0-3 (repeatable, counted from 0)
    #[arg(short, long, value_name = "L", value_delimiter = ',')]
    pub(crate) layer: Vec<IndexRange>,
    /// Heads to show token by token: a number or a range such as 0-3 (repeatable, counted from 0)
    #[arg(short = 'H', long, value_name = "H", value_delimiter = ',')]
    pub(crate) head: Vec<IndexRange>,
    /// Write the weights of the chosen layers and heads, or of all. The extension selects the format:
    /// .safetensors (with the attention blocks' outputs), .npy, .jsonl (one line per query), or .json (square
    /// matrices, for BertViz and CircuitsVis)
    #[arg(long, value_name = "FILE")]
    pub(crate) export: Option<PathBuf>,
    /// With an .npy export, also write FILE.npy.json, which records the model, prompt and interventions. The other
    /// formats contain this themselves
    #[arg(long, requires = "export")]
    pub(crate) provenance: bool,
    /// Draw the chosen head, or all chosen ones side by side, as a PNG
    #[arg(long, value_name = "FILE")]
    pub(crate) png: Option<PathBuf>,
    /// Write a page for a browser, one file that needs no network, with the chosen layers and heads or with all
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Open that page in the browser; without --html, the page is a temporary file
    #[arg(long)]
    pub(crate) open: bool,
    /// Let --export, --provenance, --png and --html replace files that gpt2 did not write
    #[arg(long, requires = "files")]
    pub(crate) overwrite: bool,
    /// Keep only the K largest weights of each row in the page, for very long prompts
    #[arg(long, value_name = "K", requires = "page", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) top: Option<u16>,
    /// Show attention rollout: how much of each token reaches each position through all layers, including the
    /// residual stream
    #[arg(long, conflicts_with_all = ["layer", "head", "export", "png", "html", "open", "top"])]
    pub(crate) rollout: bool,
    /// Show what ablating each head, to zero or to its mean, does to the log-probability of --target after the prompt
    #[arg(long, value_name = "HOW", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "zero",
          conflicts_with_all = ["layer", "head", "export", "png", "html", "open", "top", "rollout", "InterventionArgs"])]
    pub(crate) effect: Option<EffectArg>,
    /// The target token of --effect, including its leading space [default: the most probable next token]
    #[arg(long, value_name = "TOKEN", requires = "effect")]
    pub(crate) target: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// When to use colours
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) color: ColorArg,
    #[command(flatten)]
    pub(crate) interventions: InterventionArgs,
    #[command(flatten)]
    pub(crate) finite: FiniteArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EffectArg {
    Zero,
    Mean,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The scores are mean weights: on the token before; on the first occurrence of a token that repeats; and on the token
behind that, which is what repeats next.

Examples:
  gpt2 heads
  gpt2 heads --model gpt2 --length 100 --batch 8 --json")]
pub(crate) struct HeadsArgs {
    /// Random tokens per row; each row is repeated once
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) length: u16,
    /// Rows
    #[arg(short, long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) batch: u16,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) finite: FiniteArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gpt2 lens \"To be, or not to\"
  gpt2 lens --model gpt2 --position 3 \"The capital of France is\"")]
pub(crate) struct LensArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    /// The position whose next token is predicted, counted from 0 [default: the last]
    #[arg(long, value_name = "I")]
    pub(crate) position: Option<usize>,
    /// How many tokens to show for each layer
    #[arg(short = 'k', long, default_value_t = 3, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) top_k: u16,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) finite: FiniteArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}
