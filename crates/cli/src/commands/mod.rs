//! The list of commands. A command's file or folder holds its options, its run and its printing.

mod bench;
mod checkpoints;
mod interpret;
mod learn;
mod live;
mod predict;
mod shell;
mod verify;

use crate::help;
use checkpoints::{cache, import, inspect, merge, quantize};
use clap::CommandFactory;
use clap::{Parser, Subcommand};
use interpret::{attention, circuits, discover, features, graph, heads, lens, pairs, patch};
use learn::{data, record, train, train_features};
use predict::{compare, eval, forward, generate, score};
use std::process::{ExitCode, Termination};

/// Runs GPT-2 and shows its attention, on CPU, CUDA or Metal.
#[derive(Debug, Parser)]
#[command(
    name = "gpt2",
    bin_name = "gpt2", // on Windows, too, where the file is gpt2.exe
    version,
    propagate_version = true,
    after_help = "\
Examples:
  gpt2 attention \"O Romeo, Romeo! wherefore art thou Romeo?\"   # what the heads do: start here
  gpt2 attention \"O Romeo, Romeo\" --layer 1 --head 2   # one head, token by token
  gpt2 forward --model gpt2 \"The capital of France\"   # GPT-2 small from the Hub
  echo \"To be, or\" | gpt2 generate --greedy   # continue a text from a pipe"
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
    /// Write a page that runs a model in the browser: type, and its attention follows
    Live(live::LiveArgs) => live::run,
    /// Score each head on repeated random tokens: previous-token, duplicate-token and induction heads
    Heads(heads::HeadsArgs) => heads::run,
    /// Show what the model would predict after each block (the logit lens)
    Lens(lens::LensArgs) => lens::run,
    /// Find the parts that carry the difference between two prompts (activation and attribution patching)
    Patch(patch::PatchArgs) => patch::run,
    /// Find the edges between heads and MLPs that a task needs, and how faithful that circuit is
    Discover(discover::DiscoverArgs) => discover::run,
    /// Write pairs of prompts for patch and discover: tasks that papers on circuits use
    Pairs(pairs::PairsCommandArgs) => pairs::run,
    /// Show which features of a sparse autoencoder or transcoder fire in a text, and what they do
    Features(features::FeaturesArgs) => features::run,
    /// Show which features of transcoders lead from a prompt to the next token (attribution graphs)
    Graph(graph::GraphArgs) => graph::run,
    /// Show what the weights of heads do by token, and how heads feed one another
    Circuits(circuits::CircuitsArgs) => circuits::run,
    /// Show the next token's probabilities and how surprising each token of the prompt is
    Forward(forward::ForwardArgs) => forward::run,
    /// Continue a text
    Generate(generate::GenerateArgs) => generate::run,
    /// List a checkpoint's config and tensors and audit them, without fetching the weights
    Inspect(inspect::InspectArgs) => inspect::run,
    /// Write a model that another program saved (nanoGPT, llm.c, torch.save, GGUF) as a folder that transformers loads
    Import(import::ImportArgs) => import::run,
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
    /// Run standard evaluations: LAMBADA, HellaSwag, WikiText, BLiMP, or questions of your own
    Eval(eval::EvalArgs) => eval::run,
    /// Measure how well a model predicts each document of a corpus
    Score(score::ScoreArgs) => score::run,
    /// Write the values at hook points over a corpus to a folder, for dictionaries and probes
    Record(record::RecordArgs) => record::run,
    /// Fetch a text in the public domain to train on
    Data(data::DataArgs) => data::run,
    /// Train a new GPT-2 on a text file, or fine-tune an existing one
    Train(train::TrainArgs) => train::run,
    /// Train a sparse autoencoder or transcoder on values that record wrote, or that a model computes from a text
    TrainFeatures(train_features::TrainFeaturesArgs) => train_features::run,
    /// Add LoRA adapters to a model's weights
    Merge(merge::MergeArgs) => merge::run,
    /// Time attention, a block, the whole model, decoding, a training step or features, and measure the machine
    Bench(bench::BenchArgs) => bench::run,
    /// Check how this build computes attention and logits on this device against plain operations in f64
    Verify(verify::VerifyArgs) => verify::run,
    /// Print a script that completes gpt2's options in a shell
    Completions(shell::CompletionsArgs) => |options| shell::completions(options, help::full(Args::command())),
    /// Print gpt2's manual page
    Man(shell::ManArgs) => |options| shell::man(options, help::for_manual(Args::command())),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    use clap::{Arg, Error};

    /// Sample values: every option takes one of these, or one of its own possible values.
    const VALUES: [&str; 15] = [
        "1",
        "0.5",
        "f32",
        "q8_0",
        "0",
        "0.1",
        "0.1=2",
        "1=2",
        "1:0",
        "1=v.npy",
        "x.png",
        "auto",
        "document",
        "hook_embed",
        "0.3->1.2.k",
    ];

    fn parse(command: &clap::Command, options: &[String]) -> Result<(), Error> {
        let words = [command.get_name().to_string()].into_iter().chain(options.iter().cloned());
        command.clone().try_get_matches_from(words).map(|_| ())
    }

    /// The first spelling of the argument that the command accepts, with a value if it takes one.
    fn given(command: &clap::Command, arg: &Arg) -> Option<String> {
        let named = arg.get_possible_values().into_iter().map(|value| value.get_name().to_string());
        let values: Vec<String> = named.chain(VALUES.map(str::to_string)).collect();
        let texts = match arg.get_long() {
            Some(long) if !arg.get_action().takes_values() => vec![format!("--{long}")],
            Some(long) => values.iter().map(|value| format!("--{long}={value}")).collect(),
            None => values,
        };
        texts.into_iter().find(|text| match parse(command, std::slice::from_ref(text)) {
            Ok(()) => true,
            Err(error) => matches!(error.kind(), ErrorKind::MissingRequiredArgument),
        })
    }

    /// The names of the arguments, or groups of them, that an error reports as missing.
    fn missing(error: &Error) -> Vec<String> {
        match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::Strings(names)) if error.kind() == ErrorKind::MissingRequiredArgument => {
                names.clone()
            }
            _ => vec![],
        }
    }

    /// Whether `missing`, an error's list of missing arguments, has this one: `<--html <FILE>|--open>` has `--open`,
    /// `<L.H>` has `[L.H]`.
    fn names(missing: &str, arg: &Arg) -> bool {
        missing.contains(arg.to_string().trim_matches(['[', ']']))
    }

    /// clap forgets a required argument that conflicts with a given one, and then runs without it. It never forgets a group.
    #[test]
    fn no_option_takes_the_place_of_one_that_another_needs() {
        let mut found = 0;
        let mut all = Args::command();
        all.build();
        for command in all.get_subcommands() {
            let args: Vec<(&Arg, String)> =
                command.get_arguments().filter_map(|arg| Some((arg, given(command, arg)?))).collect();
            let of = |name: &String| args.iter().find(|(arg, _)| names(name, arg));
            // What the command itself needs.
            let mut base: Vec<String> = vec![];
            while let Err(error) = parse(command, &base) {
                let needed = missing(&error).iter().find_map(of).map(|(_, text)| text.clone());
                base.push(needed.unwrap_or_else(|| panic!("{}: {error}", command.get_name())));
            }
            for (arg, text) in &args {
                let with = |more: &[&String]| {
                    let all: Vec<String> =
                        base.iter().chain([text]).chain(more.iter().copied()).cloned().collect();
                    parse(command, &all)
                };
                let Err(error) = with(&[]) else { continue };
                let needs = missing(&error);
                for need in &needs {
                    let others: Vec<&String> = needs
                        .iter()
                        .filter(|other| *other != need)
                        .filter_map(of)
                        .map(|(_, text)| text)
                        .collect();
                    for (third, third_text) in &args {
                        let serves = names(need, third);
                        let accepted = with(&[&others[..], &[third_text]].concat()).is_ok();
                        let name = command.get_name();
                        assert!(serves || !accepted, "{name}: {arg} runs with {third} and without {need}");
                    }
                    found += 1;
                }
            }
        }
        assert!(found > 15, "only {found} options need others");
    }
}
