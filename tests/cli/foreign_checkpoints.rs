//! Models that other programs saved: `gpt2 import`, the notes of every command, and what is said where nothing can be read.

use super::{DEMO, ODD, case, gpt2, json};
use crate::common::{Result, data};
use crate::folder::{Folder, assert_says, read, serialized, zeros};
use safetensors::Dtype;
use std::path::Path;

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

/// A file of weights is a model by itself: the numbers are those of the folder that `import` makes of it.
#[test]
fn a_single_file_is_a_model() -> Result {
    let folder = Folder::empty()?;
    for (name, says) in [
        ("ckpt.pt", &["nanoGPT's model_args", "GELU is computed exactly", "transposed"][..]),
        ("llmc.bin", &["the header of llm.c"]),
        ("plain.safetensors", &["the model's sizes are those of ", "config.json"]),
        ("shared.bin", &["the model's sizes are those of ", "config.json"]),
    ] {
        let from = brought(name);
        let out = folder.at(name);
        gpt2(&["import", &from, "--out", &out])?.succeeded();
        assert_eq!(next(&from)?, next(&out)?, "{name}");
        let run = gpt2(&["forward", "--model", &from, "--ids", "1"])?.succeeded();
        assert_says(name, &run.stderr, says);
        for args in [&["inspect", &from][..], &["bench", "forward", "-t1", "-r1", "--model", &from]] {
            let run = gpt2(args)?.succeeded();
            assert_says(name, &(run.stdout + &run.stderr), says);
        }
    }
    // Beside a config, another kind of tokenizer is told as in a folder.
    let other = Folder::of("odd")?;
    other.write("vocab.txt", "[PAD]\n")?;
    gpt2(&["forward", "--model", &other.at("model.safetensors"), "O"])?
        .refused(1, &[&other.at("vocab.txt"), "a WordPiece vocabulary"]);
    // A file that is only a part says of what.
    let lora = case("lora/default");
    let adapter = format!("{lora}/adapter_model.safetensors");
    gpt2(&["forward", "--model", &adapter, "--ids", "1"])?
        .refused(1, &[&adapter, "holds a LoRA adapter, not a model", &lora]);
    let alone = folder.at("alone.safetensors");
    std::fs::copy(brought("plain.safetensors"), &alone)?;
    gpt2(&["forward", "--model", &alone, "--ids", "1"])?
        .refused(1, &[&alone, "expected a config.json beside it"]);
    Ok(())
}

/// Settings that another model left in the folder would become part of a new one.
#[test]
fn settings_that_another_model_left_are_refused() -> Result {
    let folder = Folder::empty()?;
    folder.write("text.txt", "O Romeo, Romeo!\n".repeat(40))?;
    for name in
        ["generation_config.json", "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json"]
    {
        let out = folder.at("out");
        std::fs::create_dir(&out)?;
        folder.write(&format!("out/{name}"), "{}")?;
        let text = folder.at("text.txt");
        for args in [
            &["train", "--text", &text, "--out", &out, "--steps", "1"][..],
            &["import", &brought("ckpt.pt"), "--out", &out],
        ] {
            let run = gpt2(args)?;
            run.refused(1, &[&out, &format!("holds {name}, which would change the"), "remove it"]);
        }
        assert_eq!(std::fs::read_dir(&out)?.count(), 1, "{name}: something was written");
        std::fs::remove_dir_all(&out)?;
    }
    Ok(())
}

/// Weights that are nothing but zeros, as an unfinished download leaves them, are a finding; biases are not.
#[test]
fn inspect_finds_weights_of_zeros() -> Result {
    let mut tensors = read(&data("odd").join("model.safetensors"))?;
    let finding = |folder: &Folder| -> Result<Option<String>> {
        let report = json(&["inspect", &folder.dir(), "--json"])?;
        let rows = report["findings"].as_array().cloned().unwrap_or_default();
        Ok(rows.iter().find(|row| row["about"] == "zeros").map(|row| row["found"].to_string()))
    };
    let mut empty = |name: &str| {
        let tensor = tensors.get_mut(name).expect("there");
        tensor.data.fill(0);
        Folder::with_tensors("odd", &tensors)
    };
    assert_eq!(finding(&empty("transformer.ln_f.bias")?)?, None);
    empty("transformer.wpe.weight")?;
    let found = finding(&empty("transformer.h.1.mlp.c_fc.weight")?)?.ok_or("a finding")?;
    assert_says("zeros", &found, &["2 weights are nothing but zeros", "wpe.weight", "h.1.mlp.c_fc.weight"]);
    Ok(())
}

/// Every JSON that is another kind of file is named as such, with what to do.
#[test]
fn json_of_another_kind_is_named() -> Result {
    const GZIP: &[u8] = b"\x1f\x8b\x08\0\0\0\0\0";
    const PAGE: &[u8] = b"<!DOCTYPE html><html><body>404</body></html>";
    let model = Folder::of("odd")?;
    std::fs::copy(Path::new(DEMO).join("tokenizer.json"), model.file("tokenizer.json"))?;
    for (file, content, parts) in [
        ("tokenizer.json", GZIP, ["is a gzip archive", "expected a tokenizer.json file", "unpack it"]),
        ("tokenizer.json", PAGE, ["is a web page", "expected a tokenizer.json file", "/resolve/"]),
        ("tokenizer_config.json", PAGE, ["is a web page", "config of a tokenizer", "/resolve/"]),
        ("added_tokens.json", GZIP, ["is a gzip archive", "config of a tokenizer", "unpack it"]),
        ("generation_config.json", PAGE, ["is a web page", "expected a generation config", "/resolve/"]),
    ] {
        let before = std::fs::read(model.file(file)).ok();
        model.write(file, content)?;
        gpt2(&["quantize", &model.dir(), "--to", "f16", "--out", &model.at("x.gguf")])?
            .refused(1, &[&[model.at(file).as_str()][..], &parts].concat());
        match before {
            Some(before) => model.write(file, before)?,
            None => std::fs::remove_file(model.file(file))?,
        }
    }
    let adapter = Folder::empty()?;
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(Path::new(&case("lora/default")).join(name), adapter.file(name))?;
    }
    adapter.write("adapter_config.json", GZIP)?;
    gpt2(&["forward", "--ids", "1", "--adapter", &adapter.dir()])?
        .refused(1, &[&adapter.at("adapter_config.json"), "is a gzip archive", "config of a LoRA adapter"]);
    let dictionary = Folder::empty()?;
    dictionary.write("cfg.json", PAGE)?;
    dictionary.write("sae_weights.safetensors", "x")?;
    gpt2(&["features", "O", "--dictionary", &dictionary.dir()])?
        .refused(1, &[&dictionary.at("cfg.json"), "is a web page", "expected a config of a dictionary"]);
    dictionary.write("circuit.json", PAGE)?;
    gpt2(&["forward", "O", "--circuit", &dictionary.at("circuit.json")])?
        .refused(1, &["circuit.json", "is a web page, and is not a circuit", "gpt2 discover"]);
    Ok(())
}

/// No settings of a JSON file need so much; the size is told before it is read.
#[test]
fn a_json_file_beyond_all_measure_is_refused() -> Result {
    let model = Folder::of("odd")?;
    let file = std::fs::File::create(model.file("config.json"))?;
    file.set_len(3 << 30)?; // sparse
    gpt2(&["inspect", &model.dir()])?.refused(1, &[&model.at("config.json"), "nothing but zeros"]);
    let mut text = br#"{"n_layer": 1, "x": ""#.to_vec();
    text.resize((64 << 20) + 1, b' ');
    model.write("config.json", text)?;
    gpt2(&["inspect", &model.dir()])?
        .refused(1, &[&model.at("config.json"), "has 67108865 bytes, more than 67108864"]);
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
        ("ckpt.pt", &["it holds ckpt.pt: perhaps weights under another name: name the file"]),
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
