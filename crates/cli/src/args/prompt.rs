//! Options that give a prompt.
// These comments are the help text, which would print backticks and backslashes.
#![allow(clippy::doc_markdown, rustdoc::broken_intra_doc_links)]

use std::path::PathBuf;

/// The prompt: an argument, a file, a pipe or ids.
#[derive(Debug, clap::Args)]
pub(crate) struct PromptArgs {
    /// The prompt [default: standard input, if it is a pipe]
    #[arg(conflicts_with_all = ["file", "ids"])]
    pub(crate) prompt: Option<String>,
    /// Read the prompt from a file, without one newline at its end
    #[arg(short, long, value_name = "FILE", conflicts_with = "ids")]
    pub(crate) file: Option<PathBuf>,
    /// Token ids instead of text
    #[arg(long, value_delimiter = ',', value_name = "1,2,3", num_args = 1..)]
    pub(crate) ids: Option<Vec<u32>>,
}
