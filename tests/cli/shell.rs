//! `gpt2 completions`, `gpt2 man`, and what to type next.

use super::{Run, command, gpt2};
use crate::common::Result;
use crate::folder::assert_says;

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
    let page = gpt2(&["man"])?.succeeded().stdout;
    assert_says("gpt2", &page, &[".TH gpt2 1", "gpt2\\-attention"]);
    let page = gpt2(&["man", "attention"])?.succeeded().stdout;
    assert_says("attention", &page, &[".TH gpt2-attention 1", "\\-\\-rollout"]);
    gpt2(&["man", "nothing"])?.refused(1, &["no command \"nothing\"", "attention", "verify"]);
    Ok(())
}

#[test]
fn whoever_types_only_gpt2_or_meets_an_error_sees_what_to_type_next() -> Result {
    let run = Run::of(command(&[]).output()?)?;
    assert_says("help", &run.stderr, &["Start here: gpt2 attention \"O Romeo, Romeo!"]);
    gpt2(&["forward", ""])?.refused(1, &["the prompt is empty", "gpt2 help forward"]);
    let quiet = gpt2(&["--quiet", "forward", ""])?;
    assert!(!quiet.stderr.contains("gpt2 help"), "{}", quiet.stderr);
    quiet.refused(1, &["the prompt is empty"]);
    Ok(())
}
