//! The options of `gpt2 attention`.

use crate::output::ColorArg;
use crate::results::exports::PointArgs;
use crate::results::live_page::LiveArg;
use crate::results::picture::PictureArgs;
use crate::study::args::StudyArgs;
use crate::study::over_texts::PromptsArgs;
use crate::values::{HeadRange, IndexRange, one_of};
use gpt2_engine::studies::interpret::attention::{ABLATIONS, PAGE_PARTS, PagePart};
use gpt2_model::analysis::Ablation;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("page").args(["html", "open", "fragment"]).multiple(true))]
#[command(group = clap::ArgGroup::new("effects").args(["effect", "with"]).multiple(true))]
// A group, because clap forgets a required argument that conflicts with a given one.
#[command(group = clap::ArgGroup::new("exports").arg("export"))]
#[command(group = clap::ArgGroup::new("files").args(["export", "picture", "html"]).multiple(true))]
#[command(mut_arg("export_point", |arg| arg.help_heading("Files")))]
#[command(mut_arg("live", |arg| arg.conflicts_with_all([
    "layer", "head", "export", "picture", "json", "top", "with", "rollout", "effect", "texts",
])))]
#[command(mut_arg("texts", |arg| arg.conflicts_with_all(["page", "picture", "provenance", "rollout", "effects"])))]
#[command(after_help = "\
Examples:
  gpt2 attention \"O Romeo, Romeo\"   # what the heads do
  gpt2 attention \"O Romeo, Romeo\" --layer 0-1 --head 2   # chosen heads, token by token
  gpt2 attention \"O Romeo, Romeo\" --open   # every head in the browser
  gpt2 attention \"O Romeo, Romeo\" --live --html live.html   # a page that follows what you type
  gpt2 attention \"O Romeo, Romeo\" --ablate 0.3   # the same without head 3 of layer 0
  gpt2 attention \"O Romeo, Romeo\" --open --compare --ablate 0.3 --with effect,lens   # both, and the difference
  gpt2 attention \"The capital of France is\" --effect --target \" Paris\" --model gpt2   # which heads matter
  gpt2 attention --file prompt.txt --picture heads.svg --export weights.npy   # into files")]
pub(crate) struct AttentionArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptsArgs,
    /// Layers to show token by token, counted from 0: 1, 0-3 or 0,2 (repeatable)
    #[arg(short, long, value_name = "L", value_delimiter = ',')]
    pub(crate) layer: Vec<IndexRange>,
    /// Heads to show token by token, counted from 0 (repeatable). 3.0 is head 0 of layer 3
    #[arg(short = 'H', long, value_name = "H", value_delimiter = ',')]
    pub(crate) head: Vec<HeadRange>,
    /// Write the weights of the chosen heads, or of all: .safetensors, .npy, .jsonl or .json. .safetensors also has
    /// the attention blocks' outputs. .jsonl has a line for each query. .json has square matrices, for BertViz and
    /// CircuitsVis
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(crate) export: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) points: PointArgs,
    /// Write FILE.npy.json beside an .npy export: what made it. Other formats contain that
    #[arg(long, requires = "exports", help_heading = "Files")]
    pub(crate) provenance: bool,
    #[command(flatten)]
    pub(crate) picture: PictureArgs,
    /// Write a page for a browser, with the chosen heads or all. It is one file and needs no network
    #[arg(long, value_name = "FILE", help_heading = "Page for a browser")]
    pub(crate) html: Option<PathBuf>,
    /// Open that page in the browser. Without --html, it is a temporary file
    #[arg(long, help_heading = "Page for a browser")]
    pub(crate) open: bool,
    /// Print the page as an HTML fragment for a notebook, PIXELS high [default: 720]
    #[arg(long, value_name = "PIXELS", num_args = 0..=1, require_equals = true, default_missing_value = "720",
          conflicts_with_all = ["json", "rollout", "effect"], value_parser = clap::value_parser!(u32).range(200..=10_000), help_heading = "Page for a browser")]
    pub(crate) fragment: Option<u32>,
    /// Let --export, --provenance, --picture and --html replace existing files
    #[arg(long, requires = "files", help_heading = "Files")]
    pub(crate) overwrite: bool,
    /// Keep only the K largest weights of each row of the page, for very long prompts
    #[arg(long, value_name = "K", requires = "page", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Page for a browser")]
    pub(crate) top: Option<u16>,
    #[command(flatten)]
    pub(crate) live: LiveArg,
    /// What else the page shows: effect (what --effect shows), scores (what gpt2 heads shows), rollout and lens
    /// (rollout and predictions after each block), features (those of --dictionary that fire at each token), neurons
    /// (products of queries and keys, of a few heads)
    #[arg(
        long,
        value_name = "WHAT",
        value_parser = one_of(PAGE_PARTS),
        value_delimiter = ',',
        requires = "page",
        group = "changed_features",
        help_heading = "Page for a browser"
    )]
    pub(crate) with: Vec<PagePart>,
    /// Show the plain run beside the one with interventions, and their difference. --json has both
    #[arg(long, help_heading = "Page for a browser")]
    pub(crate) compare: bool,
    /// Show attention rollout: how much of each token reaches each position, through all layers and the residual
    /// stream
    #[arg(long, conflicts_with_all = ["layer", "head", "export", "html", "open", "top"])]
    pub(crate) rollout: bool,
    /// Show what ablating each head does to the prediction of --target. A head's output becomes zero, or its mean. A
    /// second table has what each part of the model adds directly to the target's logit. Interventions act in all
    /// these runs
    #[arg(long, value_name = "HOW", value_parser = one_of(ABLATIONS), num_args = 0..=1, require_equals = true, default_missing_value = "zero",
          conflicts_with_all = ["layer", "head", "export", "html", "open", "top", "rollout"], help_heading = "Effects of heads")]
    pub(crate) effect: Option<Ablation>,
    /// The token whose prediction is measured, with its leading space [default: the most probable next token]
    #[arg(long, value_name = "TOKEN", requires = "effects", help_heading = "Effects of heads")]
    pub(crate) target: Option<String>,
    /// Measure the logit of --target minus the logit of this token, instead of the log-probability of --target
    #[arg(long, value_name = "TOKEN", requires_all = ["effects", "target"], help_heading = "Effects of heads")]
    pub(crate) against: Option<String>,
    /// Show what each part adds to the logit itself, as TransformerLens does. Otherwise the mean of all logits is
    /// taken off
    #[arg(long, requires = "effects", help_heading = "Effects of heads")]
    pub(crate) raw: bool,
    /// List every head, not only the first 15 of many
    #[arg(long)]
    pub(crate) all: bool,
    /// When to use colors. auto: on a terminal
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) color: ColorArg,
    #[command(flatten)]
    pub(crate) study: StudyArgs,
}
