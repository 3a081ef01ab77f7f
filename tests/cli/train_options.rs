//! The optimizers, schedules, data and reports of `gpt2 train`.

use super::train::{SHORT, arguments, text, train};
use super::{Run, command, gpt2, number, signal, spawn, wait_for_lines};
use crate::common::Result;
use crate::folder::{Folder, assert_says, names_in};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The lines of a run's metrics.
fn lines(folder: &Folder, name: &str) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(folder.file(name))?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn bytes(folder: &Folder, out: &str) -> Result<Vec<u8>> {
    Ok(std::fs::read(folder.file(out).join("model.safetensors"))?)
}

/// The numbers in the note about the data: how many tokens to learn, and how many for validation.
fn tokens(run: &Run) -> Result<[usize; 2]> {
    let line = run.stderr.lines().find(|line| line.contains(" tokens to learn, ")).ok_or("a note")?;
    let words: Vec<&str> = line.split(' ').collect();
    Ok([words[0].parse()?, words[4].parse()?])
}

#[test]
fn epochs_are_passes_over_the_text_and_the_work_is_told_before_it_begins() -> Result {
    let folder = Folder::empty()?;
    let metrics = folder.at("m.jsonl");
    let run = train(&folder, "model", &["--epochs", "2", "--metrics", &metrics])?.succeeded();
    // Two rows of 16 tokens a step.
    let steps = (2 * tokens(&run)?[0]).div_ceil(32);
    assert_eq!(lines(&folder, "m.jsonl")?.len(), steps);
    let told = format!("{steps} steps of 32 tokens, 2.0 epochs: ");
    assert_says("stderr", &run.stderr, &[&told, " of memory", "bits per byte"]);
    let of_line = |begin: &str| run.stderr.lines().position(|line| line.starts_with(begin));
    assert!(of_line(&told) < of_line("step 4:"), "{}", run.stderr);
    train(&folder, "other", &["--epochs", "2", "--steps", "3"])?.refused(2, &["--epochs", "--steps"]);
    train(&folder, "other", &["--epochs", "1e12"])?.refused(1, &["--epochs", "steps, expected 1 to"]);
    train(&folder, "other", &["--epochs", "0"])?.refused(2, &["--epochs", "above 0"]);
    Ok(())
}

/// Compares the most memory that Linux counts for a process with the run's own estimate. The shares of weights, blocks
/// and logits differ between these; an allocator's own memory and the text's tokens are not counted.
#[test]
#[cfg(target_os = "linux")]
fn the_memory_is_near_what_was_told() -> Result {
    let folder = Folder::empty()?;
    folder.write("text.txt", text().repeat(6))?;
    let text = folder.at("text.txt");
    let out = folder.at("model");
    for more in [
        &["--n-layer", "4"][..],
        &["--n-layer", "8", "--optimizer", "muon"],
        &["--n-layer", "4", "--recompute"],
        &["--n-layer", "2", "--n-embd", "256", "--batch", "16", "--accumulate", "2"],
    ] {
        let metrics = folder.file("m.csv");
        let table = metrics.display().to_string();
        let fixed = ["train", "--text", &text, "--out", &out, "--overwrite", "--metrics", &table];
        let sizes = ["--steps", "9999", "--n-positions", "128", "--vocab-size", "400", "--threads", "1"];
        let child = spawn(command(&[&fixed[..], &sizes, more].concat()))?;
        wait_for_lines(&metrics, 4)?;
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()))?;
        signal("TERM", child.id())?;
        let run = Run::end_of(child)?;
        std::fs::remove_file(&metrics)?;
        let word = |text: &str, after: &str| {
            text.split(after).nth(1).and_then(|rest| rest.split_whitespace().next()).map(str::parse::<f64>)
        };
        let found = word(&status, "VmHWM:").ok_or("a peak")?? / 1024.0;
        let told = word(&run.stderr, "and about ").ok_or("an estimate")??;
        assert!((told / found - 1.0).abs() < 0.25, "{more:?}: {told} MiB told, {found} MiB found");
    }
    Ok(())
}

#[test]
fn the_rates_follow_their_schedule() -> Result {
    let folder = Folder::empty()?;
    let metrics = folder.at("m.jsonl");
    let fixed = ["--steps", "10", "--lr", "0.01", "--metrics", &metrics, "--overwrite"];
    for (schedule, expected) in [
        ("linear", [0.005, 0.01, 0.01, 0.00875, 0.0075, 0.00625, 0.005, 0.00375, 0.0025, 0.00125]),
        ("trapezoid", [0.005, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.005]),
    ] {
        train(&folder, "model", &[&fixed[..], &["--schedule", schedule]].concat())?.succeeded();
        let rates: Vec<f64> = lines(&folder, "m.jsonl")?.iter().map(|line| number(&line["lr"])).collect();
        let apart = rates.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(rates.len() == 10 && apart < 1e-12, "{schedule}: {rates:?}");
    }
    Ok(())
}

#[test]
fn muon_learns_resumes_and_does_not_depend_on_the_threads() -> Result {
    let folder = Folder::empty()?;
    let fixed = ["--optimizer", "muon", "--steps", "12"];
    let one = train(&folder, "one", &[&fixed[..], &["--threads", "1"]].concat())?.succeeded();
    train(&folder, "two", &[&fixed[..], &["--threads", "2"]].concat())?.succeeded();
    train(&folder, "adamw", &["--steps", "12", "--threads", "1"])?.succeeded();
    assert!(bytes(&folder, "one")? == bytes(&folder, "two")?, "the threads change bits");
    assert!(bytes(&folder, "one")? != bytes(&folder, "adamw")?, "the optimizer changes nothing");
    let loss = |step: &str| -> Result<f64> {
        let line = one.stderr.lines().find(|line| line.starts_with(step)).ok_or("a note")?;
        let after = line.split("validation ").nth(1).ok_or("a validation")?;
        Ok(after.split(',').next().ok_or("a loss")?.parse()?)
    };
    assert!(loss("step 12:")? < loss("step 4:")? - 0.05, "{}", one.stderr);
    train(&folder, "other", &["--muon-lr", "0.1", "--steps", "1"])?
        .refused(1, &["--muon-lr: is 0.1, expected no number without Muon"]);
    let text = folder.at("text.txt");
    let out = folder.at("other");
    let adapter = ["--optimizer", "muon", "--model", "demo", "--lora", "2", "--window", "8"];
    gpt2(&[&["train", "--text", &text, "--out", &out], &adapter[..]].concat())?
        .refused(1, &["--optimizer: is muon, expected adamw for an adapter"]);
    Ok(())
}

#[test]
#[allow(clippy::cast_possible_truncation)] // ids below 290
fn a_model_without_a_tokenizer_learns_from_ids() -> Result {
    let folder = Folder::empty()?;
    let ids: Vec<u16> = (0..900u32).map(|i| ((i * i + i / 7) % 290) as u16).collect();
    folder.write("ids.txt", format!("{ids:?}"))?;
    folder.write("ids.bin", ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>())?;
    let mut outs = vec![];
    for (file, out) in [("ids.txt", "of-text"), ("ids.bin", "of-bytes")] {
        let ids = folder.at(file);
        let path = folder.at(out);
        let args = arguments("-", &path, &[&SHORT[..], &["--steps", "8", "--num-samples", "1"]].concat());
        let args: Vec<&str> =
            args.into_iter().map(|word| if word == "--text" { "--ids" } else { word }).collect();
        let args: Vec<&str> =
            args.into_iter().map(|word| if word == "-" { &ids[..] } else { word }).collect();
        let run = gpt2(&args)?.succeeded();
        assert_says(
            "stderr",
            &run.stderr,
            &["810 tokens to learn, 90 for validation", "next: gpt2 generate --ids 0,1,4 --model"],
        );
        assert!(!run.stderr.contains("bits per byte"), "there are no bytes: {}", run.stderr);
        assert_eq!(names_in(&folder.file(out))?, ["config.json", "loss.png", "model.safetensors"]);
        outs.push(bytes(&folder, out)?);
    }
    assert!(outs[0] == outs[1], "the two files hold the same ids");

    let base = folder.at("of-text");
    let out = folder.at("tuned");
    let ids = folder.at("ids.bin");
    let fixed = ["train", "--model", &base, "--out", &out, "--steps", "2", "--batch", "2"];
    gpt2(&[&fixed[..], &["--ids", &ids]].concat())?.succeeded();
    folder.write("text.txt", text())?;
    gpt2(&[&fixed[..], &["--text", &folder.at("text.txt"), "--overwrite"]].concat())?
        .refused(1, &["tokenizer"]);
    folder.write("bad.txt", "1 2 x")?;
    gpt2(&[&fixed[..], &["--ids", &folder.at("bad.txt"), "--overwrite"]].concat())?
        .refused(1, &["bad.txt", "\"x\" is no token id (number 3)"]);
    folder.write("large.txt", "1 2 3 4000 ".repeat(99))?;
    gpt2(&[&fixed[..], &["--ids", &folder.at("large.txt"), "--overwrite"]].concat())?
        .refused(1, &["token 4000", "--vocab-size"]);
    Ok(())
}

#[test]
fn samples_show_what_the_model_writes_and_change_no_byte_of_it() -> Result {
    let folder = Folder::empty()?;
    train(&folder, "plain", &["--steps", "8"])?.succeeded();
    let more = ["--steps", "8", "--num-samples", "2", "--sample-prompt", "Line 7", "--sample-tokens", "5"];
    let run = train(&folder, "shown", &more)?.succeeded();
    assert!(bytes(&folder, "plain")? == bytes(&folder, "shown")?, "samples change the training");
    let samples = run.stderr.lines().filter(|line| line.starts_with("    | Line 7")).count();
    assert_eq!(samples, 4, "two after each of two validations: {}", run.stderr);
    let again = train(&folder, "again", &more)?.succeeded();
    let texts = |run: &Run| -> Vec<String> {
        run.stderr.lines().filter(|line| line.starts_with("    |")).map(str::to_owned).collect()
    };
    assert_eq!(texts(&run), texts(&again));
    let long = "Line ".repeat(30);
    train(&folder, "long", &["--steps", "1", "--num-samples", "1", "--sample-prompt", &long])?
        .refused(1, &["--sample-prompt: has ", "expected 1 to 15"]);
    Ok(())
}

#[test]
fn another_text_validates() -> Result {
    let folder = Folder::empty()?;
    folder.write("other.txt", "The mad king speaks of an old play.\n".repeat(20))?;
    let other = folder.at("other.txt");
    let run = train(&folder, "model", &["--steps", "4", "--val-text", &other])?.succeeded();
    let whole = tokens(&train(&folder, "split", &["--steps", "4"])?.succeeded())?;
    let found = tokens(&run)?;
    assert_eq!(found[0], whole[0] + whole[1], "all of the text is learned");
    assert!(found[1] > 16 && found[1] != whole[1]);
    train(&folder, "both", &["--val-text", &other, "--val-fraction", "0.2"])?.refused(2, &["--val-text"]);
    let out = folder.at("again");
    let nowhere = folder.at("nowhere.txt");
    gpt2(&arguments(&other, &out, &["--val-text", &nowhere]))?
        .refused(1, &["cannot read the validation text", "nowhere.txt"]);
    Ok(())
}

#[test]
fn the_curve_is_drawn_where_it_is_asked_for_and_the_next_command_runs() -> Result {
    let folder = Folder::empty()?;
    let picture = folder.at("curve.svg");
    let run = train(&folder, "my model", &["--steps", "4", "--picture", &picture])?.succeeded();
    assert!(std::fs::read_to_string(&picture)?.contains("<svg"));
    let out = folder.at("my model");
    assert_says("stderr", &run.stderr, &[&format!("next: gpt2 generate 'Line 0 of' --model '{out}'")]);
    gpt2(&["generate", "--model", &out, "-n2", "Line 0 of"])?.succeeded();
    train(&folder, "other", &["--steps", "4", "--picture", &picture])?
        .refused(1, &["--picture", "already exists", "--overwrite"]);
    train(&folder, "other", &["--steps", "4", "--picture", &folder.at("curve.bmp")])?
        .refused(1, &["--picture", ".png, .svg or .pdf"]);
    train(&folder, "other", &["--steps", "4", "--overwrite", "--picture", &folder.at("text.txt")])?
        .refused(1, &["--picture"]);
    Ok(())
}

#[test]
fn a_model_that_learns_further_has_its_own_defaults() -> Result {
    let folder = Folder::empty()?;
    folder.write("text.txt", text())?;
    let text = folder.at("text.txt");
    let metrics = folder.at("m.jsonl");
    let fixed =
        ["train", "--text", &text, "--model", "demo", "--window", "32", "--batch", "1", "--steps", "4"];
    let cases = [(&[][..], 1e-4), (&["--lora", "2"], 1e-3), (&["--lr", "0.5e-4"], 0.5e-4)];
    for (i, (more, expected)) in cases.into_iter().enumerate() {
        let out = folder.at(&format!("tuned{i}"));
        let all = [&fixed[..], &["--out", &out, "--metrics", &metrics, "--overwrite"], more].concat();
        gpt2(&all)?.succeeded();
        let rate = number(&lines(&folder, "m.jsonl")?[0]["lr"]);
        assert!((rate - expected).abs() < 1e-12, "{more:?}: {rate}");
    }
    Ok(())
}

/// The hash is that of tiny Shakespeare as Karpathy's char-rnn has it.
#[test]
fn a_text_to_begin_with_is_the_one_that_the_demo_model_has_learned() -> Result {
    let folder = Folder::empty()?;
    let out = folder.at("my text.txt");
    let run =
        Run::of(command(&["data", "shakespeare", "--out", &out]).env("HF_HUB_OFFLINE", "1"))?.succeeded();
    assert_says("stderr", &run.stderr, &[&format!("next: gpt2 train --text '{out}'")]);
    let hash = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed";
    assert_eq!(hex::encode(Sha256::digest(std::fs::read(&out)?)), hash);
    folder.write("my text.txt", "mine")?;
    gpt2(&["data", "shakespeare", "--out", &out])?.refused(1, &["--overwrite"]);
    assert_eq!(std::fs::read_to_string(&out)?, "mine");
    gpt2(&["data", "shakespeare", "--out", &out, "--overwrite"])?.succeeded();
    gpt2(&["data", "hamlet", "--out", &out])?.refused(2, &["shakespeare"]);
    Ok(())
}
