//! How the command explains itself: help, completions, manual pages, notes on stderr, and what it says of wrong
//! arguments.

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

#[test]
fn the_longest_help_fits_two_screens() -> Result {
    let run = Run::of(command(&["help", "attention"]).env("COLUMNS", "120"))?.succeeded();
    assert!(run.stdout.lines().count() <= 100, "{}", run.stdout);
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
        assert_says("stderr", &run.stderr, &["tiny-shakespeare", "--model gpt2"]);
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
fn auto_says_which_device_it_chose() -> Result {
    let run = gpt2(&["forward", "--model", ODD, "--ids", "1"])?.succeeded();
    assert_eq!(run.stderr.lines().filter(|l| l.starts_with("device: ")).count(), 1, "{}", run.stderr);
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
    assert_says("attention", &page, &[".TH gpt2-attention 1", "\\-\\-rollout"]);
    gpt2(&["man", "nothing"])?.refused(1, &["no command \"nothing\"", "attention", "verify"]);
    Ok(())
}

#[test]
fn gpt2_alone_and_errors_say_what_to_type_next() -> Result {
    let run = Run::of(command(&[]))?;
    assert_says("help", &run.stderr, &["Start here: gpt2 attention \"O Romeo, Romeo!"]);
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
