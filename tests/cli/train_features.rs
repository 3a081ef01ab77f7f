//! `gpt2 train-features`: a dictionary of what `gpt2 record` wrote.

use super::{GPT2, Run, gpt2, launched};
use crate::common::{Result, assert_close};
use crate::folder::{Folder, assert_says};
use crate::mpirun::mpirun;
use candle_core::{Device, Tensor};
use serde_json::Value;

const POINT: &str = "blocks.2.hook_resid_post";
const FILES: [&str; 2] = ["cfg.json", "sae_weights.safetensors"];

/// A folder with a store of a few hundred tokens.
fn world(points: &str) -> Result<Folder> {
    let folder = Folder::empty()?;
    let text = folder.at("text.txt");
    let store = folder.at("store");
    std::fs::write(&text, "ROMEO:\nO, she doth teach the torches to burn bright!\n\n".repeat(20))?;
    gpt2(&["record", &text, "--points", points, "--out", &store])?.succeeded();
    Ok(folder)
}

fn train(folder: &Folder, out: &str, more: &[&str]) -> Result<Run> {
    let store = folder.at("store");
    let out = folder.at(out);
    let usual = [
        "train-features",
        &store,
        "--out",
        &out,
        "--features",
        "64",
        "--batch",
        "32",
        "--silent-after",
        "100",
    ];
    gpt2(&[&usual[..], more].concat())
}

fn bytes(folder: &Folder, out: &str) -> Result<Vec<Vec<u8>>> {
    let read = |name: &&str| Ok(std::fs::read(format!("{}/{name}", folder.at(out)))?);
    FILES.iter().map(read).collect()
}

#[test]
fn a_store_becomes_a_dictionary_that_explains_it() -> Result {
    let folder = world(POINT)?;
    for how in ["topk", "jumprelu"] {
        let report: Value = serde_json::from_str(
            &train(&folder, how, &["-k", "4", "--sparsity", how, "--epochs", "12", "--json"])?
                .succeeded()
                .stdout,
        )?;
        assert_eq!(report["point"], POINT);
        let out = folder.at(how);
        let text = "ROMEO:\nO, she doth teach";
        let found: Value = serde_json::from_str(
            &gpt2(&["features", text, "--dictionary", &out, "--json"])?.succeeded().stdout,
        )?;
        assert_eq!(found["dictionary"]["hook"], POINT);
        assert_eq!(found["dictionary"]["architecture"], how);
        let explained = found["quality"]["explained_variance"].as_f64().ok_or("a number")?;
        assert!(explained > 0.5, "{how}: {explained}");
        let config: Value = serde_json::from_slice(&bytes(&folder, how)?[0])?;
        assert_eq!(config["metadata"]["hook_name"], POINT);
        assert_eq!(config["made_by"]["store"]["points"][0], POINT);
    }
    Ok(())
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() -> Result {
    let folder = world(POINT)?;
    for how in ["topk", "jumprelu"] {
        let run = |out: &str, more: &[&str]| {
            train(&folder, out, &[&["-k", "4", "--sparsity", how][..], more].concat())
        };
        run("one", &["--threads", "1", "--overwrite"])?.succeeded();
        run("three", &["--threads", "3", "--overwrite"])?.succeeded();
        run("other", &["--seed", "1", "--overwrite"])?.succeeded();
        assert!(bytes(&folder, "one")? == bytes(&folder, "three")?, "{how}");
        assert!(bytes(&folder, "one")?[1] != bytes(&folder, "other")?[1], "{how}");
    }
    Ok(())
}

/// Of a store, and of a text that the model reads meanwhile.
#[test]
fn any_number_of_processes_writes_the_same_bytes() -> Result {
    let folder = world(POINT)?;
    let text = folder.at("text.txt");
    let window = ["--point", POINT, "--window", "16", "--bos"];
    let live = [&[text.as_str()][..], &window].concat();
    let jumps = [&live[..], &["--sparsity", "jumprelu"]].concat();
    let store = folder.at("store");
    for (source, how) in [(vec![store.as_str()], "topk"), (live, "topk"), (jumps, "jumprelu")] {
        let args = |out: &str| -> Vec<String> {
            let out = folder.at(out);
            let usual =
                ["--features", "64", "-k", "4", "--batch", "16", "--accumulate", "3", "--silent-after"];
            let all = [&["train-features"][..], &source, &usual, &["100", "--overwrite", "--out", &out]];
            all.concat().into_iter().map(str::to_owned).collect()
        };
        let alone = args("one");
        gpt2(&alone.iter().map(String::as_str).collect::<Vec<_>>())?.succeeded();
        let config: Value = serde_json::from_slice(&bytes(&folder, "one")?[0])?;
        assert_eq!((&config["architecture"], &config["metadata"]["hook_name"]), (&how.into(), &POINT.into()));
        for n in [2, 3] {
            let Some(launcher) = mpirun(n, GPT2) else { return Ok(()) };
            Run::of(launched(launcher, &args("many")))?.succeeded();
            assert!(bytes(&folder, "many")? == bytes(&folder, "one")?, "{source:?}: {n} ranks");
        }
    }
    Ok(())
}

/// Named before any work, and without a folder.
#[test]
fn ranks_that_do_other_work_are_refused() -> Result {
    let folder = world(POINT)?;
    let text = folder.at("other.txt");
    let other = folder.at("other");
    std::fs::write(&text, "JULIET:\nO, swear not by the moon, the inconstant moon!\n\n".repeat(20))?;
    gpt2(&["record", &text, "--points", POINT, "--out", &other])?.succeeded();
    let store = folder.at("store");
    let out = folder.at("out");
    let none = folder.at("none");
    let args = |store: &str, k: &str| -> Vec<String> {
        let all = ["train-features", store, "--out", &out, "--features", "64", "-k", k, "--batch", "32"];
        all.map(str::to_owned).to_vec()
    };
    for (second, says) in [
        (args(&store, "5"), "rank 1 has another k than rank 0: 5, not 4"),
        (args(&other, "4"), "rank 1 has another first values (by their fingerprint) than rank 0"),
        (args(&none, "4"), "none"),
    ] {
        let Some(launcher) = mpirun(1, GPT2) else { return Ok(()) };
        let mut command = launched(launcher, &args(&store, "4"));
        command.args([":", "-n", "1", GPT2]).args(&second);
        let run = Run::of(command)?;
        assert_ne!(run.code, 0, "{run:?}");
        assert_says("stderr", &run.stderr, &["error: rank ", says]);
        assert!(!std::path::Path::new(&out).exists(), "{says}: a folder is left");
    }
    Ok(())
}

/// A dictionary explains as much of the variance whether it learns from a text or from recorded values.
#[test]
fn a_text_teaches_as_much_as_a_store() -> Result {
    let folder = world(POINT)?;
    let explained = |source: &str, more: &[&str]| -> Result<f64> {
        let source = folder.at(source);
        let out = folder.at("out");
        let usual =
            ["--features", "64", "-k", "4", "--batch", "32", "--epochs", "12", "--overwrite", "--json"];
        let args = [&["train-features", &source, "--out", &out][..], &usual, more].concat();
        let report: Value = serde_json::from_str(&gpt2(&args)?.succeeded().stdout)?;
        Ok(report["explained_variance"].as_f64().ok_or("a number")?)
    };
    let live = explained("text.txt", &["--point", POINT])?;
    let recorded = explained("store", &[])?;
    assert!(live > 0.8 && (live - recorded).abs() < 0.05, "{live}, recorded {recorded}");
    let config: Value = serde_json::from_slice(&bytes(&folder, "out")?[0])?;
    assert!(config["made_by"]["store"].is_object() && config["made_by"]["text"].is_null());
    Ok(())
}

/// Heads are one row of a dictionary.
#[test]
fn values_of_heads_have_dictionaries_too() -> Result {
    let folder = world("blocks.1.attn.hook_z")?;
    train(&folder, "heads", &["-k", "4"])?.succeeded();
    let config: Value = serde_json::from_slice(&bytes(&folder, "heads")?[0])?;
    assert_eq!(config["reshape_activations"], "hook_z");
    let export = folder.at("features.safetensors");
    let run = folder.at("run.safetensors");
    let dictionary = folder.at("heads");
    gpt2(&["features", "O she doth", "--dictionary", &dictionary, "--feature", "3", "--export", &export])?
        .succeeded();
    gpt2(&["forward", "O she doth", "--export", &run, "--export-point", "blocks.1.attn.hook_z"])?.succeeded();
    let of = |path: &str| candle_core::safetensors::load(path, &Device::Cpu);
    let z: Tensor = of(&run)?["blocks.1.attn.hook_z"].squeeze(0)?.flatten_from(1)?;
    assert_close("z", &of(&export)?["target"], &z, 1e-6);
    Ok(())
}

#[test]
fn what_cannot_be_trained_is_refused_by_name() -> Result {
    let folder = world(&format!("{POINT},blocks.1.hook_resid_post"))?;
    train(&folder, "out", &[])?.refused(1, &["choose one with --point", "blocks.1.hook_resid_post"]);
    train(&folder, "out", &["--point", "blocks.3.hook_resid_post"])?.refused(1, &["the store has", POINT]);
    let one = ["--point", POINT];
    train(&folder, "out", &[&one[..], &["-k", "65"]].concat())?.refused(1, &["64 features", "65 fire"]);
    let store = folder.at("store");
    let out = folder.at("out");
    let large = ["train-features", &store, "--out", &out, "--batch", "60000"];
    gpt2(&[&large[..], &one].concat())?.refused(1, &["--batch 60000", "take smaller or fewer batches"]);
    assert!(!std::path::Path::new(&folder.at("out")).exists(), "a refused run leaves no folder");
    train(&folder, "store", &one)?.refused(1, &["--out"]);
    train(&folder, "out", &[&one[..], &["-k", "4"]].concat())?.succeeded();
    train(&folder, "out", &[&one[..], &["-k", "4"]].concat())?.refused(1, &["--overwrite"]);
    let text = folder.at("text.txt");
    let new = folder.at("new");
    let live = |more: &[&str]| gpt2(&[&["train-features", &text, "--out", &new][..], more].concat());
    live(&[])?.refused(1, &["text.txt", "is no folder that gpt2 record wrote", "--point"]);
    live(&["--point", "blocks.9.hook_resid_post"])?.refused(1, &["blocks.9.hook_resid_post"]);
    for point in ["blocks.1.attn.hook_pattern", "blocks.1.attn.hook_v", "logits"] {
        live(&["--point", point])?.refused(1, &[point, "is no vector for each token"]);
    }
    live(&["--point", "blocks.*.hook_mlp_out"])?.refused(1, &["name one layer"]);
    live(&["--point", POINT, "--window", "300"])?.refused(1, &["--window 300", "n_positions = 256"]);
    live(&["--point", POINT, "--accumulate", "900"])?.refused(1, &["windows", "--accumulate 900"]);
    for option in [&["--bos"][..], &["--dtype", "bf16"], &["--device", "cuda"], &["--adapter", "a"]] {
        train(&folder, "new", &[&one[..], option].concat())?.refused(1, &[option[0], "is for a text"]);
    }
    gpt2(&["train-features", &folder.at("none"), "--out", &new])?.refused(1, &["none", "no such file"]);
    assert!(!std::path::Path::new(&new).exists(), "a refused run leaves no folder");
    Ok(())
}

/// The same bytes as a run that never stopped, of a store and of a text.
#[test]
#[cfg(unix)]
fn a_run_that_stopped_goes_on_to_the_same_bytes() -> Result {
    let folder = world(POINT)?;
    let text = folder.at("text.txt");
    let store = folder.at("store");
    let live = ["--point", POINT, "--window", "16"];
    for (source, how, more) in
        [(&store, "topk", &[][..]), (&store, "jumprelu", &[]), (&text, "topk", &live[..])]
    {
        let args = |out: &str| -> Vec<String> {
            let out = folder.at(out);
            let usual =
                ["train-features", source, "--features", "256", "--batch", "64", "--silent-after", "100"];
            let all = [&usual[..], &["--sparsity", how, "--epochs", "60", "-k", "4", "--out", &out], more];
            all.concat().into_iter().map(str::to_owned).collect()
        };
        let run = |out: &str, more: &[&str]| {
            let args = args(out);
            gpt2(&args.iter().map(String::as_str).chain(more.iter().copied()).collect::<Vec<_>>())
        };
        run("whole", &["--overwrite"])?.succeeded();
        let state = folder.file("parts/training-state.safetensors");
        let mut stops = 0;
        let mut resume: &[&str] = &["--overwrite"];
        loop {
            let all = args("parts");
            let all: Vec<&str> = all.iter().map(String::as_str).chain(resume.iter().copied()).collect();
            let child = crate::spawn(crate::command(&all))?;
            std::thread::sleep(std::time::Duration::from_millis(700 + 300 * stops));
            let _ = crate::signal("INT", child.id());
            let ended = Run::end_of(child)?;
            if ended.code == 0 {
                break;
            }
            assert_eq!(ended.code, 130, "{ended:?}");
            // One that came before the first step leaves nothing.
            if state.exists() {
                assert_says("stopped", &ended.stderr, &["--resume"]);
                run("parts", &[])?.refused(1, &["a run stopped there", "--resume", "--overwrite"]);
                run("parts", &["--resume", "--lr", "0.5"])?
                    .refused(1, &["--resume: lr was 0.004 and is 0.5"]);
                resume = &["--resume"];
            }
            stops += 1;
            assert!(stops < 40, "it never ends");
        }
        assert!(!state.exists(), "a finished run has a state");
        assert!(
            bytes(&folder, "whole")? == bytes(&folder, "parts")?,
            "{how} of {source}: after {stops} stops"
        );
        run("parts", &["--resume"])?.refused(1, &["there is no", "training-state.safetensors"]);
    }
    Ok(())
}
