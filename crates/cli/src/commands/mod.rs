//! The list of commands. A command's file or folder holds its options, its run and its printing.

mod attention;
mod bench;
mod cache;
mod circuits;
mod compare;
mod forward;
mod generate;
mod heads;
mod inspect;
mod lens;
mod merge;
mod patch;
mod quantize;
mod score;
mod shell;
mod train;
mod verify;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::{ExitCode, Termination};

/// Runs GPT-2 and shows its attention, on CPU, CUDA or Metal.
#[derive(Debug, Parser)]
#[command(
    name = "gpt2",
    version,
    propagate_version = true,
    after_help = "\
Examples:
  gpt2 attention \"O Romeo, Romeo\"                      what the heads do
  gpt2 attention \"O Romeo, Romeo\" --layer 1 --head 2   one head, token by token
  gpt2 forward --model gpt2 \"The capital of France\"    GPT-2 small from the Hugging Face Hub
  echo \"To be, or\" | gpt2 generate --greedy            continue text from a pipe

Start here: gpt2 attention \"O Romeo, Romeo! wherefore art thou Romeo?\""
)]
pub(crate) struct Args {
    /// Print only results and errors: no notes, no progress
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Makes [`Command`] of one list: each command's help, name, options, and the function that runs it.
macro_rules! commands {
    ($($(#[$help:meta])* $name:ident($options:ty) => $run:expr,)*) => {
        #[derive(Debug, Subcommand)]
        pub(crate) enum Command {
            $($(#[$help])* $name($options),)*
        }

        impl Command {
            pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
                match self {
                    $(Self::$name(options) => Ok(($run)(options)?.report()),)*
                }
            }
        }
    };
}

commands! {
    /// Show what each token attends to
    Attention(attention::AttentionArgs) => attention::run,
    /// Score each head on repeated random tokens: previous-token, duplicate-token and induction heads
    Heads(heads::HeadsArgs) => heads::run,
    /// Show what the model would predict after each block (the logit lens)
    Lens(lens::LensArgs) => lens::run,
    /// Find the parts that carry the difference between two prompts (activation and attribution patching)
    Patch(patch::PatchArgs) => patch::run,
    /// Show what the weights of heads do by token, and how heads feed one another
    Circuits(circuits::CircuitsArgs) => circuits::run,
    /// Show the next token's probabilities and how surprising each token of the prompt is
    Forward(forward::ForwardArgs) => forward::run,
    /// Continue a text
    Generate(generate::GenerateArgs) => generate::run,
    /// List a checkpoint's config and tensors and audit them, without reading or fetching the weights
    Inspect(inspect::InspectArgs) => inspect::run,
    /// Fetch a model from the Hugging Face Hub and verify it
    Download(cache::DownloadArgs) => cache::download,
    /// List the models that have a short name, and the models in the cache
    Models(cache::ModelsArgs) => cache::models,
    /// Hash the cached files of a model again
    VerifyCache(cache::VerifyCacheArgs) => cache::verify,
    /// Write a model as a GGUF file, in f16 or quantized
    Quantize(quantize::QuantizeArgs) => quantize::run,
    /// Show what quantizing costs: how two models predict a text
    Compare(compare::CompareArgs) => compare::run,
    /// Measure how well a model predicts each document of a corpus
    Score(score::ScoreArgs) => score::run,
    /// Train a new GPT-2 on a text file, or fine-tune an existing one
    Train(train::TrainArgs) => train::run,
    /// Add LoRA adapters to a model's weights
    Merge(merge::MergeArgs) => merge::run,
    /// Time attention, a block, the whole model, decoding or a training step, and measure the machine
    Bench(bench::BenchArgs) => bench::run,
    /// Check how this build computes attention and logits on this device against plain operations in f64
    Verify(verify::VerifyArgs) => verify::run,
    /// Print a script that completes gpt2's options in a shell
    Completions(shell::CompletionsArgs) => |options| shell::completions(options, Args::command()),
    /// Print gpt2's manual page
    Man(shell::ManArgs) => |options| shell::man(options, Args::command()),
}
