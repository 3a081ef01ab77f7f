//! Names that people type first: other names of commands and options, which help does not list.

use clap::Command;

/// A command, and the other names that it has.
const COMMANDS: &[(&str, &[&str])] = &[("score", &["perplexity", "ppl"]), ("eval", &["evaluate"])];

/// A command, one of its options, and the other names that the option has.
const OPTIONS: &[(&str, &str, &[&str])] = &[
    ("generate", "max_new_tokens", &["length", "num-tokens", "max-tokens"]),
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
        "tokenize" | "tokens" | "encode" | "logits" => {
            "tokens, their ids and probabilities: gpt2 forward \"TEXT\""
        }
        "ablate" | "ablation" => "heads are set to 0 with an option: gpt2 forward \"TEXT\" --ablate 0.3",
        "show" | "view" | "visualize" | "plot" => "attention in the browser: gpt2 attention \"TEXT\" --open",
        "info" | "config" | "summary" => "a model's config and tensors: gpt2 inspect MODEL",
        "list" | "ls" => "models of the Hub and what is downloaded: gpt2 models; commands: gpt2 help",
        "sample" => "it is called generate: gpt2 generate \"TEXT\"",
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

/// The tip for an option that the command lacks and that names a wish.
pub(super) fn wish_for_option(command: &Command, name: &str) -> Option<String> {
    let path = command.get_bin_name().unwrap_or(command.get_name());
    let has =
        |long: &&str| command.get_arguments().any(|arg| arg.get_long() == Some(long) && !arg.is_hide_set());
    let text = |arg: &clap::Arg| ["prompt", "text"].contains(&arg.get_id().as_str());
    let meant = match name {
        "prompt" | "text" | "input" if command.get_positionals().any(text) => {
            return Some(format!("the text stands by itself: {path} \"TEXT\""));
        }
        "model" if command.get_name() == "compare" => {
            return Some(format!("models stand by themselves: {path} demo gpt2 --text FILE"));
        }
        "num-samples" | "num-return-sequences" | "samples" if command.get_name() == "generate" => {
            return Some("a run writes one text, and another --seed another".into());
        }
        "do-sample" | "sample" if command.get_name() == "generate" => {
            return Some("tokens are drawn, unless there is --greedy".into());
        }
        "lesson" if command.get_name() == "live" => {
            return Some("the page's address opens a lesson: live.html#lesson=7".into());
        }
        "port" | "host" if command.get_name() == "live" => {
            return Some("the page is a file that needs no server: --out FILE or --open".into());
        }
        "without" | "disable" | "disable-head" | "zero" | "zero-ablate" | "knockout" | "remove" => {
            &["ablate"][..]
        }
        "gpu" | "cpu" | "cuda" => &["device"],
        "half" | "fp16" | "bf16" => &["dtype"],
        "data" | "dataset" | "corpus" | "input" => &["text", "jsonl"],
        "out" | "output" | "save" | "file-out" | "csv" | "txt" | "image" | "plot" => {
            &["out", "html", "picture", "export", "jsonl"]
        }
        _ => return None,
    };
    let found: Vec<String> = meant.iter().filter(|long| has(long)).map(|long| format!("--{long}")).collect();
    (!found.is_empty()).then(|| format!("{path} has {}", listed(&found)))
}

/// `a`, `a and b`, `a, b and c`
pub(super) fn listed(names: &[String]) -> String {
    match names {
        [names @ .., last] if !names.is_empty() => format!("{} and {last}", names.join(", ")),
        names => names.join(""),
    }
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
