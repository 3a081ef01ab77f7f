//! The command explains itself: by help, completions, manual pages, notes on stderr, and errors for wrong arguments.

use super::{ODD, Run, command, gpt2, stdout};
use crate::common::Result;
use crate::folder::assert_says;

#[test]
fn help_and_version_are_results() -> Result {
    for args in [&["--help"][..], &["help"], &["attention", "--help"], &["train", "--help"], &["bench", "-h"]]
    {
        let run = gpt2(args)?.succeeded();
        assert!(run.stdout.contains("Usage: gpt2") && run.stderr.is_empty(), "{args:?}: {run:?}");
    }
    let run = gpt2(&["--version"])?.succeeded();
    assert_eq!(run.stdout, format!("gpt2 {}\n", env!("CARGO_PKG_VERSION")));
    Ok(())
}

#[test]
fn every_subcommand_has_examples_in_its_help() -> Result {
    for name in ["attention", "forward", "generate", "inspect", "train", "bench"] {
        let help = stdout(&[name, "--help"])?;
        assert_says(name, &help, &["Example", &format!("gpt2 {name}"), "--device", "--threads", "--seed"]);
    }
    Ok(())
}

/// Every command, and none for the program itself.
fn commands() -> Result<Vec<String>> {
    let help = stdout(&["--help"])?;
    let (_, list) = help.split_once("Commands:\n").ok_or("a list of commands")?;
    let list = list.split("\n\n").next().unwrap_or_default().lines();
    let names =
        list.filter_map(|line| line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty()));
    Ok(names.filter(|name| *name != "help").map(str::to_owned).collect())
}

/// A page of help at a width.
fn help(args: &[&str], columns: usize) -> Result<String> {
    Ok(Run::of(command(args).env("COLUMNS", columns.to_string()))?.succeeded().stdout)
}

/// The lines of a page that name an option.
fn options(help: &str) -> Vec<&str> {
    let (_, body) = help.split_once("Usage: ").unwrap_or_default();
    let lines = body.lines().filter(|line| line.starts_with("  -") || line.starts_with("      --"));
    lines.filter(|line| !line.trim_start().starts_with("--against \" lord\"")).collect()
}

#[test]
fn the_short_help_has_a_dozen_options_and_says_how_to_see_the_rest() -> Result {
    let commands = commands()?;
    assert!(commands.len() > 15, "{commands:?}");
    for name in &commands {
        let short = help(&[name, "-h"], 100)?;
        let long = help(&[name, "--help"], 100)?;
        assert!(short.lines().count() <= 45, "{name}: {} lines", short.lines().count());
        let of_short = options(&short).iter().filter(|line| !line.contains("-h, --help")).count();
        assert!(of_short <= 14, "{name} -h: {of_short} options");
        assert_says(name, &short, &["Example", &format!("gpt2 {name}"), "-h, --help"]);
        // Examples are broken into lines with options, too, so count what is named.
        let hidden = format!("more options: gpt2 {name} --help");
        assert_eq!(short.contains(&hidden), long.contains("\nHugging Face Hub:"), "{name}: {short}");
        assert!(!long.contains(&hidden) && long.contains("General:\n"), "{name}: {long}");
        assert_eq!(help(&["help", name], 100)?, long, "gpt2 help {name}");
    }
    assert!(help(&["attention", "-h"], 100)?.lines().count() < 50);
    assert_says(
        "attention",
        &help(&["attention", "--help"], 100)?,
        &["--fragment", "Interventions:", "--tf32"],
    );
    Ok(())
}

#[test]
fn no_heading_of_the_help_has_more_options_than_a_reader_takes_in() -> Result {
    for name in commands()? {
        let long = help(&[&name, "--help"], 100)?;
        let (long, _) = long.split_once("\nExample").unwrap_or((&long, ""));
        let mut heading = ("", 0);
        for line in long.lines() {
            if !line.starts_with(' ') && line.ends_with(':') {
                heading = (line, 0);
            }
            heading.1 += usize::from(line.starts_with("  -") || line.starts_with("      --"));
            assert!(heading.1 <= 13, "gpt2 {name} --help: {} has more than 13 options", heading.0);
        }
    }
    Ok(())
}

#[test]
fn help_wraps_at_the_width_of_the_terminal_and_examples_stay_whole() -> Result {
    let commands = commands()?;
    let pages = commands.iter().flat_map(|name| [vec![name.as_str(), "-h"], vec![name, "--help"]]);
    for page in pages.chain([vec!["-h"], vec!["--help"]]) {
        let mut examples = vec![];
        for columns in [80, 100, 120] {
            let help = help(&page, columns)?;
            let lines: Vec<&str> = help.lines().collect();
            for line in &lines {
                assert!(line.chars().count() <= columns, "{page:?} at {columns}: {line:?}");
            }
            for pair in lines.windows(2) {
                // Two lines of one paragraph: the next word had no room.
                let [line, next] = [pair[0], pair[1]];
                let prose =
                    |line: &str| line.starts_with(|c: char| c.is_alphabetic()) && !line.starts_with("Usage");
                if prose(line) && prose(next) && !line.ends_with(':') {
                    let word = next.split(' ').next().unwrap_or_default();
                    let used = line.chars().count() + 1 + word.chars().count();
                    assert!(used > columns, "{page:?} at {columns} breaks {line:?} before {word:?}");
                }
            }
            let (_, list) = help.split_once("\nExample").ok_or("examples")?;
            let list = list.split("\n\n").next().unwrap_or_default().replace("\\\n", " ");
            let commands = list.lines().skip(1).map(|line| line.split("# ").next().unwrap_or_default());
            let commands = commands.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
            examples.push(commands.filter(|line| !line.is_empty()).collect::<Vec<_>>());
        }
        assert!(
            !examples[0].is_empty() && examples[0] == examples[1] && examples[1] == examples[2],
            "{examples:?}"
        );
    }
    Ok(())
}

#[test]
fn tips_name_what_the_user_meant() -> Result {
    for (line, says, never) in [
        ("generate --n 20", "-n is short for --max-new-tokens", "endpoint"),
        ("generate --max-new-toks 20", "gpt2 generate has --max-new-tokens", "endpoint"),
        ("generate --new-tokens 20", "--new-tokens is an option of gpt2 bench", "endpoint"),
        ("lens --layer 1 x", "--layer is an option of gpt2 attention and generate", "-- --layer"),
        ("verify --ablate 0.3", "--ablate is an option of gpt2 attention", "has --a"),
        ("attention --modle gpt2 x", "gpt2 attention has --model", "-- --modle"),
        ("attention hello world", "in quotes: gpt2 attention \"hello world\"", "-- "),
        ("attention --layer 1 hello big world", "in quotes: gpt2 attention \"hello big world\"", "\"1"),
        ("patch O Romeo O Juliet", "in quotes: gpt2 patch \"one text\" \"another\"", "-- "),
        ("hello world", "gpt2 attention \"hello world\"", "similar"),
        ("atention x", "'attention'", "with a text"),
        ("circuits --composition query", "[possible values: q, k, v]", "similar"),
        ("forward --dtype float16 x", "f16", "similar"),
        ("heads foo", "unexpected argument 'foo'", "quotes"),
        ("version", "gpt2 --version", "gpt2 attention"),
        ("chat", "tip: GPT-2 continues a text", "gpt2 attention"),
        ("foo", "tip: the commands: gpt2 help", "gpt2 attention"),
        ("help foo", "tip: the commands: gpt2 help", "gpt2 attention"),
        ("foo --model gpt2", "tip: the commands: gpt2 help", "gpt2 attention"),
        ("train --lora 4 --text x --out y", "--lora adapts an existing model: give --model", "similar"),
        ("train my.txt", "gpt2 train --text my.txt --out DIR", "-- "),
        ("train my.jsonl", "gpt2 train --jsonl my.jsonl --out DIR", "-- "),
        ("train --out y", "--text <FILE>|--jsonl <FILE>", "tip"),
        ("train --json", "--metrics FILE.jsonl", "--jsonl\n"),
        ("models --model gpt2", "gpt2 attention, live, heads and ", "verify"),
        ("attention --prompt x", "the text stands by itself: gpt2 attention \"TEXT\"", "--from-prompt"),
        ("live --text x --open", "the text stands by itself: gpt2 live \"TEXT\"", "compare"),
        ("live --lesson 7 --open", "live.html#lesson=7", "all options"),
        ("live --output x.html", "gpt2 live has --out\n", "all options"),
        ("attention x --save y.png", "gpt2 attention has --html, --picture and --export", "all options"),
        ("generate x --num-return-sequences 3", "another --seed", "all options"),
        ("forward x --without 0.3", "gpt2 forward has --ablate", "all options"),
        ("compare --model demo --text x", "gpt2 compare demo gpt2 --text FILE", "attention"),
        ("score a.txt b.txt", "cat FILES | gpt2 score -", "-- "),
        ("quantize demo d.gguf", "--out d.gguf", "-- "),
        ("tokenize x", "gpt2 forward \"TEXT\"", "attention"),
        ("generate x -n -5", "unexpected argument '-5'", "digit"),
        ("generate x -n=-5", "'-5' for '--max-new-tokens <N>': expected a whole number", "digit"),
        ("generate x --seed abc", "for '--seed <N>': expected a whole number, 0 or above", "digit"),
        ("generate x --temperature warm", "expected a finite number of at least 0", "literal"),
    ] {
        let run = gpt2(&line.split(' ').collect::<Vec<_>>())?;
        run.refused(2, &[says]);
        assert!(!run.stderr.contains(never), "{line}: {}", run.stderr);
    }
    let run = gpt2(&["What is this?", "--model", "gpt2"])?;
    run.refused(2, &["gpt2 attention \"What is this?\"\n"]);
    let two_values = gpt2(&["forward", "O Romeo", "--ablate", "3.0", "3.3"])?;
    two_values.refused(2, &["for two, repeat it: --ablate 3.3\n"]);
    // One value is all that it takes.
    let run = gpt2(&["forward", "O Romeo", "--top-k", "3", "x"])?;
    assert!(!run.stderr.contains("repeat it"), "{}", run.stderr);
    let text = gpt2(&["heads", "O Romeo"])?;
    text.refused(2, &["it measures on random tokens; heads on a text: gpt2 attention \"O Romeo\""]);
    let run = gpt2(&["forward", "--what is this"])?;
    run.refused(2, &["gpt2 forward -- \"--what is this\""]);
    // The usage is that of the command, not of an option that clap took for the wrong one.
    gpt2(&["generate", "--n", "20"])?.refused(2, &["Usage: gpt2 generate [OPTIONS] [PROMPT]"]);
    Ok(())
}

#[test]
fn help_of_help_is_the_help() -> Result {
    for option in ["-h", "--help"] {
        assert_eq!(stdout(&["help", option])?, stdout(&["help"])?);
        assert_eq!(stdout(&["help", "attention", option])?, stdout(&["help", "attention"])?);
    }
    Ok(())
}

#[test]
fn the_short_help_says_what_its_command_does() -> Result {
    // Without line breaks.
    let page = |name: &str| -> Result<String> {
        Ok(help(&[name, "-h"], 120)?.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    assert_says("generate", &page("generate")?, &["--draft", "--beams", "sooner with a large model"]);
    assert_says(
        "score",
        &page("score")?,
        &["score keeps the newline at the end of a file; forward drops it"],
    );
    assert_says("bench", &page("bench")?, &["[default: random weights of GPT-2 small's shape]"]);
    assert_says("forward", &page("forward")?, &["or demo, which is built in [default: demo]"]);
    Ok(())
}

#[test]
fn a_mistake_shows_no_backtrace() -> Result {
    for args in [&["forward", "--model", ODD, "--ids", "5,101"][..], &["generate", "--ids", "1,999999"]] {
        let run = Run::of(command(args).env("RUST_BACKTRACE", "1"))?;
        run.refused(1, &["token id"]);
        assert!(!run.stderr.contains("candle_core::") && !run.stderr.contains(" 0: "), "{}", run.stderr);
        let run = Run::of(command(args).env("RUST_BACKTRACE", "1").env("RUST_LIB_BACKTRACE", "1"))?;
        assert!(run.stderr.contains("candle_core::"), "who asks for it gets it: {}", run.stderr);
    }
    Ok(())
}

#[test]
fn the_demo_model_says_that_it_is_one_and_how_to_ask_for_another() -> Result {
    for args in [
        &["attention", "O Romeo"][..],
        &["forward", "O Romeo"],
        &["generate", "-n1", "O Romeo"],
        &["inspect"],
    ] {
        let run = gpt2(args)?.succeeded();
        assert_says("stderr", &run.stderr, &["--model gpt2"]);
        assert!(format!("{}{}", run.stderr, run.stdout).contains("tiny-shakespeare"), "{args:?}");
        assert!(!run.stdout.contains("--model gpt2"), "a note among the results: {}", run.stdout);
    }
    Ok(())
}

#[test]
fn a_named_model_on_a_named_device_leaves_stderr_empty() -> Result {
    for name in ["attention", "forward"] {
        let run = gpt2(&[name, "--model", ODD, "--device", "cpu", "--ids", "1,2,3"])?.succeeded();
        assert_eq!(run.stderr, "", "{name}");
        assert!(!run.stdout.is_empty());
    }
    assert_eq!(gpt2(&["inspect", ODD])?.succeeded().stderr, "");
    Ok(())
}

#[test]
fn device_and_model_are_said_once() -> Result {
    let once = |run: &Run, what: &str| {
        let said = format!("{}{}", run.stderr, run.stdout);
        assert_eq!(said.matches(what).count(), 1, "{what}: {said}");
    };
    for name in ["attention", "forward", "lens", "generate"] {
        let run = gpt2(&[name, "O"])?.succeeded();
        once(&run, "tiny-shakespeare");
        once(&run, " on cpu");
        assert!(!run.stderr.contains("device: "), "{}", run.stderr);
    }
    let run = gpt2(&["train", "--text", "/nowhere", "--out", "/nowhere/x"])?;
    assert_says("a command whose result names no device", &run.stderr, &["device: cpu"]);
    Ok(())
}

#[test]
fn any_number_of_threads_gives_the_same_result() -> Result {
    let run =
        |threads| gpt2(&["generate", "--model", ODD, "--ids", "43,97,31,71", "-n9", "--threads", threads]);
    let one = run("1")?.succeeded();
    assert_eq!(one.stdout, run("2")?.succeeded().stdout);
    assert_eq!(one.stdout.split(',').count(), 9, "{}", one.stdout);
    Ok(())
}

#[test]
fn every_shell_gets_completions_of_every_command() -> Result {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let run = gpt2(&["completions", shell])?.succeeded();
        assert_says(shell, &run.stdout, &["attention", "verify-cache", "repeat-fraction"]);
    }
    gpt2(&["completions", "tcsh"])?.refused(2, &["tcsh", "bash"]);
    Ok(())
}

#[test]
fn the_manual_has_a_page_for_each_command() -> Result {
    let page = stdout(&["man"])?;
    assert_says("gpt2", &page, &[".TH gpt2 1", "gpt2\\-attention"]);
    let page = stdout(&["man", "attention"])?;
    assert_says(
        "attention",
        &page,
        &[".TH gpt2-attention 1", "\\-\\-rollout", "NO_COLOR", "NOTES AND EXAMPLES"],
    );
    let page = stdout(&["man", "forward"])?;
    assert_says("forward", &page, &["train or train-features that SIGINT"]);
    assert!(!page.contains("color") && !page.contains("NO_COLOR") && !page.contains("EXTRA"), "{page}");
    gpt2(&["man", "nothing"])?.refused(1, &["no command \"nothing\"", "attention", "verify"]);
    Ok(())
}

#[test]
fn gpt2_alone_and_errors_say_what_to_type_next() -> Result {
    let run = Run::of(command(&[]))?;
    assert_says("help", &run.stderr, &["gpt2 attention \"O Romeo, Romeo!", "start here"]);
    gpt2(&["forward", ""])?.refused(1, &["the prompt is empty", "gpt2 help forward"]);
    let quiet = gpt2(&["--quiet", "forward", ""])?;
    assert!(!quiet.stderr.contains("gpt2 help"), "{}", quiet.stderr);
    quiet.refused(1, &["the prompt is empty"]);
    Ok(())
}

#[test]
fn wrong_arguments_are_exit_code_2() -> Result {
    for args in [
        &[][..],
        &["frobnicate"],
        &["forward", "--frobnicate"],
        &["forward", "--ids"],
        &["forward", "--ids", "1,x"],
        &["forward", "--ids", "-1"],
        &["forward", "--ids", "4294967296"],
        &["forward", "--ids", "1,,2"],
        &["forward", "text", "--ids", "1"],
        &["forward", "text", "--file", "x"],
        &["forward", "--file", "x", "--ids", "1"],
        &["forward", "one", "two"],
        &["forward", "--top-k", "-1", "text"],
        &["forward", "--dtype", "f8", "text"],
        &["forward", "--device", "tpu", "text"],
        &["forward", "--device", "cuda:x", "text"],
        &["forward", "--device", "cpu:0", "text"],
        &["forward", "--threads", "0", "text"],
        &["forward", "--threads", "70000", "text"],
        &["forward", "--seed", "-1", "text"],
        &["attention", "--layer", "3-1", "text"],
        &["attention", "--layer", "1-", "text"],
        &["attention", "--layer", "a", "text"],
        &["attention", "--head", "-1", "text"],
        &["attention", "--color", "sometimes", "text"],
        &["generate", "--greedy", "--temperature", "1", "text"],
        &["generate", "--greedy", "--top-k", "5", "text"],
        &["generate", "--max-new-tokens", "many", "text"],
        &["inspect", ODD, ODD],
        &["bench"],
        &["bench", "everything"],
        &["bench", "core", "--impl", "magic"],
        &["bench", "core", "--runs", "0"],
        &["bench", "core", "--batch", "0"],
        &["bench", "core", "--tokens", "0"],
        &["bench", "core", "--threads", "0"],
        &["train"],
        &["train", "--text", "x"],
        &["train", "--text", "x", "--out", "y", "--threads", "0"],
    ] {
        let run = gpt2(args)?;
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{args:?}: {}", run.stderr);
        assert!(run.stderr.contains("Usage") || run.stderr.contains("--help"), "{args:?}: {}", run.stderr);
    }
    Ok(())
}

#[test]
fn a_wrong_argument_is_named_with_the_reason() -> Result {
    for (args, parts) in [
        (["attention", "--layer", "3-1"], ["3-1", "backwards"]),
        (["attention", "--layer", "a"], ["`a`", "expected N or N-M"]),
        (["forward", "--device", "tpu"], ["tpu", "expected auto, cpu, cuda"]),
        (["forward", "--threads", "0"], ["--threads", "0 is not in 1.."]),
    ] {
        gpt2(&args)?.refused(2, &parts);
    }
    Ok(())
}
