//! The options of a corpus.

use clap::ValueEnum;
use gpt2_engine::texts::{DocumentOptions, DocumentUnit};
use std::path::PathBuf;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ByArg {
    Line,
    Document,
    Json,
}

/// The place of a corpus.
#[derive(Debug, clap::Args)]
pub(crate) struct CorpusArgs {
    /// A text, JSON lines (.jsonl), a folder of .txt files (with its subfolders), or - for standard input
    #[arg(value_name = "FILE|FOLDER|-", required_unless_present = "text")]
    place: Option<PathBuf>,
    /// A place of texts, by the name that it has in gpt2 train and compare
    #[arg(long, value_name = "FILE|FOLDER|-", hide = true, conflicts_with = "place")]
    text: Option<PathBuf>,
}

impl CorpusArgs {
    pub(crate) fn path(&self) -> PathBuf {
        self.place.clone().or_else(|| self.text.clone()).unwrap_or_default() // clap requires one
    }
}

/// How a corpus is cut into documents.
#[derive(Debug, clap::Args)]
pub(crate) struct DocumentArgs {
    /// What a document is: a whole file, each line that is not blank, or a field of each line of JSON [default: json
    /// for a .jsonl file, else document]
    #[arg(long, value_enum)]
    pub(crate) by: Option<ByArg>,
    /// The field of JSON lines that holds the text [default: text]
    #[arg(long, value_name = "NAME")]
    pub(crate) field: Option<String>,
}

impl DocumentArgs {
    /// The engine's options.
    pub(crate) fn options(&self) -> DocumentOptions {
        let by = self.by.map(|by| match by {
            ByArg::Line => DocumentUnit::Line,
            ByArg::Document => DocumentUnit::Document,
            ByArg::Json => DocumentUnit::Json,
        });
        DocumentOptions { by, field: self.field.clone() }
    }
}
