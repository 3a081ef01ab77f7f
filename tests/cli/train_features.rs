//! `gpt2 train-features`: a dictionary of what `gpt2 record` wrote.

use super::{Run, gpt2};
use crate::common::{Result, assert_close};
use crate::folder::Folder;
use candle_core::{Device, Tensor};
use serde_json::Value;

const POINT: &str = "blocks.2.hook_resid_post";
const FILES: [&str; 2] = ["cfg.json", "sae_weights.safetensors"];

/// A folder with a store of a few hundred tokens.
fn world(points: &str) -> Result<Folder> {
    let folder = Folder::empty()?;
    let (text, store) = (folder.at("text.txt"), folder.at("store"));
    std::fs::write(&text, "ROMEO:\nO, she doth teach the torches to burn bright!\n\n".repeat(20))?;
    gpt2(&["record", &text, "--points", points, "--out", &store])?.succeeded();
    Ok(folder)
}

fn train(folder: &Folder, out: &str, more: &[&str]) -> Result<Run> {
    let (store, out) = (folder.at("store"), folder.at(out));
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

/// Heads are one row of a dictionary.
#[test]
fn values_of_heads_have_dictionaries_too() -> Result {
    let folder = world("blocks.1.attn.hook_z")?;
    train(&folder, "heads", &["-k", "4"])?.succeeded();
    let config: Value = serde_json::from_slice(&bytes(&folder, "heads")?[0])?;
    assert_eq!(config["reshape_activations"], "hook_z");
    let (export, run) = (folder.at("features.safetensors"), folder.at("run.safetensors"));
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
    let (store, out) = (folder.at("store"), folder.at("out"));
    let large = ["train-features", &store, "--out", &out, "--batch", "60000"];
    gpt2(&[&large[..], &one].concat())?.refused(1, &["--batch 60000", "smaller batches"]);
    assert!(!std::path::Path::new(&folder.at("out")).exists(), "a refused run leaves no folder");
    train(&folder, "store", &one)?.refused(1, &["--out"]);
    train(&folder, "out", &[&one[..], &["-k", "4"]].concat())?.succeeded();
    train(&folder, "out", &[&one[..], &["-k", "4"]].concat())?.refused(1, &["--overwrite"]);
    let text = folder.at("text.txt");
    gpt2(&["train-features", &text, "--out", &folder.at("new")])?.refused(1, &["text.txt"]);
    Ok(())
}
