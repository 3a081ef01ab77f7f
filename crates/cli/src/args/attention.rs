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
#[command(group = clap::ArgGroup::new("page").args(["html", "open", "fragment"]).multiple(true))]
#[command(group = clap::ArgGroup::new("effects").args(["effect", "with"]).multiple(true))]
#[command(group = clap::ArgGroup::new("files").args(["export", "picture", "html"]).multiple(true))]
#[command(after_help = "\
Examples:
  gpt2 attention \"O Romeo, Romeo\"
  gpt2 attention --layer 0-1 --head 2 \"O Romeo, Romeo\"
  gpt2 attention --open \"O Romeo, Romeo\"                       every head in the browser
  gpt2 attention --open --compare --ablate 0.3 --with effect,lens \"O Romeo, Romeo\"
  gpt2 attention --effect \"The capital of France is\" --target \" Paris\" --model gpt2
  gpt2 attention --picture heads.svg --export weights.npy --file prompt.txt")]
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
    /// Draw the chosen head (one layer and one head) in full, or all chosen ones side by side: .png, .svg or .pdf
    #[arg(long, value_name = "FILE", visible_alias = "png")]
    pub(crate) picture: Option<PathBuf>,
    /// Write a page for a browser, one file that needs no network, with the chosen layers and heads or with all
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Open that page in the browser; without --html, the page is a temporary file
    #[arg(long)]
    pub(crate) open: bool,
    /// Print the page as an HTML fragment for a notebook, PIXELS high [default: 720]: see docs/notebooks.md
    #[arg(long, value_name = "PIXELS", num_args = 0..=1, require_equals = true, default_missing_value = "720",
          conflicts_with_all = ["json", "rollout", "effect"], value_parser = clap::value_parser!(u32).range(200..=10_000))]
    pub(crate) fragment: Option<u32>,
    /// Let --export, --provenance, --picture and --html replace existing files
    #[arg(long, requires = "files")]
    pub(crate) overwrite: bool,
    /// Keep only the K largest weights of each row in the page, for very long prompts
    #[arg(long, value_name = "K", requires = "page", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) top: Option<u16>,
    /// What else the page shows: what ablating each head does and what it adds to a logit directly (effect); previous-token,
    /// induction and copying scores of the plain model (scores); rollout after each block (rollout); predictions after each block (lens); the
    /// products of queries and keys (neurons, of a few heads)
    #[arg(long, value_name = "WHAT", value_enum, value_delimiter = ',', requires = "page")]
    pub(crate) with: Vec<WithArg>,
    /// Put the plain run beside the one with interventions in the page, and their difference
    #[arg(long, requires = "page")]
    pub(crate) compare: bool,
    /// Show attention rollout: how much of each token reaches each position through all layers, including the
    /// residual stream
    #[arg(long, conflicts_with_all = ["layer", "head", "export", "picture", "html", "open", "top"])]
    pub(crate) rollout: bool,
    /// Show what ablating each head, to zero or to its mean, does to the prediction of --target after the prompt, and what each
    /// part of the model adds to its logit directly; on top of the interventions
    #[arg(long, value_name = "HOW", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "zero",
          conflicts_with_all = ["layer", "head", "export", "picture", "html", "open", "top", "rollout"])]
    pub(crate) effect: Option<EffectArg>,
    /// The target token of effects, including its leading space [default: the most probable next token]
    #[arg(long, value_name = "TOKEN", requires = "effects")]
    pub(crate) target: Option<String>,
    /// For effects, measure the logit of --target less that of this token, instead of the log-probability of --target
    #[arg(long, value_name = "TOKEN", requires_all = ["effects", "target"])]
    pub(crate) against: Option<String>,
    /// For effects, shares of the logit itself instead of the logit less the mean of all (as in TransformerLens)
    #[arg(long, requires = "effects")]
    pub(crate) raw: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// When to use colors
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WithArg {
    Effect,
    Scores,
    Rollout,
    Lens,
    Neurons,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A text is the model's first token, then random tokens that come several times (Olsson et al.: 25 tokens four times). The
scores are mean weights, with standard errors between the texts: on the token before; on all earlier copies of the token;
and on the tokens after those copies, which is what comes next. Copying is a property of the weights, from -1 to 1: whether the
head raises the logits of the tokens that it attends to.

Examples:
  gpt2 heads
  gpt2 heads --model gpt2 --batch 20 --json
  gpt2 heads --ablate 0.3                     which heads still find the repetition without head 3 of layer 0")]
pub(crate) struct HeadsArgs {
    /// Random tokens that are repeated
    #[arg(long, default_value_t = 25, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) length: u16,
    /// How often they come
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(2..))]
    pub(crate) repeats: u16,
    /// Texts
    #[arg(short, long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) batch: u16,
    /// Begin with the first random token instead of the model's first token (<|endoftext|> in GPT-2)
    #[arg(long)]
    pub(crate) no_bos: bool,
    #[command(flatten)]
    pub(crate) interventions: InterventionArgs,
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
    pub(crate) interventions: InterventionArgs,
    #[command(flatten)]
    pub(crate) finite: FiniteArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}
