//! Files made to do harm: the program refuses them within limits of memory and time, and never crashes.

use super::{GPT2, Run, command, gpt2, launched, signal, spawn, stdout};
use crate::common::Result;
use crate::folder::Folder;
use crate::pickles::{Entries, entries, with_pickle, zip};
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs the program with limits of 2 GiB of address space and 10 seconds of CPU time.
#[track_caller]
fn bounded(args: &[&str]) -> Result<Run> {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -v 2097152; ulimit -t 10; ulimit -c 0; exec \"$0\" \"$@\"", GPT2]);
    Run::of(launched(shell, args).env("RAYON_NUM_THREADS", "1"))
}

/// Fails unless the program refuses the folder with exit code 1 and a message that names it or a file in it.
#[track_caller]
fn assert_refused(folder: &Folder) -> Result {
    let model = folder.dir();
    let run = bounded(&["forward", "--ids", "1", "--device", "cpu", "--model", &model])?;
    run.refused(1, &[&model]);
    Ok(())
}

/// A state dictionary with one entry `u`, whose value is what `operations` leave on the stack.
fn dictionary(operations: &[u8]) -> Vec<u8> {
    [b"\x80\x02}X\x01\0\0\0u", operations, b"s."].concat()
}

#[test]
fn the_bounds_leave_room_for_an_honest_model() -> Result {
    for case in ["odd", "pickle"] {
        let folder = Folder::of(case)?;
        let run = bounded(&["forward", "--ids", "1", "--model", &folder.dir()])?.succeeded();
        assert!(run.stdout.contains("next token"), "{run:?}");
    }
    let folder = with_pickle(&dictionary(b"N"))?;
    let run = bounded(&["forward", "--ids", "1", "--model", &folder.dir()])?;
    run.refused(1, &["missing     wte.weight"]);
    Ok(())
}

#[test]
fn a_config_of_four_billion_layers() -> Result {
    let folder = Folder::of("odd")?;
    folder.set_config("n_layer", 4_000_000_000u32.into())?;
    let run = bounded(&["inspect", &folder.dir()])?;
    assert_eq!(run.code, 1, "{run:?}");
    Ok(())
}

#[test]
fn a_pickled_string_of_four_gigabytes() -> Result {
    assert_refused(&with_pickle(&dictionary(b"X\xff\xff\xff\xffabc"))?)
}

#[test]
fn a_pickle_that_doubles_itself() -> Result {
    // Put an object into the memo, get it twice and make a pair: 2^40 objects from a few hundred bytes.
    let mut operations = b")q\x00".to_vec();
    for i in 0..40 {
        operations.extend([b'h', i, b'h', i, 0x86, b'q', i + 1]);
    }
    assert_refused(&with_pickle(&dictionary(&operations))?)
}

#[test]
fn a_pickle_nested_without_end() -> Result {
    let mut operations = b")".to_vec();
    operations.resize(1_000_000, 0x85); // a tuple of a tuple of ..
    assert_refused(&with_pickle(&operations)?)?;
    assert_refused(&with_pickle(&dictionary(&operations))?)
}

#[test]
fn a_storage_beyond_the_end_of_the_file() -> Result {
    let entries: Entries = entries("pickle")?;
    let mut bytes = zip(&entries)?;
    let name = b"pytorch_model/data/28";
    let local = bytes.windows(name.len()).position(|w| w == name).ok_or("there")? - 30;
    bytes[local + 28..local + 30].copy_from_slice(&u16::MAX.to_le_bytes());
    let folder = Folder::of("pickle")?;
    folder.write("pytorch_model.bin", bytes)?;
    assert_refused(&folder)
}

#[test]
fn json_nested_without_end() -> Result {
    for (file, content) in [
        ("config.json", format!("{{\"x\": {}", "[".repeat(1_000_000))),
        ("model.safetensors.index.json", "{\"weight_map\":".repeat(300_000)),
        ("tokenizer.json", "[".repeat(1_000_000)),
    ] {
        let folder = Folder::of("odd")?;
        if file.contains("index") {
            std::fs::remove_file(folder.file("model.safetensors"))?;
        }
        folder.write(file, content)?;
        bounded(&["generate", "--model", &folder.dir(), "text"])?.refused(1, &[&folder.at(file)]);
    }
    Ok(())
}

#[test]
fn a_text_without_end_is_refused_with_the_limit() -> Result {
    let folder = Folder::empty()?;
    let out = folder.at("out");
    for option in ["--text", "--jsonl"] {
        let run = bounded(&["train", option, "/dev/zero", "--out", &out])?;
        run.refused(1, &["the text from /dev/zero", "longer than 268435456 bytes", "shorten"]);
    }
    bounded(&["train", "--ids", "/dev/zero", "--out", &out])?
        .refused(1, &["the ids from /dev/zero", "longer than 268435456 bytes"]);
    folder.write("short.txt", "O Romeo")?;
    bounded(&["train", "--text", &folder.at("short.txt"), "--val-text", "/dev/zero", "--out", &out])?
        .refused(1, &["the validation text from /dev/zero", "longer than 268435456 bytes"]);
    bounded(&["forward", "--file", "/dev/zero"])?.refused(1, &["/dev/zero", "longer than 16777216 bytes"]);
    assert!(!folder.file("out").exists());
    Ok(())
}

/// Whether something becomes true within some seconds.
fn within_seconds(mut is_true: impl FnMut() -> Result<bool>) -> Result<bool> {
    let started = Instant::now();
    while !is_true()? {
        if started.elapsed() > Duration::from_secs(20) {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}

/// A named pipe that no program writes to, and a run that reads it.
#[test]
fn a_pipe_without_a_writer_is_named_and_its_run_can_be_stopped() -> Result {
    let folder = Folder::empty()?;
    let pipe = folder.at("pipe");
    let out = folder.at("out");
    assert!(Command::new("mkfifo").arg(&pipe).status()?.success());
    for args in [
        &["forward", "--file", &pipe][..],
        &["train", "--text", &pipe, "--out", &out],
        &["score", &pipe],
        &["compare", "demo", "demo", "--text", &pipe],
    ] {
        let log = folder.file("stderr");
        let mut child = command(args).stderr(std::fs::File::create(&log)?).spawn()?;
        let waiting = format!("waiting for a program that writes to the pipe {pipe}");
        let told = within_seconds(|| Ok(std::fs::read_to_string(&log)?.contains(&waiting)))?;
        signal("TERM", child.id())?;
        let stopped = within_seconds(|| Ok(child.try_wait()?.is_some()))?;
        if !stopped {
            child.kill()?;
        }
        assert!(told && stopped, "{args:?}: told {told}, stopped by SIGTERM {stopped}");
    }
    // One with a writer is a text like any other.
    let child = spawn(command(&["forward", "--file", &pipe, "--json"]))?;
    std::fs::write(&pipe, "O Romeo\n")?;
    assert_eq!(Run::end_of(child)?.succeeded().stdout, stdout(&["forward", "O Romeo", "--json"])?);
    Ok(())
}

#[test]
fn a_number_of_threads_that_cannot_be_started_is_refused_by_name() -> Result {
    let with = |value: &str| Run::of(command(&["forward", "--ids", "1"]).env("RAYON_NUM_THREADS", value));
    for value in ["100000", "1025", "-1", "all"] {
        with(value)?.refused(1, &[&format!("RAYON_NUM_THREADS={value}: "), "1 to 1024", "--threads"]);
    }
    for value in ["", "0", "3"] {
        with(value)?.succeeded();
    }
    for value in ["100000", "1025", "0"] {
        gpt2(&["forward", "--ids", "1", "--threads", value])?.refused(2, &["--threads", value, "1024"]);
    }
    // The option counts, not the variable.
    let mut both = command(&["forward", "--ids", "1", "--threads", "2"]);
    Run::of(both.env("RAYON_NUM_THREADS", "100000"))?.succeeded();
    // A thread has a stack of 8 MiB, and the limit is 2 GiB.
    let args = ["forward", "--ids", "1", "--threads", "1000"];
    bounded(&args)?.refused(1, &["cannot start 1000 CPU threads", "--threads", "memory"]);
    Ok(())
}
