//! Numbers that are NaN, infinite or too large for a file: no file gets them, and `inspect` finds them.

use super::{DEMO, Run, gpt2, json, list, stdout};
use crate::common::Result;
use crate::folder::{Folder, Tensors, assert_says, read, serialized};
use safetensors::Dtype;
use serde_json::Value;

const DAMAGED: &str = "transformer.h.1.mlp.c_fc.weight";
const PROMPT: &str = "O Romeo, Romeo";

/// Copies a folder's files, its tensors changed.
fn copy(
    from: &str,
    to: &Folder,
    name: &str,
    weights: &str,
    change: impl FnOnce(&mut Tensors),
) -> Result<String> {
    std::fs::create_dir(to.file(name))?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.file(name).join(entry.file_name()))?;
        }
    }
    let path = to.file(name).join(weights);
    let mut tensors = read(&path)?;
    change(&mut tensors);
    std::fs::write(path, serialized(&tensors)?)?;
    Ok(to.at(name))
}

/// The demo model in f32, one of whose weights is another number.
fn model(folder: &Folder, name: &str, number: f32) -> Result<String> {
    let wide = folder.at(&format!("{name} in f32"));
    let adapter = adapter(folder, &format!("{name} of"))?;
    gpt2(&["merge", "--adapter", &format!("{adapter}=0"), "--out", &wide])?.succeeded();
    copy(&wide, folder, name, "model.safetensors", |tensors| {
        let tensor = tensors.get_mut(DAMAGED).expect("a tensor");
        assert_eq!(tensor.dtype, Dtype::F32);
        tensor.data[40..44].copy_from_slice(&number.to_le_bytes());
    })
}

/// An adapter of the demo model.
fn adapter(folder: &Folder, name: &str) -> Result<String> {
    let out = folder.at(name);
    train(folder, &["--model", DEMO, "--lora", "2", "--lr", "0.02", "--warmup", "0", "--out", &out])?
        .succeeded();
    Ok(out)
}

fn train(folder: &Folder, more: &[&str]) -> Result<Run> {
    folder.write("text.txt", "the cat sat on the mat and the dog sat on the log; ".repeat(60))?;
    let text = folder.at("text.txt");
    let short = ["--steps", "2", "--window", "8", "--batch", "1", "--eval-every", "1"];
    gpt2(&[&["train", "--text", &text][..], &short, more].concat())
}

/// That a run was refused, and that what it would have written is not there.
#[track_caller]
fn leaves_nothing(run: &Run, folder: &Folder, out: &str, parts: &[&str]) {
    run.refused(1, parts);
    assert!(!folder.file(out).exists(), "{out} is there");
}

#[test]
fn merge_writes_no_number_that_is_not_finite() -> Result {
    let folder = Folder::empty()?;
    let nan = model(&folder, "nan", f32::NAN)?;
    let large = model(&folder, "large", 1e6)?;
    let adapter = adapter(&folder, "adapter")?;
    let merge = |more: &[&str]| gpt2(&[&["merge", "--out", &folder.at("out")], more].concat());
    let strong = format!("{adapter}=1e60");
    let run = merge(&["--model", &nan, "--adapter", &adapter])?;
    leaves_nothing(&run, &folder, "out", &["h.1.mlp.c_fc.weight", "NaN", "damaged"]);
    let run = merge(&["--adapter", &strong])?;
    leaves_nothing(&run, &folder, "out", &["--adapter", "h.0.attn.c_attn.weight becomes", "too large"]);
    let run = merge(&["--model", &large, "--adapter", &adapter, "--save-dtype", "f16"])?;
    let says = ["--save-dtype", "h.1.mlp.c_fc.weight holds 1000000", "65504", "bf16 or f32"];
    leaves_nothing(&run, &folder, "out", &says);
    merge(&["--model", &large, "--adapter", &adapter, "--save-dtype", "bf16"])?.succeeded();
    // A refused run leaves the model that --overwrite would replace.
    let before = std::fs::read(folder.file("out/model.safetensors"))?;
    merge(&["--adapter", &strong, "--overwrite"])?.refused(1, &["too large"]);
    assert_eq!(std::fs::read(folder.file("out/model.safetensors"))?, before);
    // With such weights a run is refused in words that name what to change.
    gpt2(&["forward", PROMPT, "--adapter", &strong])?.refused(1, &["lower the weight of --adapter"]);
    Ok(())
}

#[test]
fn a_build_that_computes_nan_gives_no_printed_answer() -> Result {
    let folder = Folder::empty()?;
    let nan = model(&folder, "nan", f32::NAN)?;
    let question = r#"{"continuation": {"prompt": [1], "ids": [1, 199]}}"#;
    folder.write("answers.json", format!(r#"{{"nan": [{{"source": "x", "question": {question}}}]}}"#))?;
    let run = gpt2(&["verify", "--published", "--answers", &folder.at("answers.json"), "--model", &nan])?;
    assert_eq!(run.code, 1, "{run:?}");
    assert_says("stdout", &run.stdout, &["FAILED", "h.1.mlp.c_fc.weight holds NaN"]);
    Ok(())
}

#[test]
fn training_and_quantizing_write_no_number_that_is_not_finite() -> Result {
    let folder = Folder::empty()?;
    let nan = model(&folder, "nan", f32::NAN)?;
    let large = model(&folder, "large", 1e6)?;
    let out = folder.at("out");
    let run = train(&folder, &["--model", &large, "--save-dtype", "f16", "--out", &out])?;
    let says = ["--save-dtype", "h.1.mlp.c_fc.weight holds 1000000", "bf16 or f32"];
    leaves_nothing(&run, &folder, "out", &says);
    let run = train(&folder, &["--model", &nan, "--out", &out])?;
    leaves_nothing(&run, &folder, "out", &["h.1.mlp.c_fc.weight holds NaN", "damaged"]);
    for kind in ["f16", "q8_0", "q4_0", "q4_k_m"] {
        let quantize =
            |model: &str| gpt2(&["quantize", model, "--to", kind, "--out", &folder.at("out.gguf")]);
        leaves_nothing(&quantize(&nan)?, &folder, "out.gguf", &["h.1.mlp.c_fc.weight holds NaN"]);
        leaves_nothing(
            &quantize(&large)?,
            &folder,
            "out.gguf",
            &["holds 1000000", "65504", "as safetensors"],
        );
    }
    Ok(())
}

#[test]
fn exports_hold_such_numbers_only_where_they_are_allowed() -> Result {
    let folder = Folder::empty()?;
    let nan = model(&folder, "nan", f32::NAN)?;
    for command in ["forward", "attention"] {
        let out = format!("{command}.safetensors");
        let path = folder.at(&out);
        let run = [command, PROMPT, "--model", &nan, "--export", &path];
        leaves_nothing(&gpt2(&run)?, &folder, &out, &["not finite", "h.1.mlp.c_fc.weight"]);
        gpt2(&[&run[..], &["--allow-nonfinite"]].concat())?.succeeded();
        let is_nan = |x: &[u8; 4]| f32::from_le_bytes(*x).is_nan();
        let tensors = read(path.as_ref())?;
        assert!(
            tensors.values().any(|tensor| tensor.data.as_chunks::<4>().0.iter().any(is_nan)),
            "{command}"
        );
    }
    // The prompt has been printed by then.
    let run = gpt2(&["generate", PROMPT, "--model", &nan, "--export", &folder.at("weights.npy")])?;
    assert_eq!((run.code, folder.file("weights.npy").exists()), (1, false), "{run:?}");
    Ok(())
}

#[test]
fn inspect_names_the_tensors_of_a_damaged_model() -> Result {
    let folder = Folder::empty()?;
    for (name, number) in [("nan", f32::NAN), ("inf", f32::INFINITY)] {
        let damaged = model(&folder, name, number)?;
        let run = gpt2(&["inspect", &damaged])?;
        assert_eq!(run.code, 1, "{run:?}");
        assert_says(name, &run.stdout, &["the weights are damaged", &format!("not finite  {DAMAGED}: 1 of")]);
        let run = gpt2(&["inspect", &damaged, "--json"])?;
        let report: Value = serde_json::from_str(&run.stdout)?;
        let audit = &report["audit"];
        assert_eq!(
            (run.code, &audit["clean"], &audit["not_finite"]),
            (1, &false.into(), &vec![DAMAGED].into())
        );
    }
    assert_says("sound", &stdout(&["inspect"])?, &["all numbers are finite"]);
    Ok(())
}

#[test]
fn inspect_names_the_tensors_of_a_damaged_adapter() -> Result {
    let folder = Folder::empty()?;
    let sound = adapter(&folder, "sound")?;
    let tensor = "base_model.model.transformer.h.2.attn.c_attn.lora_B.weight";
    for (name, number) in [("nan", f32::NAN), ("inf", f32::NEG_INFINITY)] {
        let damaged = copy(&sound, &folder, name, "adapter_model.safetensors", |tensors| {
            tensors.get_mut(tensor).expect("B").data[8..12].copy_from_slice(&number.to_le_bytes());
        })?;
        for more in [&[][..], &["--model", DEMO]] {
            let run = gpt2(&[&["inspect", "--adapter", &damaged], more].concat())?;
            assert_eq!(run.code, 1, "{run:?}");
            assert_says(name, &run.stdout, &[tensor, "NaN or infinite", "h.2.attn.c_attn", "not finite"]);
        }
        let run = gpt2(&["inspect", &damaged, "--json"])?;
        let report: Value = serde_json::from_str(&run.stdout)?;
        assert_eq!((run.code, list(&report["findings"]).len()), (1, 1), "{report}");
    }
    // Finite factors whose product is not.
    let large = copy(&sound, &folder, "large", "adapter_model.safetensors", |tensors| {
        let data = &mut tensors.get_mut(tensor).expect("B").data;
        *data = f32::MAX.to_le_bytes().repeat(data.len() / 4);
    })?;
    let run = gpt2(&["inspect", &large])?;
    assert_eq!(run.code, 1, "{run:?}");
    assert_says("large", &run.stdout, &["h.2.attn.c_attn: its change overflows f32", "e4"]);
    let report = json(&["inspect", &sound, "--json"])?;
    assert_eq!(list(&report["findings"]).len(), 0);
    Ok(())
}
