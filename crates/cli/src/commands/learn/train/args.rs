//! The options of `gpt2 train`.

use crate::interventions::args::InterventionArgs;
use crate::model::args::RunArgs;
use crate::model::hub::HubArgs;
use crate::process::parallel::{ParallelArgs, TIMEOUT};
use crate::values::{above_0, at_least_0, below_1, fraction, one_of, share};
use candle_core::DType;
use candle_fused::{BlockFormat, Implementation};
use gpt2_engine::open::{DTYPES, FORMATS, IMPLEMENTATIONS};
use gpt2_engine::studies::learn::train::{Options, TRAIN_DTYPES};
use gpt2_train::{Optimizer, Schedule, TrainDType};
use gpt2_view::PictureFormat;
use std::path::{Path, PathBuf};

/// What to train of `--model`, if not all of it.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "LoRA")]
// clap forgets that an option is required if it conflicts with one that is given; it never forgets a group.
#[command(group = clap::ArgGroup::new("base").arg("model"), group = clap::ArgGroup::new("adapter").arg("rank"))]
pub(crate) struct LoraArgs {
    /// Train a LoRA adapter of rank R. --model itself stays as it is, and may be quantized
    #[arg(long = "lora", value_name = "R", requires = "base", conflicts_with = "save_dtype",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rank: Option<u32>,
    /// Multiply the adapter's updates by A / R
    #[arg(long, value_name = "A", default_value_t = 8.0, requires = "adapter", value_parser = above_0)]
    pub(crate) lora_alpha: f64,
    /// Dropout on the inputs of the adapter's updates
    #[arg(long, value_name = "P", default_value_t = 0.0, requires = "adapter", value_parser = below_1)]
    pub(crate) lora_dropout: f64,
    /// The layers that get updates: c_attn, c_proj (of attention and MLP), c_fc, or longer ends of their names
    #[arg(
        long = "lora-target",
        value_name = "LAYERS",
        value_delimiter = ',',
        default_value = "c_attn",
        requires = "adapter"
    )]
    pub(crate) targets: Vec<String>,
    /// Multiply by A / sqrt(R) instead (rank-stabilized LoRA)
    #[arg(long = "rslora", requires = "adapter")]
    pub(crate) use_rslora: bool,
    /// Quantize --model as it loads, which takes less memory
    #[arg(long, value_name = "FORMAT", requires = "adapter", value_parser = one_of(FORMATS))]
    pub(crate) quantize: Option<BlockFormat>,
}

const NEW: &str = "A new model";
const STEPS: &str = "Steps";
const OPTIMIZER: &str = "Optimizer";
const SAVING: &str = "Validation and files";

const OPTIMIZERS: &[(&str, Optimizer)] = &[("adamw", Optimizer::AdamW), ("muon", Optimizer::Muon)];
const SCHEDULES: &[(&str, Schedule)] =
    &[("cosine", Schedule::Cosine), ("linear", Schedule::Linear), ("trapezoid", Schedule::Trapezoid)];

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("source").args(["text", "jsonl", "ids"]).required(true))]
// clap's own is too long for a line.
#[command(override_usage = "gpt2 train [OPTIONS] --out <DIR> <--text|--jsonl|--ids> <FILE>")]
#[command(mut_arg("timeout", |arg| arg.help(TIMEOUT)))]
// These depend on a prompt, which a validation does not have.
#[command(mut_arg("mean_ablate", |arg| arg.hide(true)), mut_arg("mean_of", |arg| arg.hide(true)))]
#[command(mut_arg("block", |arg| arg.hide(true)), mut_arg("patch", |arg| arg.hide(true)))]
#[command(mut_arg("from_prompt", |arg| arg.hide(true)))]
#[command(after_help = "\
With interventions, each validation is also measured under them. That shows how much the model relies on a head at that step.
Training itself does not change.

The same command with the same seed gives the same model, even if you stop it with Ctrl-C and resume, and on any number
of processes. It prints which step's weights it has saved. With Ctrl-C, it saves what it has and exits with 130.

Examples:
  gpt2 data shakespeare --out shakespeare.txt   # a text to begin with
  gpt2 train --text shakespeare.txt --out my-model --steps 2000 --metrics loss.csv
  gpt2 train --text shakespeare.txt --out my-model --steps 2000 --metrics loss.csv --resume   # after Ctrl-C
  gpt2 generate \"ROMEO:\" --model my-model   # try it
  gpt2 train --text poems.txt --out poems --model gpt2 --lora 8 --steps 300   # an adapter of GPT-2: kilobytes
  gpt2 train --text poems.txt --out tuned --model gpt2 --epochs 2 --num-samples 1   # all of GPT-2
  gpt2 train --jsonl chats.jsonl --out chats --model gpt2 --lora 8 --window 256   # prompts and completions
  mpirun -n 4 gpt2 train --text shakespeare.txt --out shared --accumulate 4   # four processes")]
pub(crate) struct TrainArgs {
    /// Train on this text, UTF-8, at most 256 MiB: a file, or a folder whose .txt files are read one after another
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Train on prompts and completions: a JSON object a line, {"prompt": "..", "completion": ".."}. Only completions
    /// are learned. Examples that share a row do not attend to each other
    #[arg(long, value_name = "FILE", conflicts_with = "repeat_fraction")]
    pub(crate) jsonl: Option<PathBuf>,
    /// Train on token ids instead of text, so that the model needs no tokenizer: a text of numbers, or a .bin file of
    /// 16 bits each, as nanoGPT and llm.c write. A new model has --vocab-size tokens
    #[arg(long, value_name = "FILE")]
    pub(crate) ids: Option<PathBuf>,
    /// Validate on this text, with --ids on these ids, instead of the end of the other
    #[arg(long, value_name = "FILE", conflicts_with_all = ["val_fraction", "jsonl"])]
    pub(crate) val_text: Option<PathBuf>,
    /// Folder for config.json, model.safetensors, tokenizer.json and loss.png, a plot of the losses. With --lora, it
    /// gets PEFT's adapter_config.json and adapter_model.safetensors, and loss.png
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Fine-tune this model instead of training a new one: a folder, a GGUF file that is not quantized, a model on the
    /// Hub, or demo, which is built in
    #[arg(short, long, value_name = "DIR|FILE|NAME",
          conflicts_with_all = ["vocab_size", "n_layer", "n_head", "n_embd", "n_positions"])]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) lora: LoraArgs,
    /// Size of the vocabulary, a byte-level BPE that is trained on the text
    #[arg(long, default_value_t = 1024, value_name = "V", value_parser = clap::value_parser!(u32).range(257..1 << 24), help_heading = NEW)]
    pub(crate) vocab_size: u32,
    #[arg(long, value_name = "N", default_value_t = 4, help = "Blocks", help_heading = NEW)]
    pub(crate) n_layer: usize,
    #[arg(long, value_name = "N", default_value_t = 4, help = "Heads per block", help_heading = NEW)]
    pub(crate) n_head: usize,
    #[arg(long, value_name = "N", default_value_t = 128, help = "Width of the residual stream", help_heading = NEW)]
    pub(crate) n_embd: usize,
    #[arg(long, value_name = "N", default_value_t = 256, help = "Longest context", help_heading = NEW)]
    pub(crate) n_positions: usize,
    /// Optimizer steps [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = STEPS)]
    pub(crate) steps: Option<u32>,
    /// Passes over the training text, instead of --steps
    #[arg(long, value_name = "X", value_parser = above_0, conflicts_with = "steps", help_heading = STEPS)]
    pub(crate) epochs: Option<f64>,
    /// Tokens per sequence [default: n_positions; with --model at most 256]
    #[arg(long, value_name = "T", help_heading = STEPS)]
    pub(crate) window: Option<usize>,
    /// Batches whose gradients are summed for one step
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..), help_heading = STEPS)]
    pub(crate) accumulate: u16,
    /// Keep the activations of one block at a time, and run each block again in the backward pass. This takes less
    /// memory and more time, and gives the same numbers
    #[arg(long, help_heading = STEPS)]
    pub(crate) recompute: bool,
    /// Round the factors of products with weights to bf16, forward and backward, on processors with AMX, AMD's AVX512-BF16
    /// or Arm's bf16. Weights, sums and all else stay in f32
    #[arg(long, value_name = "DTYPE", default_value = "f32", value_parser = one_of(TRAIN_DTYPES), help_heading = STEPS)]
    pub(crate) train_dtype: TrainDType,
    /// Scale all gradients down together if their norm exceeds this. 0 is off
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = at_least_0, allow_negative_numbers = true, help_heading = STEPS)]
    pub(crate) clip: f64,
    /// Dropout on embeddings, attention weights and residuals [default: 0, or as in --model's config]
    #[arg(long, value_name = "P", value_parser = below_1, allow_negative_numbers = true, help_heading = STEPS)]
    pub(crate) dropout: Option<f64>,
    /// Part of the sequences that are repeated random tokens instead of text, 0 to 1. They teach heads to look for
    /// earlier copies of a token (induction heads)
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = share, allow_negative_numbers = true, help_heading = STEPS)]
    pub(crate) repeat_fraction: f64,
    /// Sequences per batch
    #[arg(short, long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..), help_heading = STEPS)]
    pub(crate) batch: u16,
    /// The optimizer of the blocks' matrices: adamw, or muon, which leaves AdamW embeddings, norms and biases
    #[arg(long, value_name = "NAME", default_value = "adamw", value_parser = one_of(OPTIMIZERS), help_heading = OPTIMIZER)]
    pub(crate) optimizer: Optimizer,
    /// Highest learning rate, reached after the warm-up [default: 1e-3; with --model and without --lora 1e-4]
    #[arg(long, value_name = "X", value_parser = at_least_0, allow_negative_numbers = true, help_heading = OPTIMIZER)]
    pub(crate) lr: Option<f64>,
    /// Highest learning rate of the matrices that muon steps [default: 0.02]
    #[arg(long, value_name = "X", value_parser = at_least_0, allow_negative_numbers = true, help_heading = OPTIMIZER)]
    pub(crate) muon_lr: Option<f64>,
    /// The rates after the warm-up: a cosine down to a tenth, a line down to 0, or constant and over the last fifth down to 0
    #[arg(long, value_name = "NAME", default_value = "cosine", value_parser = one_of(SCHEDULES), help_heading = OPTIMIZER)]
    pub(crate) schedule: Schedule,
    /// Steps of linear warm-up [default: 100, or a tenth of the steps if that is fewer]
    #[arg(long, value_name = "N", help_heading = OPTIMIZER)]
    pub(crate) warmup: Option<u32>,
    /// Weight decay, on matrices and embeddings only
    #[arg(long, value_name = "X", default_value_t = 0.1, value_parser = at_least_0, allow_negative_numbers = true, help_heading = OPTIMIZER)]
    pub(crate) weight_decay: f64,
    /// Part of the text, at its end, that is held back for validation
    #[arg(long, value_name = "P", default_value_t = 0.1, value_parser = fraction, allow_negative_numbers = true, help_heading = SAVING)]
    pub(crate) val_fraction: f64,
    /// Steps between validations. Each saves the weights if they are the best so far
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..), help_heading = SAVING)]
    pub(crate) eval_every: u32,
    /// After each validation, show N texts that the model writes
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = SAVING)]
    pub(crate) num_samples: usize,
    /// The beginning of those texts [default: that of the validation data]
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new(), help_heading = SAVING)]
    pub(crate) sample_prompt: Option<String>,
    /// The tokens that follow it
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = SAVING)]
    pub(crate) sample_tokens: usize,
    /// Write each step's loss, learning rate and gradient norm to a .csv or .jsonl file
    #[arg(long, value_name = "FILE", help_heading = SAVING)]
    pub(crate) metrics: Option<PathBuf>,
    #[arg(long, value_name = "FILE", help_heading = SAVING,
          help = format!("Draw the losses into this file, too, after each validation: {}", PictureFormat::names()))]
    pub(crate) picture: Option<PathBuf>,
    /// Continue the run in --out where it stopped. The result is the same as without the stop
    #[arg(long, conflicts_with = "overwrite", help_heading = SAVING)]
    pub(crate) resume: bool,
    /// Replace the model that is already in --out
    #[arg(long, help_heading = SAVING)]
    pub(crate) overwrite: bool,
    /// Precision of the saved weights
    #[arg(long, value_name = "DTYPE", default_value = "f32", value_parser = one_of(DTYPES), help_heading = SAVING)]
    pub(crate) save_dtype: DType,
    #[command(flatten)]
    pub(crate) interventions: InterventionArgs,
    #[command(flatten)]
    pub(crate) parallel: ParallelArgs,
    /// What computes attention and, on GPUs, the layers around it. auto is fused, but eager on Metal
    #[arg(long = "impl", value_name = "IMPL", default_value = "auto", value_parser = one_of(IMPLEMENTATIONS), help_heading = "Model and device")]
    pub(crate) implementation: Implementation,
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}

impl TrainArgs {
    pub(super) fn options(&self) -> Options {
        Options {
            steps: self.steps,
            epochs: self.epochs,
            batch: self.batch,
            accumulate: self.accumulate,
            window: self.window,
            optimizer: self.optimizer,
            lr: self.lr,
            muon_lr: self.muon_lr,
            schedule: self.schedule,
            warmup: self.warmup,
            weight_decay: self.weight_decay,
            clip: self.clip,
            dropout: self.dropout,
            repeat_fraction: self.repeat_fraction,
            recompute: self.recompute,
            train_dtype: self.train_dtype,
            eval_every: self.eval_every,
            val_fraction: self.val_fraction,
            num_samples: self.num_samples,
            sample_prompt: self.sample_prompt.clone(),
            sample_tokens: self.sample_tokens,
            vocab_size: self.vocab_size as usize,
            n_positions: self.n_positions,
            n_embd: self.n_embd,
            n_layer: self.n_layer,
            n_head: self.n_head,
            lora: self.lora.rank.map(|rank| rank as usize),
            lora_alpha: self.lora.lora_alpha,
            lora_dropout: self.lora.lora_dropout,
            lora_target: self.lora.targets.clone(),
            rslora: self.lora.use_rslora,
        }
    }

    /// The file to train on, and the option that names it.
    pub(crate) fn source(&self) -> (&'static str, &Path) {
        match (&self.text, &self.jsonl, &self.ids) {
            (Some(text), _, _) => ("--text", text),
            (None, Some(jsonl), _) => ("--jsonl", jsonl),
            (None, None, Some(ids)) => ("--ids", ids),
            (None, None, None) => ("--text", Path::new("-")), // clap requires one of them
        }
    }
}
