//! The options of `gpt2 generate`.

use crate::interventions::InterventionArgs;
use crate::prompt::PromptArgs;
use crate::session::{DTYPES, ModelArgs};
use crate::values::{IndexRange, above_0, at_least_0, one_of, part};
use candle_core::DType;
use std::path::PathBuf;

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
    #[arg(long, value_name = "DTYPE", value_parser = one_of(&DTYPES[..3]))]
    pub(crate) kv: Option<DType>,
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
