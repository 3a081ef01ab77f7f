//! How to treat results that are not finite.
// These comments are the help text, which would print backticks and backslashes.
#![allow(clippy::doc_markdown, rustdoc::broken_intra_doc_links)]

/// Whether to show numbers that are not finite.
#[derive(Debug, clap::Args)]
pub(crate) struct FiniteArgs {
    /// Show NaN and infinity instead of refusing them, for looking at broken models
    #[arg(long)]
    pub(crate) allow_nonfinite: bool,
}

impl FiniteArgs {
    /// For commands whose results must be finite.
    pub(crate) const STRICT: Self = Self { allow_nonfinite: false };
}
