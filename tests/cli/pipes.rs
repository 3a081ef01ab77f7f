//! It is no error if a reader goes away (`| head`).

use super::{Run, case, command};
use crate::common::Result;
use std::process::Stdio;

/// Runs with a stdout whose reader has gone away before the start.
#[track_caller]
fn into_nothing(args: &[&str]) -> Result<Run> {
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    Run::of(command(args).stdout(writer).stderr(Stdio::piped()).spawn()?.wait_with_output()?)
}

#[test]
fn a_closed_pipe_ends_every_subcommand_quietly() -> Result {
    let model = case("odd");
    let odd = ["--model", &model, "--ids", "1,2,3"];
    for args in [
        [&["generate"][..], &odd].concat(),
        [&["generate", "--json"][..], &odd].concat(),
        [&["forward"][..], &odd].concat(),
        [&["forward", "--json"][..], &odd].concat(),
        [&["attention"][..], &odd].concat(),
        [&["attention", "--json"][..], &odd].concat(),
        [&["attention", "--layer", "0"][..], &odd].concat(),
        vec!["generate", "O Romeo"],
        vec!["inspect"],
        vec!["inspect", "--json"],
        vec!["inspect", &model],
        vec!["bench", "forward", "-t4", "-r1", "--model", &model],
        vec!["bench", "forward", "-t4", "-r1", "--json", "--model", &model],
        vec!["--help"],
    ] {
        let run = into_nothing(&args)?;
        assert_eq!(run.code, 0, "{args:?}: {}", run.stderr);
        assert!(!run.stderr.to_lowercase().contains("error"), "{args:?}: {}", run.stderr);
        assert!(!run.stderr.to_lowercase().contains("broken pipe"), "{args:?}: {}", run.stderr);
    }
    Ok(())
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error() -> Result {
    let model = case("odd");
    for args in [
        &["forward", "--ids", "1", "--model", &model][..],
        &["inspect", &model],
        &["attention", "O Romeo", "--json"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full")?;
        let run = Run::of(command(args).stdout(full).stderr(Stdio::piped()).spawn()?.wait_with_output()?)?;
        run.refused(1, &["No space left"]);
    }
    Ok(())
}
