//! The user loses no file: outputs never replace the run's inputs, replace existing files only with `--overwrite`, and
//! are written whole or not at all.

use super::{ODD, Run, command, gpt2, signal, spawn, wait_for_lines, words};
use crate::common::Result;
use crate::folder::{Folder, assert_says};
use crate::stdin_stdout::into_nothing;
#[cfg(target_os = "linux")]
use crate::stdin_stdout::onto_a_full_disk;
use std::path::PathBuf;
#[cfg(unix)]
use std::process::{Command, Stdio};
#[cfg(unix)]
use std::time::{Duration, Instant};

const IDS: [&str; 4] = ["--ids", "1,2,3", "--device", "cpu"];

/// Paths to `name` in the folder: its own name, one through `..`, and a link and a hard link to it in `elsewhere`.
fn names_of(folder: &Folder, name: &str, elsewhere: &Folder) -> Result<Vec<PathBuf>> {
    let path = folder.file(name);
    let own = folder.path().file_name().ok_or("a name")?;
    let link = elsewhere.file(&format!("link-{name}"));
    let second = elsewhere.file(name);
    std::fs::hard_link(&path, &second)?;
    #[cfg(unix)]
    std::os::unix::fs::symlink(&path, &link)?;
    #[cfg(not(unix))]
    std::fs::hard_link(&path, &link)?;
    Ok(vec![path.clone(), folder.path().join("..").join(own).join(name), link, second])
}

#[test]
fn no_output_replaces_a_file_of_the_model_by_any_name() -> Result {
    for (from, files) in [
        ("odd", &["config.json", "model.safetensors"][..]),
        ("pickle", &["config.json", "pytorch_model.bin"]),
    ] {
        let folder = Folder::of(from)?;
        let elsewhere = Folder::empty()?;
        let model = folder.dir();
        for name in files {
            let before = std::fs::read(folder.file(name))?;
            for path in names_of(&folder, name, &elsewhere)? {
                let path = path.display().to_string();
                let tensors = path.ends_with(".safetensors").then_some(["forward", "--export"]);
                for option in [["generate", "--html"], ["attention", "--html"]].into_iter().chain(tensors) {
                    let run =
                        gpt2(&[&option[..], &[&path, "--overwrite", "--model", &model], &IDS].concat())?;
                    run.refused(1, &[option[1], &path, "a file of the model", "which this run reads"]);
                    assert_eq!(std::fs::read(folder.file(name))?, before, "{path}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn no_output_replaces_the_prompt_the_text_or_the_model_that_is_trained_further() -> Result {
    let folder = Folder::empty()?;
    folder.write("page.html", "1, 2 and 3")?;
    let page = folder.at("page.html");
    gpt2(&["attention", "--file", &page, "--html", &page, "--overwrite"])?
        .refused(1, &["--html", "is the prompt"]);
    #[cfg(unix)]
    {
        let prompt = std::fs::File::open(&page)?;
        let mut piped = command(&["attention", "--html", &page, "--overwrite"]);
        Run::of(piped.stdin(prompt))?.refused(1, &["--html", "is the prompt"]);
    }
    folder.write("text.csv", "To be, or not to be. ".repeat(50))?;
    let out = folder.at("out");
    let metrics = folder.at("text.csv");
    let train = ["train", "--text", &metrics, "--steps", "1", "--n-positions", "8", "--overwrite"];
    gpt2(&[&train[..], &["--out", &out, "--metrics", &metrics]].concat())?
        .refused(1, &["--metrics", "is the text"]);
    let model = Folder::of("odd")?;
    let base = model.dir();
    gpt2(&["train", "--text", &metrics, "--steps", "1", "--overwrite", "--out", &base, "--model", &base])?
        .refused(1, &["--out", "is the folder of the model"]);
    assert_eq!(folder.names()?, ["page.html", "text.csv"]);
    assert_eq!(std::fs::read_to_string(folder.file("page.html"))?, "1, 2 and 3");
    Ok(())
}

#[test]
fn nothing_is_put_into_the_hubs_cache_or_among_the_models_files() -> Result {
    let folder = Folder::of("odd")?;
    let cache = Folder::empty()?;
    let model = folder.dir();
    let dir = cache.dir();
    std::fs::create_dir(cache.file("blobs"))?;
    // A folder that contains a cache does not belong to it.
    let export = |path: &str| {
        let args = ["attention", "--model", &model, "--cache-dir", &dir, "--export", path];
        gpt2(&[&args[..], &IDS].concat())
    };
    export(&cache.at("w.npy"))?.succeeded();
    export(&cache.at("blobs/w.npy"))?.refused(1, &["--export", "cache of the Hub's models"]);
    export(&folder.at("tokenizer.json"))?.refused(1, &["--export", "would become part of the model"]);
    assert!(!folder.file("tokenizer.json").exists());
    assert_eq!(std::fs::read_dir(cache.file("blobs"))?.count(), 0);
    Ok(())
}

/// Each option that writes a file, with a name that it accepts.
const OUTPUTS: [(&str, &str, &str); 10] = [
    ("attention", "--export", "w.safetensors"),
    ("attention", "--export", "w.npy"),
    ("attention", "--export", "w.jsonl"),
    ("attention", "--export", "w.json"),
    ("attention", "--picture", "w.png"),
    ("attention", "--picture", "w.svg"),
    ("attention", "--picture", "w.pdf"),
    ("generate", "--html", "g.html"),
    ("attention", "--html", "w.html"),
    ("forward", "--export", "logits.safetensors"),
];

#[test]
fn existing_files_are_replaced_with_overwrite_alone() -> Result {
    for (what, option, name) in OUTPUTS {
        let folder = Folder::empty()?;
        let path = folder.at(name);
        let args = [&[what, option, &path, "--model", ODD][..], &IDS].concat();
        folder.write(name, "{\"somebody\": \"else's\"}\n")?;
        gpt2(&args)?.refused(1, &[option, name, "already exists", "--overwrite"]);
        assert_eq!(std::fs::read_to_string(folder.file(name))?, "{\"somebody\": \"else's\"}\n");
        gpt2(&[&args[..], &["--overwrite"]].concat())?.succeeded();
        let ours = std::fs::read(folder.file(name))?;
        gpt2(&args)?.refused(1, &[option, name, "already exists", "--overwrite"]);
        assert_eq!(std::fs::read(folder.file(name))?, ours);
        // An empty file, as mktemp makes it, holds nothing to lose.
        folder.write(name, "")?;
        gpt2(&args)?.succeeded();
        assert_eq!(std::fs::read(folder.file(name))?, ours, "{name}: the same command gave other bytes");
        assert_eq!(folder.names()?, [name]);
    }
    Ok(())
}

#[test]
fn outputs_with_one_name_or_in_no_folder_are_refused_before_any_is_written() -> Result {
    let folder = Folder::empty()?;
    let at = |name: &str| folder.at(name);
    for (args, says) in [
        (["--picture", &at("x.svg"), "--html", &at("./x.svg")], ["--html", "the same file as --picture"]),
        (["--export", &at("w.npy"), "--picture", &at("nowhere/w.png")], ["nowhere", "make it first"]),
    ] {
        gpt2(&[&["attention", "--model", ODD][..], &args, &IDS].concat())?.refused(1, &says);
        assert!(folder.names()?.is_empty());
    }
    Ok(())
}

#[test]
fn a_failed_training_run_leaves_no_folder_and_no_metrics() -> Result {
    let folder = Folder::empty()?;
    folder.write("text.txt", "too short")?;
    let input = folder.at("text.txt");
    let out = folder.at("a/b/c");
    let metrics = folder.at("loss.csv");
    gpt2(&["train", "--text", &input, "--out", &out, "--metrics", &metrics])?.refused(1, &["too short"]);
    assert_eq!(folder.names()?, ["text.txt"]);
    Ok(())
}

#[test]
#[cfg(target_os = "linux")]
fn where_the_result_cannot_be_printed_no_file_is_written() -> Result {
    let folder = Folder::empty()?;
    let path = folder.at("w.npy");
    let args = ["attention", "--json", "--export", &path, "O Romeo"];
    onto_a_full_disk(&args)?.refused(1, &["standard output", "No space left", "make room"]);
    assert!(folder.names()?.is_empty());
    // It is not a failure if a reader has seen enough.
    assert_eq!(into_nothing(&args)?.code, 0);
    assert_eq!(folder.names()?, ["w.npy"]);
    Ok(())
}

#[test]
fn a_text_that_is_not_utf_8_is_refused_with_the_byte_and_the_remedy() -> Result {
    let folder = Folder::empty()?;
    folder.write("latin1.txt", b"caf\xe9")?;
    let path = folder.at("latin1.txt");
    gpt2(&["forward", "--file", &path])?.refused(1, &["latin1.txt", "byte 3 is 0xe9", "iconv"]);
    let stdin = std::fs::File::open(folder.file("latin1.txt"))?;
    let run = Run::of(command(&["forward"]).stdin(stdin))?;
    run.refused(1, &["standard input", "byte 3 is 0xe9", "iconv"]);
    let run = gpt2(&["train", "--text", &path, "--out", &folder.at("out")])?;
    assert_says("stderr", &run.stderr, &["byte 3 is 0xe9"]);
    assert_eq!(folder.names()?, ["latin1.txt"]);
    Ok(())
}

/// The first place to look for them.
#[test]
fn metrics_may_lie_in_the_new_folder_of_the_model() -> Result {
    let folder = Folder::empty()?;
    folder.write("text.txt", "To be, or not to be. ".repeat(60))?;
    let input = folder.at("text.txt");
    let out = folder.at("out");
    let metrics = folder.at("out/loss.csv");
    let size = words("--n-layer 1 --n-head 1 --n-embd 8 --n-positions 8 --vocab-size 260");
    let args = ["train", "--text", &input, "--out", &out, "--metrics", &metrics, "--steps", "2"];
    gpt2(&[&args[..], &size].concat())?.succeeded();
    assert_eq!(std::fs::read_to_string(folder.file("out/loss.csv"))?.lines().count(), 3);
    // It does not append to somebody else's table.
    folder.write("out/training-state.safetensors", "a state")?;
    for (name, rows) in [
        ("theirs.csv", "step,price\n1,2\n"),
        ("cut.csv", "step,loss\n1,2\n"),
        ("theirs.jsonl", "{\"step\":1,\"loss\":2.5}\n"),
        ("longer.jsonl", "{\"step\":1,\"loss\":2,\"val_loss\":null,\"lr\":1,\"grad_norm\":1,\"time\":2}\n"),
    ] {
        folder.write(name, rows)?;
        let theirs = folder.at(name);
        let args = ["train", "--text", &input, "--out", &out, "--metrics", &theirs, "--resume"];
        let run = gpt2(&[&args[..], &size].concat())?;
        run.refused(1, &[name, "table of metrics"]);
        assert!(!run.stderr.contains("--overwrite"), "which does not go with --resume: {}", run.stderr);
        assert_eq!(std::fs::read_to_string(folder.file(name))?, rows);
    }
    Ok(())
}

#[test]
#[cfg(unix)]
fn training_writes_through_no_link_into_the_hubs_cache() -> Result {
    let folder = Folder::empty()?;
    let cache = Folder::empty()?;
    folder.write("text.txt", "To be, or not to be. ".repeat(60))?;
    std::fs::create_dir_all(cache.file("models--gpt2/blobs"))?;
    std::fs::create_dir(folder.file("out"))?;
    let blob = cache.file("models--gpt2/blobs/abc");
    std::os::unix::fs::symlink(&blob, folder.file("out/model.safetensors"))?;
    let input = folder.at("text.txt");
    let out = folder.at("out");
    let dir = cache.dir();
    let args = ["train", "--text", &input, "--out", &out, "--cache-dir", &dir, "--steps", "1"];
    gpt2(&args)?.refused(1, &["model.safetensors", "already"]);
    gpt2(&[&args[..], &["--overwrite"]].concat())?.refused(1, &["--out", "cache of the Hub's models"]);
    assert!(!blob.exists());
    Ok(())
}

#[test]
fn two_files_are_replaced_together_and_one_with_two_names_is_refused() -> Result {
    let folder = Folder::empty()?;
    let png = folder.at("w.png");
    let html = folder.at("w.html");
    let args = ["attention", "--picture", &png, "--html", &html, "--model", ODD];
    for _ in 0..2 {
        gpt2(&[&args[..], &IDS, &["--overwrite"]].concat())?.succeeded();
    }
    std::fs::remove_file(folder.file("w.html"))?;
    std::fs::hard_link(folder.file("w.png"), folder.file("w.html"))?;
    let run = gpt2(&[&args[..], &IDS, &["--overwrite"]].concat())?;
    #[cfg(unix)]
    run.refused(1, &["--html", "the same file as --picture"]);
    #[cfg(not(unix))]
    drop(run);
    Ok(())
}

#[test]
#[cfg(unix)]
fn the_file_that_the_result_is_printed_to_is_no_output() -> Result {
    let folder = Folder::empty()?;
    let path = folder.at("w.json");
    let args = [&["attention", "--json", "--export", &path, "--model", ODD][..], &IDS].concat();
    let printed = std::fs::File::create(folder.file("w.json"))?;
    let run = Run::of(command(&args).stdout(printed))?;
    assert_eq!(run.code, 1, "{run:?}");
    assert_says("stderr", &run.stderr, &["--export", "the result is printed to"]);
    Ok(())
}

/// Two runs that write one file without --overwrite: the first one's stays, and the second is told.
#[test]
#[cfg(unix)]
fn of_two_writers_the_second_is_refused() -> Result {
    let folder = Folder::empty()?;
    let pipe = folder.at("pipe");
    let pairs = gpt2(&["pairs", "induction", "--count", "3"])?.succeeded().stdout;
    folder.write("pairs.jsonl", &pairs)?;
    assert!(Command::new("mkfifo").arg(&pipe).status()?.success());
    let out = folder.at("c.json");
    let discover = |from: &str| {
        let args = ["discover", "--pairs", from, "--edges", "5", "--out", &out].map(str::to_owned);
        command(&args.each_ref().map(String::as_str))
    };
    // It looks for the file before it reads the pairs.
    let log = folder.file("stderr");
    let mut late = discover(&pipe);
    let mut late = late.stdout(Stdio::null()).stderr(std::fs::File::create(&log)?).spawn()?;
    let started = Instant::now();
    while !std::fs::read_to_string(&log)?.contains("waiting for a program") {
        assert!(started.elapsed() < Duration::from_secs(30), "it reads no pairs");
        std::thread::sleep(Duration::from_millis(10));
    }
    Run::of(discover(&folder.at("pairs.jsonl")))?.succeeded();
    let first = std::fs::read(&out)?;
    std::fs::write(&pipe, pairs.lines().next().unwrap_or_default())?;
    assert_eq!(late.wait()?.code(), Some(1));
    assert_says(
        "the second",
        &std::fs::read_to_string(&log)?,
        &["c.json", "another program has written it meanwhile"],
    );
    assert!(std::fs::read(&out)? == first);
    // A folder has a lock.
    let text = folder.at("text.txt");
    folder.write("text.txt", "O Romeo, Romeo!\n".repeat(2000))?;
    let args = [
        "train",
        "--text",
        &text,
        "--out",
        &folder.at("t"),
        "--steps",
        "100000",
        "--metrics",
        &folder.at("m.csv"),
    ];
    let child = spawn(command(&args))?;
    wait_for_lines(&folder.file("m.csv"), 2)?;
    let second = ["train", "--text", &text, "--out", &folder.at("t"), "--steps", "2"];
    gpt2(&second)?.refused(1, &["another run writes to this folder"]);
    signal("INT", child.id())?;
    assert_eq!(Run::end_of(child)?.code, 130);
    Ok(())
}
