//! Options of `gpt2 train`.
// The comments are the help text, where backticks and angle brackets would be printed.
#![allow(clippy::doc_markdown, rustdoc::bare_urls, rustdoc::broken_intra_doc_links)]

use super::choices::DTypeArg;
use super::hub::HubArgs;
use super::model::RunArgs;
use crate::values::{at_least_0, below_1, fraction};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The same command with the same seed gives the same model, stopped by Ctrl-C and resumed or not.

Examples:
  gpt2 train --text shakespeare.txt --out my-model --steps 2000 --metrics loss.csv
  gpt2 train --text shakespeare.txt --out my-model --steps 2000 --metrics loss.csv --resume
  gpt2 train --text shakespeare.txt --out tuned --model gpt2 --window 256 --batch 2 --accumulate 8 --lr 3e-5
  gpt2 generate --model my-model \"ROMEO:\"")]
pub(crate) struct TrainArgs {
    /// The text to learn, UTF-8
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Folder for config.json, model.safetensors, tokenizer.json and loss.png, the losses as a picture
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Train this model further, a folder or a model of the Hub, instead of a new one
    #[arg(short, long, value_name = "DIR|NAME",
          conflicts_with_all = ["vocab_size", "n_layer", "n_head", "n_embd", "n_positions"])]
    pub(crate) model: Option<String>,
    /// Tokens of the byte-level BPE that is trained on the text
    #[arg(long, default_value_t = 1024, value_name = "V", value_parser = clap::value_parser!(u32).range(257..1 << 24))]
    pub(crate) vocab_size: u32,
    #[arg(long, default_value_t = 4, help = "Blocks")]
    pub(crate) n_layer: usize,
    #[arg(long, default_value_t = 4, help = "Heads a block")]
    pub(crate) n_head: usize,
    #[arg(long, default_value_t = 128, help = "Width of the residual stream")]
    pub(crate) n_embd: usize,
    #[arg(long, default_value_t = 256, help = "Longest context")]
    pub(crate) n_positions: usize,
    /// Optimiser steps
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) steps: u32,
    /// Tokens of a sequence [default: n_positions]
    #[arg(long, value_name = "T")]
    pub(crate) window: Option<usize>,
    /// Batches whose gradients are summed to one step
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) accumulate: u16,
    /// Keep one block's activations at a time and run each block again in the backward pass: less memory,
    /// more time, the same numbers
    #[arg(long)]
    pub(crate) recompute: bool,
    /// Scale all gradients together down to this norm; 0 is off
    #[arg(long, default_value_t = 1.0, value_parser = at_least_0, allow_negative_numbers = true)]
    pub(crate) clip: f64,
    /// Dropout on embeddings, attention weights and residuals [default: 0, or what --model's config says]
    #[arg(long, value_name = "P", value_parser = below_1, allow_negative_numbers = true)]
    pub(crate) dropout: Option<f64>,
    /// Sequences of a batch
    #[arg(short, long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) batch: u16,
    /// Highest learning rate, after the warm-up; a cosine brings it down to a tenth
    #[arg(long, default_value_t = 1e-3, value_parser = at_least_0, allow_negative_numbers = true)]
    pub(crate) lr: f64,
    /// Steps of linear warm-up
    #[arg(long, default_value_t = 100)]
    pub(crate) warmup: u32,
    /// AdamW's decay, on matrices and embeddings only
    #[arg(long, default_value_t = 0.1, value_parser = at_least_0, allow_negative_numbers = true)]
    pub(crate) weight_decay: f64,
    /// Part of the text, at its end, that is held back for validation
    #[arg(long, default_value_t = 0.1, value_parser = fraction, allow_negative_numbers = true)]
    pub(crate) val_fraction: f64,
    /// Steps between validations; the best weights so far are saved at each
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) eval_every: u32,
    /// Write loss, learning rate and norm of gradients of each step to a .csv or .jsonl file
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics: Option<PathBuf>,
    /// Resume the run in --out where it was stopped; the result is that of a run that was not
    #[arg(long, conflicts_with = "overwrite")]
    pub(crate) resume: bool,
    /// Replace the model that --out holds already
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Precision of the saved weights
    #[arg(long, default_value = "f32", value_enum)]
    pub(crate) save_dtype: DTypeArg,
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}
