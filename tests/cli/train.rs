//! `gpt2 train`: writes a folder that every other subcommand accepts, the same for the same seed.

use super::{Run, command, gpt2, json, number, signal, spawn, wait_for_lines};
use crate::common::Result;
use crate::folder::{Folder, Raw, assert_says, names_in, read, serialized};
use gpt2_loader::{Checkpoint, Source, Tokenizer};
use safetensors::Dtype;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

/// Enough verses for both parts of the data.
pub(super) fn text() -> String {
    let line = |i: usize| {
        format!("Line {i} of a play in which the {} king speaks.\n", ["old", "young", "mad"][i % 3])
    };
    (0..60).map(line).collect::<Vec<_>>().concat()
}

/// The arguments that train a tiny model on the file `text` into the folder `out`.
pub(super) fn arguments<'a>(text: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let sizes =
        ["--vocab-size", "300", "--n-layer", "1", "--n-head", "2", "--n-embd", "8", "--n-positions", "16"];
    [&["train", "--text", text, "--out", out], &sizes[..], more].concat()
}

/// Small batches, and validations often enough for a few steps.
pub(super) const SHORT: [&str; 6] = ["--batch", "2", "--warmup", "2", "--eval-every", "4"];

/// Reads the lines on a process's stderr up to one that begins so.
#[cfg(unix)]
fn read_up_to(begin: &str, stderr: &mut impl BufRead) -> Result {
    let mut line = String::new();
    while !line.starts_with(begin) {
        line.clear();
        assert!(stderr.read_line(&mut line)? > 0, "it ended before {begin:?}");
    }
    Ok(())
}

/// Trains for a few steps into `out` under `folder`.
pub(super) fn train(folder: &Folder, out: &str, more: &[&str]) -> Result<Run> {
    folder.write("text.txt", text())?;
    let text = folder.at("text.txt");
    let out = folder.at(out);
    gpt2(&arguments(&text, &out, &[&SHORT[..], more].concat()))
}

#[test]
fn a_trained_model_is_clean_runs_and_knows_its_text() -> Result {
    let folder = Folder::empty()?;
    let run = train(&folder, "model", &["--steps", "40", "--lr", "0.02"])?.succeeded();
    assert_says("stderr", &run.stderr, &["tokens to learn", "vocabulary 300", "validation"]);
    assert_eq!(run.stdout.lines().count(), 1, "progress is not a result: {}", run.stdout);
    assert_says(
        "stdout",
        &run.stdout,
        &["step ", ": loss ", "validation loss ", "saved in ", &folder.at("model")],
    );
    let quiet =
        train(&folder, "model", &["--steps", "40", "--lr", "0.02", "--overwrite", "--quiet"])?.succeeded();
    assert_eq!((quiet.stdout, quiet.stderr), (run.stdout, String::new()));
    let model = folder.file("model");
    assert_eq!(names_in(&model)?, ["config.json", "loss.png", "model.safetensors", "tokenizer.json"]);

    let path = folder.at("model");
    let report = json(&["inspect", &path, "--json"])?;
    assert_eq!(report["audit"]["clean"], true, "{report}");
    for (field, value) in
        [("vocab_size", 300), ("n_layer", 1), ("n_head", 2), ("n_embd", 8), ("n_positions", 16)]
    {
        assert_eq!(report["config"][field], value, "{field}");
    }
    let end = Tokenizer::open(&Source::directory(&model).open()?, 300)?.end_of_text();
    assert_eq!(report["config"]["eos_token_id"], serde_json::json!(end));

    // A model that learnt nothing would give each of the 300 tokens the same probability.
    let report = json(&["forward", "--model", &path, "--json", "Line 7 of a play in"])?;
    assert!(report["perplexity"].as_f64() < Some(200.0), "{}", report["perplexity"]);
    let run = gpt2(&["generate", "--model", &path, "--greedy", "-n4", "Line"])?.succeeded();
    assert!(run.stdout.starts_with("Line") && run.stdout.len() > 6, "{:?}", run.stdout);
    Ok(())
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_others() -> Result {
    let folder = Folder::empty()?;
    for (out, seed) in [("a", "1"), ("b", "1"), ("c", "2")] {
        train(&folder, out, &["--steps", "8", "--threads", "1", "--seed", seed])?.succeeded();
    }
    let bytes = |out: &str, file: &str| std::fs::read(folder.file(out).join(file));
    for file in ["model.safetensors", "tokenizer.json", "config.json"] {
        assert!(bytes("a", file)? == bytes("b", file)?, "{file} differs for one seed");
    }
    assert!(bytes("a", "model.safetensors")? != bytes("c", "model.safetensors")?, "the seed changes nothing");
    Ok(())
}

#[test]
fn the_weights_are_saved_in_the_precision_asked_for() -> Result {
    let folder = Folder::empty()?;
    train(&folder, "model", &["--steps", "2", "--save-dtype", "f16"])?.succeeded();
    let tensors = read(&folder.file("model").join("model.safetensors"))?;
    assert!(tensors.values().all(|t| t.dtype == Dtype::F16));
    assert!(Checkpoint::open(&Source::directory(folder.file("model")).open()?)?.audit().is_clean());
    Ok(())
}

#[test]
#[cfg(unix)]
fn ctrl_c_saves_what_there_is() -> Result {
    let folder = Folder::empty()?;
    folder.write("text.txt", text())?;
    let text = folder.at("text.txt");
    let out = folder.at("model");
    let long = ["--steps", "20000", "--eval-every", "1", "--lr", "0"];
    let mut child = spawn(command(&arguments(&text, &out, &long)))?;
    let mut stderr = BufReader::new(child.stderr.take().ok_or("a pipe")?);
    read_up_to("step 1:", &mut stderr)?;
    signal("INT", child.id())?;
    let mut rest = String::new();
    stderr.read_to_string(&mut rest)?;
    let run = Run::end_of(child)?;
    assert_eq!(run.code, 130);
    assert_says("stdout", &run.stdout, &["validation loss ", "saved in"]);
    assert_says("stderr", &rest, &["stopped after step", "--resume"]);
    gpt2(&["inspect", &out])?.succeeded();
    Ok(())
}

/// Neither a model nor a state is there yet when it stops.
#[test]
#[cfg(unix)]
fn a_run_that_is_stopped_before_its_first_validation_can_be_resumed() -> Result {
    let folder = Folder::empty()?;
    folder.write("text.txt", text())?;
    for (out, named, resume, name, code) in [
        ("model", "model", &[][..], "INT", 130),
        ("model", "model", &["--resume"], "TERM", 143),
        ("demo", "./demo", &[], "INT", 130),
    ] {
        let metrics = folder.file(&format!("{out}.csv"));
        let table = metrics.display().to_string();
        let long = ["--metrics", &table, "--eval-every", "20000", "--steps", "20000"];
        let args = [&arguments("text.txt", out, &long)[..], resume].concat();
        let before = std::fs::read_to_string(&metrics).map_or(0, |text| text.lines().count());
        let child = spawn(command(&args).current_dir(folder.path()))?;
        wait_for_lines(&metrics, before + 3)?;
        signal(name, child.id())?;
        let run = Run::end_of(child)?;
        assert_eq!(run.code, code);
        assert_says("stderr", &run.stderr, &["stopped after step", "--resume"]);
        let says = format!(
            "no validation yet; the weights after this step are saved in {out}, for --model {named}\n"
        );
        assert_says("stdout", &run.stdout, &["step ", ": loss ", &says]);
        assert!(folder.file(out).join("training-state.safetensors").exists(), "{out}, resume {resume:?}");
        gpt2(&["inspect", &folder.at(out)])?.succeeded();
    }
    Ok(())
}

#[test]
#[cfg(unix)]
fn a_run_that_is_stopped_goes_on_as_if_it_had_not_been() -> Result {
    let folder = Folder::empty()?;
    let metrics = folder.at("loss.csv");
    let more =
        ["--steps", "600", "--threads", "1", "--dropout", "0.1", "--accumulate", "2", "--metrics", &metrics];
    train(&folder, "whole", &more)?.succeeded();
    let curve = std::fs::read_to_string(&metrics)?;
    assert_eq!(curve.lines().count(), 601, "{curve}");

    // Stop it once with Ctrl-C and once by force, at an arbitrary moment.
    for name in ["INT", "KILL"] {
        let text = folder.at("text.txt");
        let out = folder.at(name);
        let args = arguments(&text, &out, &[&SHORT[..], &more].concat());
        let begun = [&args[..], &["--overwrite"]].concat(); // the curve of the earlier run
        let mut child = command(&begun).stderr(Stdio::piped()).spawn()?;
        let mut stderr = BufReader::new(child.stderr.take().ok_or("a pipe")?);
        read_up_to("step 8:", &mut stderr)?;
        signal(name, child.id())?;
        stderr.read_to_string(&mut String::new())?;
        child.wait()?;
        let state = folder.file(name).join("training-state.safetensors");
        assert!(state.exists(), "done before the signal came");
        gpt2(&args)?.refused(1, &["already", "--resume", "--overwrite"]);
        let resume = |more: &[&str]| gpt2(&[&args[..], &["--resume"], more].concat());
        resume(&["--val-fraction", "0.2"])?.refused(1, &["--resume", "data was"]);
        resume(&["--lr", "0.5"])?
            .refused(1, &["--resume", "lr was", "give --lr 0.001, or start anew with --overwrite"]);
        resume(&["--recompute"])?.refused(1, &["recompute was false", "leave --recompute out"]);
        assert_says("stderr", &resume(&[])?.succeeded().stderr, &["going on after step"]);
        let model = |name: &str| std::fs::read(folder.file(name).join("model.safetensors"));
        assert!(model(name)? == model("whole")?, "{name}: another model");
        assert_eq!(std::fs::read_to_string(&metrics)?, curve);
        resume(&[])?.refused(1, &["--resume", "finished"]);
    }
    Ok(())
}

#[test]
fn recomputing_changes_time_and_memory_and_little_else() -> Result {
    let folder = Folder::empty()?;
    let losses = |out: &str, more: &[&str]| -> Result<Vec<f64>> {
        let metrics = folder.at(&format!("{out}.jsonl"));
        let args = ["--steps", "12", "--dropout", "0.1", "--metrics", &metrics];
        train(&folder, out, &[&args[..], more].concat())?.succeeded();
        let loss = |line: &str| -> Result<f64> { Ok(number(&serde_json::from_str::<Value>(line)?["loss"])) };
        std::fs::read_to_string(&metrics)?.lines().map(loss).collect()
    };
    let kept = losses("kept", &[])?;
    let again = losses("again", &["--recompute"])?;
    assert_eq!(kept.len(), 12);
    for (a, b) in kept.iter().zip(&again) {
        assert!((a - b).abs() < 1e-3, "{a} {b}");
    }
    Ok(())
}

#[test]
fn a_model_is_trained_further() -> Result {
    let folder = Folder::empty()?;
    train(&folder, "first", &["--steps", "20", "--lr", "0.02"])?.succeeded();
    let text = folder.at("text.txt");
    let first = folder.at("first");
    let out = folder.at("second");
    let args = ["train", "--text", &text, "--model", &first, "--out", &out, "--steps", "20", "--lr", "0.02"];
    let more = ["--batch", "2", "--window", "12", "--eval-every", "20", "--warmup", "2"];
    gpt2(&[&args[..], &more].concat())?.succeeded();
    let perplexity = |model: &str| -> Result<f64> {
        Ok(number(&json(&["forward", "--model", model, "--json", "Line 7 of a play in"])?["perplexity"]))
    };
    assert!(perplexity(&out)? < perplexity(&first)?, "{} {}", perplexity(&out)?, perplexity(&first)?);
    gpt2(&[&args[..], &["--overwrite", "--window", "17"]].concat())?.refused(1, &["--window is 17", "16"]);

    // A separate head is also trained, although the config says that the two are tied.
    let weights = folder.file("first").join("model.safetensors");
    let mut tensors = read(&weights)?;
    let wte = tensors.keys().find(|name| name.ends_with("wte.weight")).ok_or("an embedding")?;
    let head = Raw { data: vec![0; tensors[wte].data.len()], ..tensors[wte].clone() };
    tensors.insert("lm_head.weight".into(), head);
    std::fs::write(&weights, serialized(&tensors)?)?;
    gpt2(&[&args[..], &more, &["--overwrite"]].concat())?.succeeded();
    let trained = read(&folder.file("second").join("model.safetensors"))?;
    assert!(trained["lm_head.weight"].data.iter().any(|byte| *byte != 0), "the head learnt nothing");
    Ok(())
}

#[test]
fn a_model_that_is_there_is_replaced_only_where_that_is_asked_for() -> Result {
    let folder = Folder::of("odd")?;
    folder.write("text.txt", text())?;
    let before = std::fs::read(folder.file("model.safetensors"))?;
    let text = folder.at("text.txt");
    let out = folder.dir();
    let args = arguments(&text, &out, &["--batch", "2", "--steps", "1"]);
    gpt2(&args)?.refused(1, &["config.json", "--overwrite", &out]);
    assert_eq!(std::fs::read(folder.file("model.safetensors"))?, before);
    gpt2(&[&args[..], &["--overwrite"]].concat())?.succeeded();
    assert_ne!(std::fs::read(folder.file("model.safetensors"))?, before);
    Ok(())
}

#[test]
fn what_cannot_be_trained_is_refused_with_the_reason() -> Result {
    let folder = Folder::empty()?;
    folder.write("text.txt", text())?;
    let text = folder.at("text.txt");
    let out = folder.at("model");
    for (more, code, parts) in [
        (&["--n-head", "3"][..], 1, &["n_embd (8)", "n_head (3)"][..]),
        (&["--n-layer", "0"], 1, &["n_layer is 0"]),
        (&["--n-positions", "5000"], 1, &["too short", "--n-positions 5000"]),
        (&["--n-positions", "0"], 1, &["n_positions is 0"]),
        (&["--steps", "0"], 2, &["--steps", "0 is not in 1.."]),
        (&["--batch", "0"], 2, &["--batch", "0 is not in 1.."]),
        (&["--val-fraction", "1"], 2, &["--val-fraction", "between 0 and 1"]),
        (&["--val-fraction", "nan"], 2, &["--val-fraction", "between 0 and 1"]),
        (&["--vocab-size", "10"], 2, &["--vocab-size", "10 is not in 257.."]),
        (&["--lr", "1e30", "--steps", "20"], 1, &["the loss became", "--lr"]),
        (&["--lr", "1e30", "--steps", "1"], 1, &["the validation loss became", "--lr"]),
    ] {
        // Clap refuses an option that is given twice.
        let mut args = arguments(&text, &out, &["--batch", "2", "--warmup", "1", "--steps", "1"]);
        for pair in more.chunks(2) {
            match args.iter().position(|o| *o == pair[0]) {
                Some(at) => args[at + 1] = pair[1],
                None => args.extend(pair),
            }
        }
        gpt2(&args)?.refused(code, parts);
    }
    Ok(())
}

#[test]
fn texts_and_folders_that_are_not_there_are_named() -> Result {
    let folder = Folder::empty()?;
    folder.write("text.txt", text())?;
    folder.write("latin1.txt", b"caf\xe9")?;
    folder.write("empty.txt", "")?;
    for (text, reason) in [("nowhere.txt", "os error 2"), ("latin1.txt", "UTF-8")] {
        let run = gpt2(&["train", "--text", &folder.at(text), "--out", &folder.at("out")])?;
        run.refused(1, &["cannot read the text from", &folder.at(text), reason]);
        assert!(!folder.file("out").exists(), "a folder was made for nothing");
    }
    gpt2(&["train", "--text", &folder.at("empty.txt"), "--out", &folder.at("out")])?
        .refused(1, &["too short"]);
    let run = gpt2(&["train", "--text", &folder.at("text.txt"), "--out", &folder.at("latin1.txt")])?;
    run.refused(1, &["--out", &folder.at("latin1.txt"), "is a file; name a folder"]);
    Ok(())
}

#[test]
fn the_demo_model_has_a_name_and_an_input_is_never_replaced() -> Result {
    let folder = Folder::empty()?;
    folder.write("text.txt", text())?;
    let run = |args: &[&str]| Run::of(command(args).current_dir(folder.path()));
    let fixed = ["train", "--text", "text.txt", "--window", "16", "--steps", "1", "--batch", "1"];
    let train =
        |model: &str, more: &[&str]| run(&[&fixed[..], &["--model", model, "--out", "tuned"], more].concat());
    train("demo", &[])?.succeeded();
    for more in [&[][..], &["--overwrite"]] {
        train("tuned", more)?.refused(1, &["--out tuned", "which this run reads"]);
    }
    // A folder of that name is another model.
    std::fs::create_dir(folder.file("demo"))?;
    let named = run(&["forward", "O Romeo", "--model", "demo"])?.succeeded();
    assert_says("stderr", &named.stderr, &["give ./demo"]);
    assert_eq!(named.stdout, run(&["forward", "O Romeo"])?.succeeded().stdout);
    run(&["forward", "O Romeo", "--model", "./demo"])?.refused(1, &["./demo", "no config.json"]);
    run(&["forward", "O Romeo", "--model", "dmo"])?.refused(1, &["or give demo, the built-in model"]);
    run(&[&fixed[..], &["--model", "demo", "--out", "demo"]].concat())?.succeeded();
    run(&[&fixed[..], &["--model", "./demo", "--out", "demo"]].concat())?
        .refused(1, &["--out demo", "which this run reads"]);
    Ok(())
}
