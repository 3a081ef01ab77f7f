//! The options of `gpt2 attention`.

use crate::output::ColorArg;
use crate::prompt::PromptArgs;
use crate::study::StudyArgs;
use crate::values::{IndexRange, one_of};
use clap::ValueEnum;
use gpt2_model::analysis::Ablation;
use gpt2_view::PictureFormat;
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
    /// Layers to show token by token, such as 1 or 0-3, counted from 0 (repeatable)
    #[arg(short, long, value_name = "L", value_delimiter = ',')]
    pub(crate) layer: Vec<IndexRange>,
    /// Heads to show token by token (repeatable)
    #[arg(short = 'H', long, value_name = "H", value_delimiter = ',')]
    pub(crate) head: Vec<IndexRange>,
    /// Write the chosen weights, or all: .safetensors (with the attention blocks' outputs), .npy, .jsonl (a line per
    /// query) or .json (square matrices, for BertViz and CircuitsVis)
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(crate) export: Option<PathBuf>,
    /// Beside an .npy export, write FILE.npy.json: what made it (other formats contain it)
    #[arg(long, requires = "export", help_heading = "Files")]
    pub(crate) provenance: bool,
    #[arg(long, value_name = "FILE", visible_alias = "png", help_heading = "Files",
          help = format!("Draw the chosen head in full, or several side by side: {}", PictureFormat::names()))]
    pub(crate) picture: Option<PathBuf>,
    /// Write a page for a browser, one file that needs no network, with the chosen heads or all
    #[arg(long, value_name = "FILE", help_heading = "Page for a browser")]
    pub(crate) html: Option<PathBuf>,
    /// Open that page in the browser; without --html, the page is a temporary file
    #[arg(long, help_heading = "Page for a browser")]
    pub(crate) open: bool,
    /// Print the page as an HTML fragment for a notebook, PIXELS high [default: 720]
    #[arg(long, value_name = "PIXELS", num_args = 0..=1, require_equals = true, default_missing_value = "720",
          conflicts_with_all = ["json", "rollout", "effect"], value_parser = clap::value_parser!(u32).range(200..=10_000), help_heading = "Page for a browser")]
    pub(crate) fragment: Option<u32>,
    /// Let --export, --provenance, --picture and --html replace existing files
    #[arg(long, requires = "files", help_heading = "Files")]
    pub(crate) overwrite: bool,
    /// Keep only the K largest weights of each row, for very long prompts
    #[arg(long, value_name = "K", requires = "page", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Page for a browser")]
    pub(crate) top: Option<u16>,
    /// What else the page shows: as --effect (effect), as gpt2 heads (scores), rollout after each block (rollout),
    /// predictions after each block (lens), products of queries and keys of a few heads (neurons)
    #[arg(
        long,
        value_name = "WHAT",
        value_enum,
        value_delimiter = ',',
        requires = "page",
        help_heading = "Page for a browser"
    )]
    pub(crate) with: Vec<WithArg>,
    /// Put the plain run beside the one with interventions, and their difference
    #[arg(long, requires = "page", help_heading = "Page for a browser")]
    pub(crate) compare: bool,
    /// Show attention rollout: how much of each token reaches each position through all layers and the residual stream
    #[arg(long, conflicts_with_all = ["layer", "head", "export", "picture", "html", "open", "top"])]
    pub(crate) rollout: bool,
    /// Show what ablating each head, to zero or to its mean, does to the prediction of --target, and what each part of
    /// the model adds to its logit directly; on top of the interventions
    #[arg(long, value_name = "HOW", value_parser = one_of(ABLATIONS), num_args = 0..=1, require_equals = true, default_missing_value = "zero",
          conflicts_with_all = ["layer", "head", "export", "picture", "html", "open", "top", "rollout"], help_heading = "Effects of heads")]
    pub(crate) effect: Option<Ablation>,
    /// The target token, including its leading space [default: the most probable next token]
    #[arg(long, value_name = "TOKEN", requires = "effects", help_heading = "Effects of heads")]
    pub(crate) target: Option<String>,
    /// Measure the logit of --target minus this token's, instead of the log-probability of --target
    #[arg(long, value_name = "TOKEN", requires_all = ["effects", "target"], help_heading = "Effects of heads")]
    pub(crate) against: Option<String>,
    /// Show shares of the logit itself, not of the logit minus the mean of all (as in TransformerLens)
    #[arg(long, requires = "effects", help_heading = "Effects of heads")]
    pub(crate) raw: bool,
    /// When to use colors; auto: on a terminal
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) color: ColorArg,
    #[command(flatten)]
    pub(crate) study: StudyArgs,
}

const ABLATIONS: &[(&str, Ablation)] = &[("zero", Ablation::Zero), ("mean", Ablation::Mean)];

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WithArg {
    Effect,
    Scores,
    Rollout,
    Lens,
    Neurons,
}
