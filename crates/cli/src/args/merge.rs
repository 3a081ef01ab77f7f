//! Options of `gpt2 merge`.
// These comments are the help text, which would print backticks and angle brackets.
#![allow(clippy::doc_markdown, rustdoc::broken_intra_doc_links)]

use super::adapter::AdapterArg;
use super::choices::DTypeArg;
use super::hub::HubArgs;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The merged model is a plain checkpoint, as fast as the original, for every command, for transformers and for `gpt2 quantize`.

Examples:
  gpt2 merge --model gpt2 --adapter poems --out gpt2-poems
  gpt2 merge --model gpt2 --adapter poems=0.5 --adapter plays=0.5 --out gpt2-mixed --save-dtype f16")]
pub(crate) struct MergeArgs {
    /// Folder with config.json and weights, a GGUF file that is not quantized, or a model on the Hub [default: the built-in
    /// demo model]
    #[arg(short, long, value_name = "DIR|FILE|NAME")]
    pub(crate) model: Option<String>,
    /// The adapter, in PEFT's files: a folder or owner/name on the Hub, times WEIGHT; may be repeated. A weight of -1 takes
    /// one out again
    #[arg(long = "adapter", value_name = "DIR|NAME[=WEIGHT]", required = true)]
    pub(crate) adapters: Vec<AdapterArg>,
    /// Folder for config.json, model.safetensors and tokenizer.json
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Precision of the saved weights
    #[arg(long, default_value = "f32", value_enum)]
    pub(crate) save_dtype: DTypeArg,
    /// Replace a model that is already in --out
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// CPU threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}
