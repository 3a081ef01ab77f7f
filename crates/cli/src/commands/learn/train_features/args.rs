//! The options of `gpt2 train-features`.

use crate::input::corpus::DocumentArgs;
use crate::model::args::ModelArgs;
use crate::process::parallel::{ParallelArgs, TIMEOUT};
use crate::values::{above_0, one_of};
use candle_core::DType;
use candle_fused::Implementation;
use gpt2_engine::DeviceChoice;
use gpt2_engine::studies::learn::train_features::{Options, SPARSITIES};
use gpt2_engine::texts::DocumentOptions;
use gpt2_train::Sparsity;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(mut_arg("timeout", |arg| arg.help(TIMEOUT)))]
#[command(after_help = "\
The folder that it writes is a dictionary in SAELens' form, which gpt2 features and SAELens read. Ctrl-C saves what has been
learned, and --resume goes on from there to the same files. The same seed gives the same files, on any number of threads and processes. --features, --k and --lr matter most: more
features that fire explain more, and say less each. Of a text, the model computes the values while the dictionary learns, in windows in a
random order. A store is faster to read again, and every process must see it; rank 0 alone reads a text.

Examples:
  gpt2 record notes.txt --points blocks.2.hook_resid_post --out activations
  gpt2 train-features activations --features 768 --k 16 --out sae-new
  gpt2 train-features activations --features 768 --k 16 --sparsity jumprelu --epochs 2 --out sae-jump --json
  gpt2 train-features notes.txt --point blocks.2.hook_resid_post --features 768 --k 16 --out sae-live   # nothing is recorded
  gpt2 train-features notes.txt --point blocks.2.mlp.hook_in --writes blocks.2.hook_mlp_out --sparsity jumprelu --out transcoder-2
  mpirun -n 4 gpt2 train-features activations --accumulate 4 --batch 256 --out sae-shared   # on four processes")]
pub(crate) struct TrainFeaturesArgs {
    /// The folder that gpt2 record wrote; or a text, JSON lines (.jsonl) or a folder of .txt files, with --point
    #[arg(value_name = "STORE|FILE|FOLDER")]
    pub(super) source: PathBuf,
    /// The folder for cfg.json and sae_weights.safetensors
    #[arg(short, long, value_name = "DIR")]
    pub(super) out: PathBuf,
    /// The value to learn from; needed with a text, or if the store has several
    #[arg(long, value_name = "POINT")]
    pub(super) point: Option<String>,
    /// Train a transcoder, which predicts this value from that of --point, such as an MLP's output from its input. Needs --sparsity jumprelu
    #[arg(long, value_name = "POINT", help_heading = "A transcoder instead of an autoencoder")]
    pub(super) writes: Option<String>,
    /// How many features to learn [default: 8 for each number of a value]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(super) features: Option<u32>,
    /// How many features fire at a token
    #[arg(short, long, default_value_t = 32, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) k: u32,
    /// How features are kept few: topk takes the k largest, jumprelu learns a threshold for each, so that about k fire
    #[arg(long, default_value = "topk", value_name = "HOW", value_parser = one_of(SPARSITIES))]
    pub(super) sparsity: Sparsity,
    /// How often to go through the values
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) epochs: u32,
    /// How many tokens a batch has
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1 << 16))]
    pub(super) batch: u32,
    /// How many batches a step adds up; processes share them out
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) accumulate: u16,
    /// The largest learning rate
    #[arg(long, default_value_t = 4e-3, value_name = "RATE", value_parser = above_0)]
    pub(super) lr: f64,
    /// Revive features that have not fired for N tokens
    #[arg(long, default_value_t = 100_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) silent_after: u32,
    /// Replace a dictionary that is already in --out
    #[arg(long)]
    pub(super) overwrite: bool,
    /// Go on where a stopped run in --out was, with the same options. Of a text, the model computes again what has been learned from
    #[arg(long, conflicts_with = "overwrite")]
    pub(super) resume: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) text: TextArgs,
    #[command(flatten)]
    pub(super) parallel: ParallelArgs,
    #[command(flatten)]
    pub(super) model: ModelArgs,
}

/// How the model reads a text.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "A text instead of a store")]
pub(super) struct TextArgs {
    #[command(flatten)]
    pub(super) documents: DocumentArgs,
    /// Put the model's first token (<|endoftext|> in GPT-2) before each window, and learn nothing from it
    #[arg(long)]
    pub(super) bos: bool,
    /// Tokens of a window at most [default: the model's context]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) window: Option<u32>,
}

impl TrainFeaturesArgs {
    pub(super) fn options(&self) -> Options {
        let DocumentOptions { by, field } = self.text.documents.options();
        Options {
            source: self.source.clone(),
            out: self.out.clone(),
            point: self.point.clone(),
            writes: self.writes.clone(),
            features: self.features,
            k: self.k,
            sparsity: self.sparsity,
            epochs: self.epochs,
            batch: self.batch,
            accumulate: self.accumulate,
            lr: self.lr,
            silent_after: self.silent_after,
            overwrite: self.overwrite,
            resume: self.resume,
            by,
            field,
            bos: self.text.bos,
            window: self.text.window,
        }
    }

    /// The first option about a model that was given.
    pub(super) fn for_a_model(&self) -> Option<String> {
        let model = &self.model;
        let on_gpu = !matches!(model.run.device, DeviceChoice::Auto | DeviceChoice::Cpu);
        [
            ("--model", model.model.is_some()),
            ("--dtype", model.dtype != DType::F32),
            ("--quantize", model.quantize.is_some()),
            ("--impl", model.implementation != Implementation::Auto),
            ("--adapter", !model.adapters.list.is_empty()),
            ("--device", on_gpu),
            ("--tf32", model.run.tf32),
            ("--revision", model.hub.revision.is_some()),
        ]
        .into_iter()
        .find_map(|(option, is_given)| is_given.then(|| option.to_owned()))
    }
}
