//! The documents that hold code: every command and snippet in them runs.
//!
//! A block marked `console` holds commands after `$ ` and what each prints on stdout. A line `...` stands for any number
//! of lines. Numbers with a decimal point, and percentages, may differ in their last digit, since processors round
//! differently; spaces may differ in number, since columns grow with their numbers.

use super::command;
use crate::common::Result;

/// The pages of `docs` whose `console` blocks are run, and how many commands each has at least.
pub(crate) const PAGES: [(&str, usize); 3] = [("tutorial.md", 8), ("circuits.md", 6), ("features.md", 4)];

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");

/// A command and the lines that it should print.
#[derive(Clone)]
struct Step {
    command: String,
    expected: Vec<String>,
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = vec![];
    let mut inside = false;
    for line in page.lines() {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            _ => match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => {
                    let command = command.to_string();
                    let expected = vec![];
                    steps.push(Step { command, expected });
                }
                (None, Some(step)) => step.expected.push(line.to_string()),
                (None, None) => panic!("{line:?} follows no command"),
            },
        }
    }
    steps
}

/// The words of a command line; some are in double or single quotes.
pub(crate) fn words(line: &str) -> Vec<String> {
    let mut words = vec![];
    let mut word = None::<String>;
    let mut quote = None;
    for c in line.chars() {
        match (c, quote) {
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, Some(open)) if c == open => quote = None,
            (' ', None) => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Whether two words are the same, or numbers that differ by no more than one in the last digit.
fn agree(found: &str, expected: &str) -> bool {
    let bare = |word: &str| word.trim_matches(['(', ')', ',', ';', '±']).trim_end_matches('x').to_string();
    let digits = |word: &str| word.split_once('.').map_or(0, |(_, part)| part.len());
    let a = bare(found);
    let b = bare(expected);
    match (a.parse::<f64>(), b.parse::<f64>()) {
        _ if found == expected => true,
        // .99 and 1.0 are also neighbors.
        (Ok(x), Ok(y)) if digits(&a).min(digits(&b)) > 0 => {
            let last = 10f64.powi(-i32::try_from(digits(&a).max(digits(&b))).unwrap_or(0));
            (x - y).abs() <= 1.01 * last
        }
        _ => false,
    }
}

fn lines_agree(found: &str, expected: &str) -> bool {
    let words =
        |line: &str| line.replace(" %", ".0%").split_whitespace().map(str::to_string).collect::<Vec<_>>();
    let found = words(found);
    let expected = words(expected);
    let percent = |word: &str| word.strip_suffix(".0%")?.parse::<f64>().ok();
    let same = |(found, expected): (&String, &String)| match (percent(found), percent(expected)) {
        (Some(a), Some(b)) => (a - b).abs() <= 1.0,
        _ => agree(found, expected),
    };
    found.len() == expected.len() && found.iter().zip(&expected).all(same)
}

/// Whether the lines are the expected ones; `...` stands for any number of lines.
fn matches(found: &[&str], expected: &[String]) -> bool {
    match expected.split_first() {
        None => found.iter().all(|line| line.trim().is_empty()),
        Some((first, rest)) if first == "..." => (0..=found.len()).any(|skip| matches(&found[skip..], rest)),
        Some((first, rest)) => found
            .split_first()
            .is_some_and(|(line, others)| lines_agree(line, first) && matches(others, rest)),
    }
}

#[test]
fn every_command_prints_what_the_page_shows() -> Result {
    let mut all = vec![];
    for (page, at_least) in PAGES {
        let steps = steps(&std::fs::read_to_string(format!("{DOCS}/{page}"))?);
        assert!(steps.len() >= at_least, "{} commands in {page}", steps.len());
        all.extend(steps.into_iter().map(|step| (page, step)));
    }
    let folder = tempfile::tempdir()?;
    for (page, Step { command: line, expected }) in &all {
        let words = words(line);
        assert_eq!(words[0], "gpt2", "{line}");
        let args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
        // The page's width.
        let output = command(&args).current_dir(folder.path()).env("COLUMNS", "80").output()?;
        let stdout = String::from_utf8(output.stdout)?;
        let stderr = String::from_utf8(output.stderr)?;
        assert!(output.status.success(), "{line}: {stderr}");
        let found: Vec<&str> = stdout.lines().collect();
        assert!(
            matches(&found, expected),
            "$ {line}\nprints\n{stdout}\nbut docs/{page} shows\n{}",
            expected.join("\n")
        );
    }
    Ok(())
}

#[test]
fn the_comparison_allows_a_last_digit_and_nothing_more() {
    for (found, expected) in
        [("0.25", "0.26"), (".53", ".52"), ("(0.123)", "(0.124)"), ("8.1x", "8.2x"), ("a", "a")]
    {
        assert!(agree(found, expected), "{found} and {expected}");
    }
    for (found, expected) in [("0.25", "0.27"), ("0.2", "0.22"), ("12", "13"), ("0.25", "a"), ("b", "a")] {
        assert!(!agree(found, expected), "{found} and {expected}");
    }
    let lines = |text: &str| text.lines().map(str::to_string).collect::<Vec<_>>();
    assert!(matches(&["a", "b 0.1", "c"], &lines("a\n...\nc")));
    assert!(!matches(&["a", "b"], &lines("a\n...\nc")) && !matches(&["a", "b"], &lines("a")));
    assert_eq!(words("gpt2 x \"a 'b' c\" ''"), ["gpt2", "x", "a 'b' c", ""]);
}
