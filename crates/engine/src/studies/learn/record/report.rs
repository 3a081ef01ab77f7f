//! The end of recording: what was recorded, or what is left to do.

use crate::provenance::RunProvenance;
use crate::spelling::Spelling;
use serde::Serialize;
use std::path::PathBuf;

/// The extent of a recording.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The facts that it depends on.
    pub provenance: RunProvenance,
    /// The folder.
    pub folder: PathBuf,
    /// The points, as they were named.
    pub points: Vec<String>,
    /// The number of documents.
    pub documents: usize,
    /// The number of documents without a token.
    pub empty: usize,
    /// The number of tokens.
    pub tokens: usize,
    /// The number of shards.
    pub shards: usize,
    /// The speed; none where all shards were there already.
    #[serde(skip)]
    pub tokens_per_second: Option<f64>,
}

/// The state that a stopped run leaves, and the way to go on.
#[must_use]
pub fn left(spelling: Spelling) -> &'static str {
    match spelling {
        Spelling::Flags => "the finished shards stay: run the same command with --resume to continue",
        Spelling::Keywords => "the finished shards stay: call it again with resume=True to continue",
    }
}
