//! Files made to do harm: the program refuses them within limits of memory and time, and never crashes.

use super::{GPT2, Run, launched};
use crate::common::Result;
use crate::folder::Folder;
use crate::pickles::{Entries, entries, with_pickle, zip};
use std::process::Command;

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
