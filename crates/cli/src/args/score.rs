//! Options of `score`.
// These comments are the help text, which would print backticks and angle brackets.
#![allow(clippy::doc_markdown, rustdoc::broken_intra_doc_links)]

use super::model::ModelArgs;
use super::parallel::{ParallelArgs, TIMEOUT};
use clap::ValueEnum;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(mut_arg("timeout", |arg| arg.help(TIMEOUT)))]
#[command(after_help = "\
OUT holds a line of JSON for each document, in the order of the corpus: tokens, predicted (how many of them were
predicted), loss (nats a token) and perplexity. The first line says how they were made. A document longer than the
context is read in windows that overlap; each token is predicted once. The same corpus gives the same bytes on any number
of processes.

Examples:
  gpt2 score notes.txt                                         the perplexity of one text
  gpt2 score texts/ --jsonl scores.jsonl --model gpt2          of each .txt file in a folder
  gpt2 score lines.txt --by line --jsonl scores.jsonl --summaries
  mpirun -n 4 gpt2 score texts/ --jsonl scores.jsonl           on four processes
  gpt2 score texts/ --jsonl scores.jsonl --resume              go on after Ctrl-C")]
pub(crate) struct ScoreArgs {
    /// A text, a folder of .txt files (with its subfolders), or - for standard input
    #[arg(value_name = "FILE|FOLDER|-")]
    pub(crate) corpus: PathBuf,
    /// What a document is: a whole file, or each line that is not blank
    #[arg(long, value_enum, default_value = "document")]
    pub(crate) by: ByArg,
    /// Write a line for each document to this file
    #[arg(long, value_name = "OUT")]
    pub(crate) jsonl: Option<PathBuf>,
    /// Add the summary of every head's attention over each document
    #[arg(long, requires = "jsonl")]
    pub(crate) summaries: bool,
    /// Put the model's first token (<|endoftext|> in GPT-2) before each document, so that its first token is predicted, too
    #[arg(long)]
    pub(crate) bos: bool,
    /// How far each window of a long document moves on, less than the model's context; the rest of the window is context
    /// [default: half of the model's context]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) stride: Option<u32>,
    /// Go on where an earlier run stopped
    #[arg(long, requires = "jsonl", conflicts_with = "overwrite")]
    pub(crate) resume: bool,
    /// Replace an existing OUT, or start an unfinished one anew
    #[arg(long, requires = "jsonl")]
    pub(crate) overwrite: bool,
    /// Print the total as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) parallel: ParallelArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ByArg {
    Line,
    Document,
}
