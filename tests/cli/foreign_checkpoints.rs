//! Models that other programs saved: `gpt2 import`, the notes of every command, and what is said where nothing can be read.

use super::{ODD, case, gpt2, json};
use crate::common::{Result, data};
use crate::folder::{Folder, assert_says, read, serialized, zeros};
use safetensors::Dtype;

/// A file of the reference, as an argument.
fn brought(name: &str) -> String {
    data("brought").join(name).display().to_string()
}

/// Probabilities of the next token.
fn next(model: &str) -> Result<serde_json::Value> {
    Ok(json(&["forward", "--model", model, "--ids", "1,2,3", "--json"])?["next"].clone())
}

#[test]
fn import_writes_a_folder_that_every_command_reads() -> Result {
    let folder = Folder::empty()?;
    let out = folder.at("nano");
    let run = gpt2(&["import", &brought("ckpt.pt"), "--out", &out])?.succeeded();
    assert_says("stdout", &run.stdout, &[&out, "1928 parameters of"]);
    assert_says(
        "notes",
        &run.stderr,
        &["under the key `model`", "transposed", "without biases", "gelu", "no tokenizer"],
    );
    let quiet = gpt2(&["forward", "--model", &out, "--ids", "1,2"])?.succeeded();
    assert!(!quiet.stderr.contains("transposed"), "{}", quiet.stderr);
    // The same numbers from llm.c's file and from GGUF's parts, also in halves.
    let [a, b] = ["a", "b"].map(|name| folder.at(name));
    json(&["import", &brought("llmc.bin"), "--out", &a, "--json"])?;
    json(&["import", &brought("parts-00003-of-00003.gguf"), "-o", &b, "--json"])?;
    assert_eq!(next(&a)?, next(&b)?);
    let report = json(&["import", &a, "--out", &folder.at("half"), "--save-dtype", "f16", "--json"])?;
    assert_eq!((&report["parameters"], &report["tokenizer"]), (&1928.into(), &false.into()));
    assert_eq!(report["notes"].as_array().map(Vec::len), Some(1));
    Ok(())
}

#[test]
fn import_replaces_only_what_it_may_and_leaves_nothing_half_written() -> Result {
    let folder = Folder::empty()?;
    let out = folder.at("out");
    let nano = brought("ckpt.pt");
    gpt2(&["import", &nano, "--out", &out])?.succeeded();
    let taken = gpt2(&["import", &nano, "--out", &out])?;
    taken.refused(1, &["--out", "holds config.json already", "--overwrite"]);
    gpt2(&["import", &nano, "--out", &out, "--overwrite"])?.succeeded();
    gpt2(&["import", &out, "--out", &out, "--overwrite"])?.refused(1, &["is the folder of the model"]);
    gpt2(&["import", &nano])?.refused(2, &["--out"]);
    // What cannot be read leaves no folder.
    let mut tensors = read(&data("odd").join("model.safetensors"))?;
    tensors.insert(
        "transformer.ln_f.bias".into(),
        crate::folder::Raw { data: f32::NAN.to_le_bytes().repeat(48), ..zeros(Dtype::F32, &[48]) },
    );
    let damaged = Folder::with_tensors("odd", &tensors)?;
    let new = folder.at("new");
    for (from, parts) in [
        (damaged.dir(), &["not finite  transformer.ln_f.bias"][..]),
        (brought("packed.safetensors"), &["none of its 14 tensors has a name of GPT-2's", "`wte.weight`"]),
        (
            brought("../README.md"),
            &["is a text that begins", "expected a safetensors, PyTorch, GGUF or llm.c file"],
        ),
    ] {
        gpt2(&["import", &from, "--out", &new])?.refused(1, parts);
        assert!(!folder.file("new").exists(), "{from}: a refused import leaves a folder");
    }
    Ok(())
}

#[test]
fn a_note_names_what_is_not_used() -> Result {
    let mut tensors = read(&data("odd").join("model.safetensors"))?;
    let plain = next(ODD)?;
    tensors.insert("score.weight".into(), zeros(Dtype::F32, &[2, 48]));
    let classifier = Folder::with_tensors("odd", &tensors)?.dir();
    let folder = Folder::with_tensors("odd", &tensors)?;
    assert_eq!(next(&folder.dir())?, plain, "{classifier}");
    let run = gpt2(&["forward", "--model", &folder.dir(), "--ids", "1"])?.succeeded();
    assert_says("note", &run.stderr, &["not used, since", "score.weight"]);
    assert_eq!(run.stderr.matches("score.weight").count(), 1, "{}", run.stderr);
    let quiet = gpt2(&["forward", "--model", &folder.dir(), "--ids", "1", "-q"])?.succeeded();
    assert_eq!(quiet.stderr, "");
    let inspect = gpt2(&["inspect", &folder.dir()])?.succeeded();
    assert_says("inspect", &inspect.stdout, &["not used", "score.weight", "1 others are not used"]);
    Ok(())
}

/// A folder without what is needed says what is there, and a file of another kind what it is.
#[test]
fn what_is_there_instead_is_named() -> Result {
    let config = std::fs::read(data("odd").join("config.json"))?;
    for (name, parts) in [
        ("tf_model.h5", &["it holds tf_model.h5: weights of a format that this program does not read"][..]),
        ("model.onnx", &["model.onnx", "load them with transformers"]),
        ("ckpt.pt", &["it holds ckpt.pt: perhaps weights under another name, of which `gpt2 import`"]),
        ("small.gguf", &["small.gguf: a GGUF file is a whole model: name the file"]),
    ] {
        let folder = Folder::empty()?;
        folder.write("config.json", &config)?;
        folder.write(name, "x")?;
        let refused = gpt2(&["forward", "--model", &folder.dir(), "--ids", "1"])?;
        refused.refused(1, &[&[folder.dir().as_str(), "no weights here"], parts].concat());
    }
    let folder = Folder::empty()?;
    std::fs::create_dir(folder.file("checkpoint-500"))?;
    gpt2(&["forward", "--model", &folder.dir(), "--ids", "1"])?
        .refused(1, &["no config.json here", "checkpoint-500/: a trainer's checkpoints", "name one"]);
    let tensors = read(&data("odd").join("model.safetensors"))?;
    for (file, content, parts) in [
        (
            "config.json",
            b"\x1f\x8b\x08\0".to_vec(),
            ["is a gzip archive", "expected a GPT-2 config", "unpack it"],
        ),
        (
            "config.json",
            b"version https://git-lfs.github.com/spec/v1\n".to_vec(),
            ["is a git-lfs pointer", "config", "git lfs pull"],
        ),
        (
            "model.safetensors",
            serialized(&tensors)?[..100].to_vec(),
            ["damaged or not a safetensors file", "", "fetch"],
        ),
        (
            "model.safetensors",
            b"Invalid username or password.".to_vec(),
            ["is a text that begins", "Invalid username", "fetch the file itself"],
        ),
        (
            "model.safetensors",
            b"PK\x03\x04".to_vec(),
            ["is a zip archive", "expected a safetensors file", "pytorch_model.bin"],
        ),
    ] {
        let folder = Folder::of("odd")?;
        folder.write(file, content)?;
        gpt2(&["forward", "--model", &folder.dir(), "--ids", "1"])?
            .refused(1, &[&[folder.at(file).as_str()][..], &parts].concat());
    }
    // The model's type comes before its fields.
    let folder = Folder::of("odd")?;
    folder.write("config.json", r#"{"model_type": "imagegpt", "activation_function": "quick_gelu"}"#)?;
    gpt2(&["forward", "--model", &folder.dir(), "--ids", "1"])?
        .refused(1, &["model_type is \"imagegpt\"; this program runs only \"gpt2\" and \"gpt_bigcode\""]);
    assert!(case("odd") == ODD);
    Ok(())
}
