//! Options for models from the Hugging Face Hub, and the subcommands for them.
// These comments are the help text, which would print backticks and angle brackets.
#![allow(clippy::doc_markdown, rustdoc::bare_urls, rustdoc::broken_intra_doc_links)]

use clap::Args;
use std::path::PathBuf;

/// Where to find models that are given by name rather than as a folder.
#[derive(Debug, Args)]
#[command(next_help_heading = "Hugging Face Hub")]
pub(crate) struct HubArgs {
    /// Branch, tag or commit of a model on the Hub [default: main]
    #[arg(long, value_name = "REV")]
    pub(crate) revision: Option<String>,
    /// Make no request and use only the cache [env: HF_HUB_OFFLINE]
    #[arg(long)]
    pub(crate) offline: bool,
    /// Folder for downloaded models, shared with Python [env: HF_HUB_CACHE] [default:
    /// ~/.cache/huggingface/hub]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Address of the Hub or of a mirror [env: HF_ENDPOINT] [default: https://huggingface.co]
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// Give up on a request that brings no data for this long [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(crate) timeout: Option<u64>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A model that is cached is used without a request, at the commit that it was fetched at; this command asks the
Hub for a newer one. An interrupted download resumes where it stopped. Each file is held against the hash that
the Hub announces. A token for private and gated models is read from HF_TOKEN, or from where `hf auth login`
left it.

Examples:
  gpt2 download gpt2
  gpt2 download distilgpt2 --revision 2290a62682d06624634c1f46a6ad5be0f47f38aa")]
pub(crate) struct DownloadArgs {
    /// A name (gpt2, gpt2-medium, gpt2-large, gpt2-xl, distilgpt2) or owner/name
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  gpt2 models --json")]
pub(crate) struct ModelsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is 1 if a file is bad and was not repaired.

Examples:
  gpt2 verify-cache gpt2
  gpt2 verify-cache gpt2 --repair")]
pub(crate) struct VerifyCacheArgs {
    /// A name (gpt2, gpt2-medium, gpt2-large, gpt2-xl, distilgpt2) or owner/name
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// Fetch bad files again
    #[arg(long)]
    pub(crate) repair: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}
