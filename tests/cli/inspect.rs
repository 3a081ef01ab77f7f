//! `gpt2 inspect`: the contents of a folder.

use super::{ODD, case, gpt2, json, list, stdout};
use crate::common::{Result, data};
use crate::folder::{Folder, assert_says, read, zeros};
use crate::models::load;
use candle_core::DType;
use gpt2_loader::{Checkpoint, SaveOptions, Source, save};
use safetensors::Dtype;
use serde_json::{Map, Value, json};

#[test]
fn json_agrees_with_the_library() -> Result {
    for name in ["odd", "untied", "pickle", "pickle_tied", "inner"] {
        let report = json(&["inspect", &case(name), "--json"])?;
        let checkpoint = Checkpoint::open(&Source::directory(data(name)).open()?)?;
        let audit = checkpoint.audit();
        let n = checkpoint.config().parameter_count()?;
        assert_eq!((&report["model"], &report["parameters"]), (&case(name).into(), &n.into()));
        assert_eq!(report["memory_bytes"], json!({"f32": 4 * n, "f16": 2 * n, "bf16": 2 * n}));
        assert_eq!(report["config"], serde_json::to_value(checkpoint.config())?);
        let buffers: Vec<_> = audit.buffers.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(
            report["audit"],
            json!({"clean": true, "missing": [], "unexpected": [], "unused": [], "mismatched": [], "duplicates": [], "not_finite": [], "buffers": buffers})
        );
        let tensors: Vec<_> = checkpoint
            .tensors()
            .map(|(_, t)| json!({"name": t.name, "shape": t.shape, "dtype": t.dtype.to_string(), "file": t.file_name()}))
            .collect();
        assert_eq!(report["tensors"], json!(tensors));
        // This one also holds its tied head.
        let heads = usize::from(name == "pickle_tied");
        assert_eq!(tensors.len(), checkpoint.config().parameters()?.len() + buffers.len() + heads, "{name}");
    }
    Ok(())
}

#[test]
fn the_tables_name_every_field_and_tensor() -> Result {
    let text = stdout(&["inspect", "--model", ODD])?;
    let line_of = |words: &[&str]| text.lines().any(|l| l.split_whitespace().eq(words.iter().copied()));
    assert!(line_of(&["n_embd", "48"]) && line_of(&["vocab_size", "101"]), "{text}");
    for (name, tensor) in read(&data("odd").join("model.safetensors"))? {
        let shape = format!("{:?}", tensor.shape);
        let words: Vec<&str> = [name.as_str()].into_iter().chain(shape.split(' ')).chain(["F32"]).collect();
        assert!(line_of(&words), "{words:?} is not in:\n{text}");
    }
    let n = load("odd", DType::F32)?.config().parameter_count()?;
    assert_says(
        "tables",
        &text,
        &[&format!("{n} parameters: 0.3 MB in f32, 0.1 MB in f16"), "0 mask buffers", "audit: "],
    );
    Ok(())
}

#[test]
fn the_folder_is_an_argument_or_an_option() -> Result {
    let run = gpt2(&["inspect", ODD])?.succeeded();
    assert_eq!(stdout(&["inspect", "--model", ODD])?, run.stdout);
    assert_eq!(gpt2(&["inspect", ODD, "--model", ODD])?.code, 2);
    let demo = gpt2(&["inspect"])?.succeeded();
    assert_says("demo", &demo.stdout, &["tiny-shakespeare (built in)", "wte.weight", "audit: "]);
    Ok(())
}

#[test]
fn what_does_not_fit_is_a_result_and_exit_code_1() -> Result {
    let mut tensors = read(&data("odd").join("model.safetensors"))?;
    tensors.remove("transformer.wpe.weight");
    tensors.insert("transformer.ln_f.weight".into(), zeros(Dtype::F32, &[47]));
    tensors.insert("ln_f.bias".into(), zeros(Dtype::F32, &[48]));
    tensors.insert("transformer.h.0.extra".into(), zeros(Dtype::F32, &[2]));
    tensors.insert("transformer.other".into(), zeros(Dtype::I64, &[2]));
    let folder = Folder::with_tensors("odd", &tensors)?;
    let model = folder.dir();
    let run = gpt2(&["inspect", &model])?;
    assert_eq!(run.code, 1, "{run:?}");
    let parts = [
        "missing     wpe.weight",
        "mis-shaped  transformer.ln_f.weight",
        "twice",
        "unexpected  transformer.h.0.extra",
        "not used    transformer.other",
    ];
    assert_says("stdout", &run.stdout, &parts);

    let run = gpt2(&["inspect", "--json", &model])?;
    assert_eq!(run.code, 1, "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout)?;
    let audit = &report["audit"];
    assert_eq!((&audit["clean"], &audit["missing"]), (&json!(false), &json!(["wpe.weight"])));
    assert_eq!(audit["mismatched"], json!(["transformer.ln_f.weight"]));
    assert_eq!(audit["unexpected"], json!(["transformer.h.0.extra"]));
    assert_eq!(audit["unused"], json!(["transformer.other"]));
    assert_eq!(list(&audit["duplicates"]).len(), 1);
    Ok(())
}

#[test]
fn buffers_are_listed_and_not_counted() -> Result {
    let folder = Folder::empty()?;
    let model = load("odd", DType::F32)?;
    save(folder.path(), &model, None, SaveOptions::default().with_dtype(DType::F16).with_buffers(true))?;
    let report = json(&["inspect", "--json", &folder.dir()])?;
    assert_eq!(report["audit"]["buffers"], json!(["transformer.h.0.attn.bias", "transformer.h.1.attn.bias"]));
    assert_eq!(report["parameters"], model.config().parameter_count()?);
    let dtypes: Vec<_> = list(&report["tensors"]).iter().map(|t| &t["dtype"]).collect();
    assert_eq!(dtypes.iter().filter(|d| **d == "U8").count(), 2);
    assert!(dtypes.iter().all(|d| *d == "U8" || *d == "F16"), "{dtypes:?}");
    Ok(())
}

#[test]
fn the_weights_are_not_read() -> Result {
    // A sparse file of 3 GB, which takes no room on disk.
    let folder = Folder::of("odd")?;
    folder.set_config("vocab_size", 16_000_000.into())?;
    let mut header = Map::new();
    let mut offset = 0;
    for p in folder.open()?.config().parameters()? {
        let len = 4 * p.shape.iter().map(|&n| n as u64).product::<u64>();
        header.insert(
            p.name,
            json!({"dtype": "F32", "shape": p.shape, "data_offsets": [offset, offset + len]}),
        );
        offset += len;
    }
    let header = Value::Object(header).to_string();
    let content = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    std::fs::remove_file(folder.file("model.safetensors"))?;
    folder.write("model.safetensors", &content)?;
    let file = std::fs::File::options().write(true).open(folder.file("model.safetensors"))?;
    file.set_len(content.len() as u64 + offset)?;
    let report = json(&["inspect", "--json", &folder.dir()])?;
    assert!(report["parameters"].as_u64() > Some(768_000_000), "{}", report["parameters"]);
    Ok(())
}
