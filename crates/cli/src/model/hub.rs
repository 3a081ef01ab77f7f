//! The options of every command that reaches the Hub.

use crate::output::terminal::TERMINAL;
use anyhow::bail;
use clap::Args;
use gpt2_engine::{HubOptions, ReadFiles};
use gpt2_loader::Hub;
use std::path::PathBuf;

/// Where to find models that are given by name rather than as a folder.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Hugging Face Hub")]
pub(crate) struct HubArgs {
    /// Branch, tag or commit of a model on the Hub [default: main]
    #[arg(long, value_name = "REV")]
    pub(crate) revision: Option<String>,
    /// Make no request: use only the cache [env: HF_HUB_OFFLINE]
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

impl HubArgs {
    pub(crate) fn options(&self) -> HubOptions {
        let Self { revision, offline, cache_dir, endpoint, timeout } = self;
        HubOptions {
            revision: revision.clone(),
            offline: *offline,
            cache_dir: cache_dir.clone(),
            endpoint: endpoint.clone(),
            timeout: *timeout,
        }
    }
}

/// Refuses `--revision` for a model that has no revisions.
pub(crate) fn no_revision(args: &HubArgs, what: &str) -> anyhow::Result<()> {
    match &args.revision {
        Some(_) => bail!("--revision is for models of the Hub; {what} has no revisions"),
        None => Ok(()),
    }
}

/// The Hub, as the flags and the environment configure it.
pub(crate) fn settings(args: &HubArgs) -> anyhow::Result<Hub> {
    TERMINAL.works();
    args.options().connect(&TERMINAL)
}

/// Adds what this program reads to use the Hub: the cache and the token. Without a home folder there is neither.
pub(crate) fn inputs(args: &HubArgs, inputs: &mut ReadFiles) {
    inputs.cache = args.options().cache_dir().ok();
    if let Some(token) = HubOptions::token_file() {
        inputs.file("the Hub's token", token);
    }
}
