//! What is done with results that are not finite.
// The comments are the help text, where backticks and backslashes would be printed.
#![allow(clippy::doc_markdown, rustdoc::broken_intra_doc_links)]

/// Whether numbers that are not finite may be shown.
#[derive(Debug, clap::Args)]
pub(crate) struct FiniteArgs {
    /// Show NaN and infinity instead of refusing them: for looking at broken models
    #[arg(long)]
    pub(crate) allow_nonfinite: bool,
}
