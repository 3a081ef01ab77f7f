//! Names that people type first: other names of commands and options, which help does not list.

use clap::Command;

/// A command, and the other names that it has.
const COMMANDS: &[(&str, &[&str])] = &[("score", &["perplexity", "ppl"])];

/// A command, one of its options, and the other names that the option has.
const OPTIONS: &[(&str, &str, &[&str])] = &[
    ("generate", "max_new_tokens", &["length", "num-tokens"]),
    ("train", "lr", &["learning-rate"]),
    ("train-features", "lr", &["learning-rate"]),
];

/// The command with the other names, and with values of a list in letters of either case.
pub(crate) fn with_near_names(mut gpt2: Command) -> Command {
    for (name, others) in COMMANDS {
        gpt2 = gpt2.mut_subcommand(name, |command| command.aliases(*others));
    }
    for (name, option, others) in OPTIONS {
        gpt2 = gpt2.mut_subcommand(name, |command| command.mut_arg(option, |arg| arg.aliases(*others)));
    }
    gpt2.mut_subcommands(|command| {
        command.mut_args(|arg| {
            let is_listed = !arg.get_possible_values().is_empty() && arg.get_action().takes_values();
            arg.ignore_case(is_listed)
        })
    })
}

/// The tip for a first word that is no command and names a wish.
pub(super) fn wish(word: &str) -> Option<String> {
    let is_model = word == "demo" || word.starts_with("gpt2") || word.starts_with("distilgpt");
    let tip = match word.to_lowercase().as_str() {
        "finetune" | "fine-tune" | "finetuning" | "sft" | "lora" => {
            "train an existing model on a text: gpt2 train --model gpt2 --text FILE --out DIR"
        }
        "chat" | "ask" | "complete" | "run" | "infer" | "predict" => {
            "GPT-2 continues a text, it does not answer: gpt2 generate \"TEXT\""
        }
        "logitlens" | "logit-lens" => "it is called lens: gpt2 lens \"TEXT\"",
        "convert" => "gpt2 import reads what other programs saved, gpt2 quantize writes GGUF",
        "serve" | "web" | "ui" => "a page that runs the model in the browser: gpt2 live --open",
        _ if is_model => {
            return Some(format!("a model is named with --model: gpt2 generate \"TEXT\" --model {word}"));
        }
        _ => return None,
    };
    Some(tip.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::Args;
    use clap::CommandFactory;

    #[test]
    fn other_names_are_those_of_commands_and_options_that_exist() {
        let gpt2 = with_near_names(Args::command());
        for (name, others) in COMMANDS {
            for other in *others {
                assert_eq!(gpt2.find_subcommand(other).map(Command::get_name), Some(*name));
            }
        }
        for (name, option, others) in OPTIONS {
            let command = gpt2.find_subcommand(name).expect(name);
            for other in *others {
                let is_other = |arg: &clap::Arg| arg.get_all_aliases().is_some_and(|all| all.contains(other));
                let found = command.get_arguments().find(|arg| is_other(arg)).expect(other);
                assert_eq!(found.get_id(), option, "gpt2 {name} --{other}");
                let taken = command.get_arguments().any(|arg| arg.get_long() == Some(other));
                assert!(!taken, "gpt2 {name} has an option --{other}");
            }
        }
    }
}
