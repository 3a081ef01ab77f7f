//! Options of every command that runs a model.
// These comments are the help text, which would print backticks and backslashes.
#![allow(clippy::doc_markdown, rustdoc::broken_intra_doc_links)]

use super::choices::{DTypeArg, ImplArg};
use super::device::DeviceArg;
use super::hub::HubArgs;

/// Options that every subcommand has.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model and device")]
pub(crate) struct ModelArgs {
    /// Folder with config.json and weights; or a model on the Hugging Face Hub: gpt2, gpt2-medium,
    /// gpt2-large, gpt2-xl, distilgpt2 or owner/name [default: the built-in demo model]
    #[arg(short, long, value_name = "DIR|NAME")]
    pub(crate) model: Option<String>,
    /// Precision of weights and activations; scores and softmax are f32 at least
    #[arg(long, default_value = "f32", value_enum)]
    pub(crate) dtype: DTypeArg,
    /// Which code computes attention and, on GPUs, the layers around it
    #[arg(long = "impl", value_enum, default_value = "auto")]
    pub(crate) implementation: ImplArg,
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}

/// Where a command runs, and with which seed.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model and device")]
pub(crate) struct RunArgs {
    /// Where to run: auto, cpu, cuda[:N] or metal[:N]; only auto ever falls back
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub(crate) device: DeviceArg,
    /// CPU threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,
    /// Seed for everything random: the same command with the same seed gives the same result
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}
