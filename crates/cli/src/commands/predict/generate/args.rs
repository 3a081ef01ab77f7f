//! The options of `gpt2 generate`.

use crate::interventions::args::InterventionArgs;
use crate::model::args::{FirstTokenArg, ModelArgs};
use crate::results::live_page::LiveArg;
use crate::study::over_texts::PromptsArgs;
use crate::values::{HeadRange, IndexRange, above_0, at_least_0, one_of, part};
use gpt2_engine::open::CACHES;
use gpt2_engine::studies::predict::generate::{DraftKind, Options};
use gpt2_engine::texts::Content;
use gpt2_model::CacheDType;
use std::path::PathBuf;

const SAMPLING: &str = "Sampling";
const BEAMS: &str = "Beam search";
const ATTENTION: &str = "Attention to the steps";

#[derive(Debug, clap::Args)]
#[command(mut_arg("texts", |arg| arg.visible_alias("prompts").conflicts_with_all([
    "beams", "draft", "page", "written",
])))]
#[command(group = clap::ArgGroup::new("searched").arg("beams"))]
#[command(group = clap::ArgGroup::new("page").args(["html", "open"]).multiple(true))]
#[command(mut_arg("live", |arg| arg.help_heading(ATTENTION).conflicts_with_all(["layer", "head", "export", "top"])))]
#[command(group = clap::ArgGroup::new("written").args(["export", "html"]).multiple(true))]
#[command(group = clap::ArgGroup::new("weights").args(["export", "html", "open"]).multiple(true))]
#[command(after_help = "\
With --texts, every line of a file is a prompt, and gets the text that it gets alone; with --json, results are lines of JSON.
On a terminal, control characters are shown as symbols, such as ␛ for escape; a pipe or a file gets the text as it is.

Examples:
  gpt2 generate \"ROMEO:\" -n 200
  gpt2 generate \"ROMEO:\" --open   # what each new token attended to, in the browser
  gpt2 generate \"ROMEO:\" --draft q4_0 --model gpt2   # the same text; sooner with a large model
  gpt2 generate \"ROMEO:\" --beams 4 -n 20   # the most probable text
  gpt2 generate \"The answer is\" --greedy --model gpt2
  gpt2 generate --texts prompts.txt -n 50 --json   # many prompts, one a line
  gpt2 generate --ids 15496,11 --model gpt2   # prints ids")]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptsArgs,
    /// With --texts: how many prompts to continue in each pass; a text that ends leaves its place to the next
    #[arg(long, value_name = "N", default_value_t = 8, requires = "many", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) batch: u16,
    /// Tokens to generate [default: 100, or fewer if the context has less room]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) max_new_tokens: Option<usize>,
    /// Below 1 prefers probable tokens, above 1 evens the odds, 0 is greedy
    #[arg(short, long, value_name = "X", default_value_t = 1.0, value_parser = at_least_0, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(crate) temperature: f64,
    /// Draw from the k most probable tokens; 0 is all
    #[arg(short = 'k', long, default_value_t = 40, value_name = "K", help_heading = SAMPLING)]
    pub(crate) top_k: usize,
    /// Draw from the fewest tokens whose probabilities sum to P
    #[arg(short = 'p', long, value_name = "P", value_parser = part, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(crate) top_p: Option<f64>,
    /// Draw only from tokens at least P times as probable as the most probable one
    #[arg(long, value_name = "P", value_parser = part, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(crate) min_p: Option<f64>,
    /// Draw from the tokens that are about as surprising as expected, the fewest whose probabilities sum to P
    #[arg(long, value_name = "P", value_parser = part, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(crate) typical_p: Option<f64>,
    /// Above 1 makes tokens that the text already has less probable
    #[arg(long, default_value_t = 1.0, value_name = "R", value_parser = above_0, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(crate) repetition_penalty: f64,
    /// Always take the most probable token
    #[arg(short, long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p", "typical_p"], help_heading = SAMPLING)]
    pub(crate) greedy: bool,
    /// Search for the most probable text with N beams, as transformers does, and print the best
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000), help_heading = BEAMS, conflicts_with_all = [
        "temperature", "top_k", "top_p", "min_p", "typical_p", "greedy", "stop", "draft", "kv", "page", "written",
    ])]
    pub(crate) beams: Option<u16>,
    /// A text's score is its log-probability divided by tokens^P. Above 0 prefers long texts
    #[arg(long, value_name = "P", default_value_t = 1.0, requires = "searched", allow_negative_numbers = true, help_heading = BEAMS)]
    pub(crate) length_penalty: f64,
    /// Stop once N texts have ended, even if a running one could surpass them
    #[arg(long, requires = "searched", help_heading = BEAMS)]
    pub(crate) early_stopping: bool,
    /// End before this text, which is not printed (repeatable)
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new(), conflicts_with = "ids")]
    pub(crate) stop: Vec<String>,
    /// Precision of the cached keys and values. f16 takes half the bytes of f32, and q8_0 about a quarter [default: that of
    /// --dtype]
    #[arg(long, value_name = "DTYPE", value_parser = one_of(CACHES))]
    pub(crate) kv: Option<CacheDType>,
    /// Let something faster guess the next tokens, and check up to three guesses in each pass. The text stays the same.
    /// This saves time with a large model; a small one, such as the demo model, is faster alone. q4_0 and q8_0 are the same weights, quantized. lookup repeats what followed these words before. Any other name is a
    /// model of the same vocabulary
    #[arg(long, value_name = "GUESS", conflicts_with_all = ["page", "written"])]
    pub(super) draft: Option<DraftKind>,
    /// With --device cuda: record the step for a token as one CUDA graph, and launch that for each further token. The
    /// text stays the same; in a batch, the step is recorded again whenever texts leave or join. On an H200, GPT-2 small in bf16
    /// made 2012 tokens a second in place of 1407
    #[arg(long, conflicts_with_all = ["beams", "draft", "page", "written"])]
    pub(crate) cuda_graph: bool,
    /// Write the attention weights of the prompt and of each new token: .safetensors, .npy, .jsonl or .json. Each
    /// step is a row, as computed from the cache
    #[arg(long, value_name = "FILE", help_heading = ATTENTION)]
    pub(crate) export: Option<PathBuf>,
    /// Write a page for a browser with a slider over the steps. It is one file and needs no network
    #[arg(long, value_name = "FILE", help_heading = ATTENTION)]
    pub(crate) html: Option<PathBuf>,
    /// Open that page in the browser. Without --html, it is a temporary file
    #[arg(long, help_heading = ATTENTION)]
    pub(crate) open: bool,
    #[command(flatten)]
    pub(crate) live: LiveArg,
    /// Layers of --export, --html and --open, such as 1 or 0-3 (repeatable) [default: all]
    #[arg(short, long, value_name = "L", value_delimiter = ',', requires = "weights", help_heading = ATTENTION)]
    pub(crate) layer: Vec<IndexRange>,
    /// Heads of --export, --html and --open (repeatable) [default: all]
    #[arg(short = 'H', long, value_name = "H", value_delimiter = ',', requires = "weights", help_heading = ATTENTION)]
    pub(crate) head: Vec<HeadRange>,
    /// Keep only the K largest weights of each row in the page
    #[arg(long, value_name = "K", requires = "page", value_parser = clap::value_parser!(u16).range(1..), help_heading = ATTENTION)]
    pub(crate) top: Option<u16>,
    /// Let --export and --html replace existing files
    #[arg(long, requires = "written", help_heading = ATTENTION)]
    pub(crate) overwrite: bool,
    /// Print one JSON object at the end instead of streaming
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) interventions: InterventionArgs,
    #[command(flatten)]
    pub(crate) first_token: FirstTokenArg,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

impl GenerateArgs {
    /// The given options that work on the CPU only.
    pub(super) fn cpu_only(&self) -> Vec<&'static str> {
        let drafts = self.draft.is_some().then_some("draft");
        let bytes = (self.kv == Some(CacheDType::Q8_0)).then_some("kv");
        drafts.into_iter().chain(bytes).collect()
    }

    pub(super) fn options(&self) -> Options {
        let Self { max_new_tokens, temperature, top_k, top_p, min_p, typical_p, .. } = self;
        let Self { greedy, beams, length_penalty, early_stopping, stop, kv, draft, batch, .. } = self;
        Options {
            prompt: Content::default(),
            max_new_tokens: *max_new_tokens,
            temperature: *temperature,
            top_k: *top_k,
            top_p: *top_p,
            min_p: *min_p,
            typical_p: *typical_p,
            repetition_penalty: self.repetition_penalty,
            greedy: *greedy,
            beams: beams.map(usize::from),
            length_penalty: *length_penalty,
            early_stopping: *early_stopping,
            stop: stop.clone(),
            kv: *kv,
            draft: draft.clone(),
            batch: usize::from(*batch),
            cuda_graph: self.cuda_graph,
        }
    }
}
