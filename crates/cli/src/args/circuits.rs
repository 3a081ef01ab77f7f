//! Options of the commands that look for circuits: `patch` and `circuits`.
// These comments are the help text, which would print backticks and backslashes.
#![allow(clippy::doc_markdown, rustdoc::broken_intra_doc_links)]

use super::finite::FiniteArgs;
use super::interventions::InterventionArgs;
use super::model::ModelArgs;
use clap::ValueEnum;
use gpt2_model::hooks::Head;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Both prompts need the same number of tokens. A number is how much of the way from the corrupted prompt's logit difference
(0) to the clean one's (1) a part brings the corrupted run when it is replaced by the clean run's. Exact numbers take a run for
each part, estimates (attribution patching) one forward and one backward pass for all.

Examples:
  gpt2 patch \"O Romeo, Romeo\" \"O Romeo, Juliet\" --answer \",\" --against \".\"
  gpt2 patch --model gpt2 \"When Mary and John went to the store, John gave a drink to\" \\
             \"When Mary and John went to the store, Mary gave a drink to\" --answer \" Mary\" --against \" John\"
  gpt2 patch CLEAN CORRUPT --answer A --against B --by-position --picture patch.svg --json")]
pub(crate) struct PatchArgs {
    /// The prompt that the model gets right
    #[arg(value_name = "CLEAN")]
    pub(crate) clean: String,
    /// The prompt that differs in what matters
    #[arg(value_name = "CORRUPT")]
    pub(crate) corrupt: String,
    /// The token that should follow the clean prompt, including its leading space
    #[arg(long, value_name = "TOKEN")]
    pub(crate) answer: String,
    /// The token that should follow the corrupted prompt
    #[arg(long, value_name = "TOKEN")]
    pub(crate) against: String,
    /// Also patch each head at each position: a run for each
    #[arg(long)]
    pub(crate) by_position: bool,
    /// Also estimate the edges between heads, with gradients in the corrupted run, or their mean over STEPS runs between the
    /// prompts (integrated gradients); for small models and short prompts
    #[arg(long, value_name = "STEPS", num_args = 0..=1, require_equals = true, default_missing_value = "0",
          value_parser = clap::value_parser!(u16).range(0..=100))]
    pub(crate) edges: Option<u16>,
    /// Draw the heads, or with --by-position each head at each position: .png, .svg or .pdf
    #[arg(long, value_name = "FILE")]
    pub(crate) picture: Option<PathBuf>,
    /// Let --picture replace an existing file
    #[arg(long, requires = "picture")]
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
#[command(after_help = "\
Weights alone, without a text: layer norms are folded in and everything is centered, as in TransformerLens. QK says which
token looks for which, OV which tokens become likelier when a token is attended to.

Examples:
  gpt2 circuits                           copying scores and the strongest compositions between heads
  gpt2 circuits 1.2                       one head: its largest entries by token, eigenvalues, singular vectors
  gpt2 circuits 1.2 --token \" Romeo\"      what the head does with one token
  gpt2 circuits 5.1 --model gpt2 --json")]
pub(crate) struct CircuitsArgs {
    /// A head, LAYER.HEAD counted from 0 [default: all heads, and how they feed one another]
    #[arg(value_name = "L.H", value_parser = str::parse::<Head>)]
    pub(crate) head: Option<Head>,
    /// Tokens whose rows to show, including their leading space, instead of the largest entries (repeatable)
    #[arg(long, value_name = "TOKEN", requires = "head")]
    pub(crate) token: Vec<String>,
    /// Which compositions to rank: of queries, keys or values, or all
    #[arg(long, value_enum, value_name = "KIND", conflicts_with = "head")]
    pub(crate) composition: Vec<CompositionArg>,
    /// How many entries to show
    #[arg(short = 'k', long, default_value_t = 10, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) top: u16,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompositionArg {
    Q,
    K,
    V,
}
