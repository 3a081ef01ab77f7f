//! The layout of help: what `-h` shows, the width, paragraphs, examples.
//!
//! Each command's `after_help` is its source: paragraphs, then `Examples:` with a command a line and what it is for after
//! `# `. `--help` shows every option; `-h` those of [`COMMON`], so that a new option is in `--help` alone until someone
//! adds it there.

pub(crate) mod near;
pub(crate) mod tips;

use crate::output;
use clap::{Arg, ArgAction, Command};
use std::fmt::Write;

/// The options that `-h` shows of the commands that have many, beside those of [`EVERYWHERE`]. Of a command that is not
/// here, `-h` shows those without a heading of their own.
const COMMON: &[(&str, &str)] = &[
    ("attention", "prompt file layer head effect html open export ablate"),
    ("heads", "batch ablate"),
    ("lens", "prompt file position top_k ablate"),
    ("patch", "clean corrupt answer against pairs by_position paths overwrite"),
    ("discover", "clean corrupt answer against pairs edges replace out overwrite"),
    ("features", "prompt file dictionary top_k feature target against"),
    ("graph", "prompt file dictionary node_threshold edge_threshold max_nodes top_k out page overwrite"),
    ("forward", "prompt file ids top_k compare ablate scale block patch from_prompt"),
    ("generate", "prompt file max_new_tokens temperature top_k top_p greedy beams draft html open seed"),
    ("inspect", "name list"),
    ("compare", "model other text quantize_other adapters tokens"),
    ("eval", "tasks limit samples journal out overwrite"),
    ("score", "place by jsonl summaries resume"),
    ("train", "text jsonl out rank n_layer n_embd steps epochs lr num_samples resume overwrite"),
    ("train-features", "source out point writes features k sparsity epochs lr overwrite"),
    ("bench", "what batch tokens runs last device threads"),
    ("verify", "all published evaluations device"),
];
const EVERYWHERE: [&str; 4] = ["model", "json", "picture", "help"];

/// The number of inherited options that `-h` leaves out of each command.
const GENERAL: usize = 2;
/// The display order of options that are listed last.
const LAST: usize = 1000;
/// The most examples that `-h` shows.
const FEW: usize = 4;
/// Longer lines are hard to read, however wide the terminal is.
const WIDEST: usize = 120;
/// The columns of a page of the manual.
const PAGE: usize = 78;

/// The command with its whole help at the width of the terminal.
pub(crate) fn full(gpt2: Command) -> Command {
    arranged(gpt2, false, width())
}

/// The command with the help of `-h`, at the width of the terminal.
pub(crate) fn brief(gpt2: Command) -> Command {
    arranged(gpt2, true, width())
}

/// The command with its whole help, at the width of a manual page.
pub(crate) fn for_manual(gpt2: Command) -> Command {
    arranged(gpt2, false, PAGE)
}

/// Whether the help of a command was asked for with `-h`, alone or behind other letters, rather than with `--help` or `help`.
pub(crate) fn is_brief(args: &[String]) -> bool {
    let mut options = args.iter().take_while(|arg| *arg != "--").filter(|arg| arg.starts_with('-'));
    let command = args.iter().find(|arg| !arg.starts_with('-'));
    let whole = command.is_none_or(|command| command == "help") || options.clone().any(|arg| arg == "--help");
    !whole && options.any(|arg| !arg.starts_with("--") && arg.contains('h'))
}

fn width() -> usize {
    output::stdout_width().min(WIDEST)
}

fn arranged(gpt2: Command, brief: bool, width: usize) -> Command {
    let flag = |name: &'static str, letter: char, action, help: &'static str| {
        Arg::new(name).short(letter).long(name).action(action).help(help).global(true)
    };
    let general = |arg: Arg| {
        let arg = arg.display_order(LAST);
        let hide = brief && arg.get_id() != "help";
        arg.hide(hide).help_heading((!brief).then_some("General"))
    };
    let help = "Print the common options; with --help, all of them";
    let gpt2 = gpt2
        .term_width(width)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .mut_arg("quiet", general)
        .arg(general(flag("help", 'h', ArgAction::Help, help)))
        .arg(general(flag("version", 'V', ArgAction::Version, "Print version")));
    with_after_help(gpt2, false, width, 0).mut_subcommands(|command| {
        let command = command.mut_args(list_values);
        if !brief {
            return with_after_help(command, false, width, 0);
        }
        let name = command.get_name().to_owned();
        let mut hidden = 0;
        let command = command.mut_args(|arg| {
            let is_left_out = !is_common(&name, &arg);
            hidden += usize::from(is_left_out && !arg.is_hide_set());
            let hide = is_left_out || arg.is_hide_set();
            let help = arg.get_help().map(|help| first_sentence(&help.to_string())).unwrap_or_default();
            arg.help(help).help_heading(None::<&str>).hide(hide)
        });
        with_after_help(command, true, width, if hidden > 0 { hidden + GENERAL } else { 0 })
    })
}

/// Whether `-h` shows an option of the command.
fn is_common(command: &str, arg: &Arg) -> bool {
    let id = arg.get_id().as_str();
    let own = match COMMON.iter().find(|(name, _)| *name == command) {
        Some((_, ids)) => ids.split(' ').any(|common| common == id),
        None => arg.get_help_heading().is_none(),
    };
    own || EVERYWHERE.contains(&id)
}

/// Lists values that have a help of their own below the option's; clap's own list needs an empty line around each option.
fn list_values(arg: Arg) -> Arg {
    let values = arg.get_possible_values();
    if values.iter().all(|value| value.get_help().is_none()) {
        return arg;
    }
    let name_width = values.iter().map(|value| value.get_name().len()).max().unwrap_or(0);
    let mut help = format!("{}:", arg.get_help().cloned().unwrap_or_default());
    for value in &values {
        let about = value.get_help().cloned().unwrap_or_default();
        let _ = write!(help, "\n{:name_width$}  {about}", value.get_name());
    }
    arg.help(help).hide_possible_values(true)
}

/// The first sentence of an option's help, with its default.
fn first_sentence(help: &str) -> String {
    let Some((first, rest)) = help.split_once(". ") else { return help.to_owned() };
    let default = rest.find(" [default").map_or("", |at| &rest[at..]);
    format!("{first}{default}")
}

fn with_after_help(command: Command, brief: bool, width: usize, hidden: usize) -> Command {
    let Some(source) = command.get_after_help().map(ToString::to_string) else { return command };
    let name = command.get_name().to_owned();
    let shown = if brief { FEW } else { usize::MAX };
    let mut parts: Vec<String> = vec![];
    for block in source.split("\n\n") {
        match block.split_once(":\n").filter(|(title, _)| title.starts_with("Example")) {
            Some((_, list)) => parts.push(examples(list, shown, width)),
            None if brief => {}
            None => parts.push(block.replace('\n', " ")),
        }
    }
    if hidden > 0 {
        parts.push(format!("{hidden} more options: gpt2 {name} --help"));
    }
    command.after_help(parts.join("\n\n"))
}

struct HelpExample {
    command: String,
    about: Option<String>,
}

impl HelpExample {
    /// `gpt2 ...` or `gpt2 ...   # what it is for`
    fn parse(line: &str) -> Self {
        match line.split_once(" # ") {
            Some((command, about)) => {
                Self { command: command.trim().into(), about: Some(about.trim().into()) }
            }
            None => Self { command: line.trim().into(), about: None },
        }
    }
}

/// The first examples, so that a shell takes each line as it stands: what they are for stands beside them where that fits,
/// else above.
fn examples(list: &str, shown: usize, width: usize) -> String {
    let joined = list.split("\\\n").map(str::trim).collect::<Vec<_>>().join(" ");
    let all: Vec<HelpExample> = joined.lines().map(HelpExample::parse).collect();
    let all = &all[..all.len().min(shown)];
    let column = all.iter().filter(|of| of.about.is_some()).map(|of| of.command.chars().count()).max();
    let column = column.unwrap_or(0);
    let beside = all.iter().all(|HelpExample { command, about }| {
        let about = about.as_ref().map_or(0, |about| column + "   # ".len() + about.chars().count());
        2 + command.chars().count().max(about) <= width
    });
    let mut text = String::from(if all.len() == 1 { "Example:" } else { "Examples:" });
    for HelpExample { command, about } in all {
        let _ = match about {
            Some(about) if beside => write!(text, "\n  {command:column$}   # {about}"),
            Some(about) => write!(text, "\n  # {about}\n  {}", broken(command, width)),
            None => write!(text, "\n  {}", broken(command, width)),
        };
    }
    text
}

/// A command in lines that end in a backslash, broken before options.
fn broken(command: &str, width: usize) -> String {
    let mut lines = vec![];
    let mut line = String::new();
    for part in command.split_inclusive(' ').fold(Vec::<String>::new(), grouped) {
        // The indentation, and the backslash.
        if !line.is_empty() && 6 + line.chars().count() + part.trim_end().chars().count() + 2 > width {
            lines.push(line.trim_end().to_owned());
            line.clear();
        }
        line += &part;
    }
    lines.push(line);
    lines.join(" \\\n      ")
}

/// Joins the words of a text in quotes, and an option with its value.
fn grouped(mut parts: Vec<String>, word: &str) -> Vec<String> {
    let open = |part: &String| part.matches('"').count() % 2 == 1;
    let is_option = |part: &String| part.starts_with('-') && part.split_whitespace().count() == 1;
    match parts.last_mut() {
        Some(part) if open(part) || (is_option(part) && !word.starts_with('-')) => *part += word,
        _ => parts.push(word.into()),
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_options_of_every_list_exist() {
        // One that the command lacks would be missing from `-h` in silence.
        let gpt2 = crate::commands::Args::command();
        for (name, ids) in COMMON {
            let command = gpt2.find_subcommand(name).expect(name);
            for id in ids.split(' ') {
                assert!(command.get_arguments().any(|arg| arg.get_id() == id), "gpt2 {name} has no {id}");
            }
        }
    }

    #[test]
    fn a_first_sentence_keeps_the_default() {
        assert_eq!(first_sentence("One of a.b or .c. More [default: x]"), "One of a.b or .c [default: x]");
        assert_eq!(first_sentence("One. Two"), "One");
        assert_eq!(first_sentence("One [default: 2]"), "One [default: 2]");
    }

    #[test]
    fn a_command_is_broken_before_options_and_never_in_a_text() {
        let command = "gpt2 patch --model gpt2 \"When Mary and John\" --answer \" Mary\" --json";
        assert_eq!(broken(command, 80), command);
        assert_eq!(
            broken(command, 40),
            "gpt2 patch --model gpt2 \\\n      \"When Mary and John\" \\\n      --answer \" Mary\" --json"
        );
    }

    #[test]
    fn brief_is_asked_for_with_a_letter() {
        let asks = |line: &str| is_brief(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert!(asks("attention -h") && asks("-q heads -k3h") && asks("train --text x -h"));
        assert!(!asks("attention --help") && !asks("help attention -h") && !asks("attention -h --help"));
        assert!(!asks("-h") && !asks("attention --html x") && !asks("attention -- -h"));
    }
}
