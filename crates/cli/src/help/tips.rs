//! Tips after wrong arguments. Clap's own tips propose names that look only a little alike, and to pass a wrong option
//! as text.

use super::near::{listed, wish, wish_for_option};
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use std::path::Path;

/// The error with tips that help, and with the usage of the command that was named. `args` are those behind the
/// program's name.
pub(crate) fn mended(mut error: clap::Error, mut gpt2: Command, args: &[String]) -> clap::Error {
    gpt2.build();
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.first().cloned().unwrap_or_default(),
        _ => String::new(),
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let wrong = text(ContextKind::InvalidArg);
            let at = args.iter().position(|arg| gpt2.find_subcommand(arg).is_some());
            let command = at.and_then(|at| gpt2.find_subcommand(&args[at])).unwrap_or(&gpt2);
            let tips = match wrong.strip_prefix('-') {
                Some(name) => of_option(&gpt2, command, name.trim_start_matches('-'), args),
                None => of_word(command, &args[at.map_or(0, |at| at + 1)..], &wrong),
            };
            let usage = command.clone().render_usage();
            error.remove(ContextKind::SuggestedArg);
            error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
            suggest(&mut error, tips);
        }
        ErrorKind::InvalidSubcommand => {
            let wrong = text(ContextKind::InvalidSubcommand);
            if !are_alike(&wrong, &text(ContextKind::SuggestedSubcommand)) {
                error.remove(ContextKind::SuggestedSubcommand);
                suggest(&mut error, vec![of_command(&gpt2, &wrong, args)]);
            }
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::Strings(names)) => names.iter().any(|name| name.starts_with("<--model")),
                _ => false,
            };
            if missing && args.iter().any(|arg| arg == "--lora" || arg.starts_with("--lora=")) {
                suggest(&mut error, vec!["--lora adapts an existing model: give --model".into()]);
            }
        }
        ErrorKind::InvalidValue
            if !are_alike(&text(ContextKind::InvalidValue), &text(ContextKind::SuggestedValue)) =>
        {
            error.remove(ContextKind::SuggestedValue);
        }
        ErrorKind::ValueValidation => return in_plain_words(error, &gpt2),
        _ => {}
    }
    error
}

/// The error with Rust's words about numbers replaced.
fn in_plain_words(error: clap::Error, gpt2: &Command) -> clap::Error {
    let found = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    let expected = match found.as_str() {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            "expected a whole number, 0 or above"
        }
        "number too large to fit in target type" => "the number is too large",
        "invalid float literal" | "cannot parse float from empty string" => "expected a number",
        _ => return error,
    };
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let option = text(ContextKind::InvalidArg);
    let value = text(ContextKind::InvalidValue);
    let told = format!(
        "invalid value '{value}' for '{option}': {expected}\n\nFor more information, try '--help'.\n"
    );
    clap::Error::raw(ErrorKind::ValueValidation, told).with_cmd(gpt2)
}

fn suggest(error: &mut clap::Error, tips: Vec<String>) {
    error.remove(ContextKind::Suggested);
    if !tips.is_empty() {
        let tips = tips.into_iter().map(StyledStr::from).collect();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
}

/// For a first word that is no command: a text, or a wish.
fn of_command(gpt2: &Command, wrong: &str, args: &[String]) -> String {
    if gpt2.get_arguments().any(|arg| arg.get_long() == Some(wrong)) {
        return format!("it is an option: gpt2 --{wrong}");
    }
    if let Some(wish) = wish(wrong) {
        return wish;
    }
    let has_space = |arg: &&String| arg.contains(char::is_whitespace);
    let is_text = args.len() > 1 && args.iter().all(|arg| !arg.starts_with('-'));
    let words = match args.iter().find(has_space) {
        _ if args.first().is_some_and(|arg| arg == "help") => None,
        Some(text) => Some(quoted(&[text])),
        None => is_text.then(|| quoted(&args.iter().map(String::as_str).collect::<Vec<_>>())),
    };
    match words {
        Some(words) => format!("what the model does with a text: gpt2 attention {words}"),
        None => "the commands: gpt2 help".into(),
    }
}

/// For an option that the command lacks.
fn of_option(gpt2: &Command, command: &Command, name: &str, args: &[String]) -> Vec<String> {
    if let Some(text) = args.iter().find(|arg| arg.starts_with('-') && arg.contains(char::is_whitespace)) {
        let path = path_of(command);
        return vec![format!(
            "a text that begins with a dash stands behind --, as in: {path} -- {}",
            quoted(&[text])
        )];
    }
    if (command.get_name(), name) == ("train", "json") {
        return vec!["--metrics FILE.jsonl writes the numbers of each step as lines of JSON".into()];
    }
    if let Some(wish) = wish_for_option(command, name) {
        return vec![wish];
    }
    let options = || command.get_arguments().filter(|arg| !arg.is_hide_set());
    let mut letters = name.chars();
    if let (Some(letter), None) = (letters.next(), letters.next()) {
        let short = options().find(|arg| arg.get_short() == Some(letter)).and_then(Arg::get_long);
        return short.into_iter().map(|long| format!("-{letter} is short for --{long}")).collect();
    }
    let similar = options().filter_map(Arg::get_long).filter(|long| {
        let holds = |of: &str, part: &str| part.split('-').all(|part| of.split('-').any(|word| word == part));
        are_alike(name, long) || long.starts_with(name) || holds(long, name) || holds(name, long)
    });
    let similar: Vec<String> = similar.map(|long| format!("--{long}")).collect();
    let has = |other: &&Command| {
        other.get_arguments().any(|arg| arg.get_long() == Some(name) && !arg.is_hide_set())
    };
    let others: Vec<String> =
        gpt2.get_subcommands().filter(has).map(|other| other.get_name().to_owned()).collect();
    let mut tips = vec![];
    if !similar.is_empty() {
        tips.push(format!("{} has {}", path_of(command), listed(&similar)));
    }
    if !others.is_empty() {
        tips.push(format!("--{name} is an option of gpt2 {}", listed(&some(others))));
    }
    let names_token = ["word", "token", "query", "key", "position", "pos"].contains(&name);
    if names_token && command.get_name() == "attention" {
        let tip = "every token has a row: --layer 1 --head 2 shows those of one head, and --open a page that finds words";
        tips.push(tip.to_owned());
    }
    if tips.is_empty() {
        tips.push(format!("all options: {} --help", path_of(command)));
    }
    tips
}

/// For a word too many: mostly the second word of a text without quotes. `args` are those of the command.
fn of_word(command: &Command, args: &[String], wrong: &str) -> Vec<String> {
    if command.get_name() == "train" {
        let is_jsonl = Path::new(wrong).extension().is_some_and(|end| end == "jsonl");
        let option = if is_jsonl { "--jsonl" } else { "--text" };
        return vec![format!("name the text with its option: gpt2 train {option} {wrong} --out DIR")];
    }
    let is_word = |arg: &&String| !arg.starts_with('-');
    let at = args.iter().position(|arg| arg == wrong);
    let before = at.map_or(0, |at| args[..at].iter().rev().take_while(is_word).count());
    // A second value of an option, behind a text in quotes.
    if let Some([option, _, second]) = at.and_then(|at| args.get(at.checked_sub(2)?..=at))
        && before == 1
        && takes_value(command, option)
        && !second.contains(char::is_whitespace)
        && args.iter().any(|arg| arg.contains(char::is_whitespace))
    {
        return vec![format!("an option takes one value; for two, repeat it: {option} {second}")];
    }
    let tip = match command.get_name() {
        "heads" if wrong.contains(char::is_whitespace) => Some(format!(
            "it measures on random tokens; heads on a text: gpt2 attention {}",
            quoted(&[wrong])
        )),
        "score" => {
            Some("for several files, name their folder, or join them: cat FILES | gpt2 score -".into())
        }
        "quantize" => Some(format!("name the file to write with its option: --out {wrong}")),
        _ => None,
    };
    if let Some(tip) = tip {
        return vec![tip];
    }
    let takes_text = |arg: &Arg| ["prompt", "clean", "text"].contains(&arg.get_id().as_str());
    let Some(at) = at.filter(|_| command.get_positionals().any(takes_text)) else {
        return vec![];
    };
    let after = args[at..].iter().take_while(is_word).count();
    let first = at - before;
    let is_value = first > 0 && before > 1 && takes_value(command, &args[first - 1]);
    let words: Vec<&str> =
        args[first + usize::from(is_value)..at + after].iter().map(String::as_str).collect();
    let texts = if command.get_positionals().count() > 1 {
        "\"one text\" \"another\"".into()
    } else {
        quoted(&words)
    };
    vec![format!("put a text of several words in quotes: {} {texts}", path_of(command))]
}

/// Whether the argument behind this one is its value.
fn takes_value(command: &Command, option: &str) -> bool {
    let named = |arg: &&Arg| match option.strip_prefix("--") {
        Some(long) => {
            arg.get_long() == Some(long) || arg.get_visible_aliases().is_some_and(|all| all.contains(&long))
        }
        None => arg.get_short().is_some_and(|short| option.ends_with(short)),
    };
    let arg = command.get_arguments().find(named);
    arg.is_some_and(|arg| {
        !arg.is_require_equals_set() && arg.get_num_args().is_some_and(|n| n.takes_values())
    })
}

/// Whether someone who typed one of the names probably meant the other.
fn are_alike(typed: &str, name: &str) -> bool {
    let start = typed.chars().zip(name.chars()).take_while(|(a, b)| a == b).count();
    strsim::osa_distance(typed, name) <= typed.chars().count() / 3 || start >= 5
}

fn path_of(command: &Command) -> String {
    command.get_bin_name().unwrap_or(command.get_name()).to_owned()
}

/// Words as a shell takes them for one.
fn quoted(words: &[&str]) -> String {
    format!("\"{}\"", words.join(" "))
}

/// Four of some names at most: the first, and how many others there are.
fn some(mut names: Vec<String>) -> Vec<String> {
    const MOST: usize = 4;
    if names.len() > MOST {
        let others = names.split_off(MOST - 1).len();
        names.push(format!("{others} other commands"));
    }
    names
}
