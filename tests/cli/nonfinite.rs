//! A result that is not finite is an error that says where the cause is, unless the user allows it.

use super::{case, gpt2};
use crate::common::{Result, data};
use crate::folder::{Folder, Tensors, read};
use serde_json::Value;

/// `odd` with the first number of some tensors replaced.
fn with(changes: &[(&str, f32)]) -> Result<Folder> {
    let mut tensors: Tensors = read(&data("odd").join("model.safetensors"))?;
    for (tensor, value) in changes {
        let (_, raw) = tensors.iter_mut().find(|(name, _)| name.ends_with(tensor)).ok_or("a tensor")?;
        raw.data[..4].copy_from_slice(&value.to_le_bytes());
    }
    Folder::with_tensors("odd", &tensors)
}

const IDS: [&str; 2] = ["--ids", "1,2,3"];

/// Every command that shows a run's numbers, and the file that it would write.
fn commands<'a>(file: &'a str, picture: &'a str) -> Vec<Vec<&'a str>> {
    let prompt = |args: &[&'static str]| [args, &IDS].concat();
    let export = |option| [&["attention", option, file][..], &IDS].concat();
    vec![
        prompt(&["attention"]),
        prompt(&["attention", "--json"]),
        prompt(&["attention", "--layer", "1"]),
        prompt(&["attention", "--effect"]),
        prompt(&["attention", "--effect=mean"]),
        prompt(&["attention", "--rollout"]),
        export("--html"),
        [&["attention", "--picture", picture][..], &IDS].concat(),
        export("--export"),
        prompt(&["forward"]),
        [&["forward", "--export", file][..], &IDS].concat(),
        prompt(&["lens"]),
        vec!["heads", "--length", "4", "--batch", "1"],
        prompt(&["lens", "--ablate", "0.1"]),
        vec!["generate", "--ids", "1,2,3", "-n3"],
    ]
}

#[test]
fn damaged_weights_are_named_with_their_layer_and_leave_no_file() -> Result {
    let (folder, out) = (with(&[("h.0.mlp.c_fc.weight", f32::NAN)])?, Folder::empty()?);
    let (model, file) = (folder.path().display().to_string(), out.file("w.npy").display().to_string());
    let picture = out.file("w.svg").display().to_string();
    for args in commands(&file, &picture) {
        let run = gpt2(&[&args[..], &["--model", &model]].concat())?;
        assert_eq!(run.code, 1, "{args:?}: {run:?}");
        assert!(!run.stdout.to_lowercase().contains("nan"), "{args:?}: {run:?}");
        for part in ["not finite", "layer 0", "h.0.mlp.c_fc.weight", "damaged"] {
            assert!(run.stderr.contains(part), "{args:?}: {part:?} is not in {}", run.stderr);
        }
        let error = run.stderr.split("error: ").last().unwrap_or_default();
        assert!(!error.contains("f32"), "{args:?}: it is f32 already: {error}");
        assert!(out.names()?.is_empty(), "{args:?} left {:?}", out.names()?);
    }
    Ok(())
}

#[test]
fn what_overflows_in_a_half_is_sent_to_f32_where_it_does_not() -> Result {
    // The largest f16 is 65504, and both go into the residual stream.
    let folder = with(&[("h.0.mlp.c_proj.bias", 60000.0), ("h.1.mlp.c_proj.bias", 60000.0)])?;
    let model = folder.path().display().to_string();
    let run = gpt2(&["forward", "--ids", "1,2,3", "--model", &model, "--dtype", "f16"])?;
    run.refused(1, &["not finite", "layer 1", "f16", "--dtype f32"]);
    gpt2(&["forward", "--ids", "1,2,3", "--model", &model])?.succeeded();
    Ok(())
}

#[test]
fn interventions_that_ask_for_too_much_are_named() -> Result {
    let args = ["forward", "--ids", "1,2,3", "--model", &case("odd"), "--scale", "0.1=1e38"];
    gpt2(&args)?.refused(1, &["not finite", "layer 0", "interventions"]);
    Ok(())
}

#[test]
fn broken_models_can_be_looked_at_on_purpose() -> Result {
    let folder = with(&[("h.0.mlp.c_fc.weight", f32::NAN)])?;
    let (model, file) = (folder.path().display().to_string(), folder.file("w.npy").display().to_string());
    let picture = folder.file("w.svg").display().to_string();
    for args in commands(&file, &picture) {
        if args[0] == "generate" {
            continue; // there is no next token
        }
        let _ = std::fs::remove_file(&file);
        gpt2(&[&args[..], &["--model", &model, "--allow-nonfinite"]].concat())?.succeeded();
    }
    let args = ["attention", "--export", &file, "--overwrite", "--model", &model, "--allow-nonfinite"];
    gpt2(&[&args[..], &IDS].concat())?.succeeded();
    let weights: Vec<f32> = candle_core::Tensor::read_npy(&file)?.flatten_all()?.to_vec1()?;
    assert!(weights.iter().any(|weight| weight.is_nan()), "the file hides them");
    let args = ["forward", "--json", "--ids", "1,2", "--model", &model, "--allow-nonfinite"];
    let json: Value = serde_json::from_str(&gpt2(&args)?.succeeded().stdout)?;
    assert_eq!(json["next"][0]["probability"], Value::Null);
    Ok(())
}

/// The check covers the weights that are shown, not only the final result, which no longer contains the broken head.
#[test]
fn a_broken_head_that_is_ablated_is_not_shown_as_numbers() -> Result {
    // A weight of the queries of layer 0's head 0, which the intervention then ablates.
    let (folder, out) = (with(&[("h.0.attn.c_attn.weight", f32::NAN)])?, Folder::empty()?);
    let (model, file) = (folder.path().display().to_string(), out.file("w.npy").display().to_string());
    let ablated = ["attention", "--model", &model, "--ids", "1,2,3", "--ablate", "0.0"];
    for more in [&[][..], &["--layer", "0"], &["--export", &file]] {
        gpt2(&[&ablated[..], more].concat())?.refused(1, &["not finite", "h.0.attn.c_attn.weight"]);
        assert!(out.names()?.is_empty());
    }
    Ok(())
}

#[test]
fn what_is_finite_in_f64_and_not_in_the_f32_that_is_shown_is_an_error() -> Result {
    let (model, out) = (case("odd"), Folder::empty()?);
    let file = out.file("x.safetensors").display().to_string();
    let args = ["forward", "--dtype", "f64", "--ids", "1,2,3", "--scale", "0.1=1e100", "--model", &model];
    gpt2(&[&args[..], &["--export", &file]].concat())?.refused(1, &["not finite"]);
    assert!(out.names()?.is_empty());
    Ok(())
}

#[test]
fn a_perplexity_beyond_every_number_is_an_error() -> Result {
    let mut tensors: Tensors = read(&data("odd").join("model.safetensors"))?;
    let (_, raw) = tensors.iter_mut().find(|(name, _)| name.ends_with("ln_f.weight")).ok_or("a tensor")?;
    raw.data.chunks_exact_mut(4).for_each(|number| number.copy_from_slice(&1e5f32.to_le_bytes()));
    let folder = Folder::with_tensors("odd", &tensors)?;
    let model = folder.path().display().to_string();
    gpt2(&["forward", "--ids", "1,2,3,4", "--model", &model])?.refused(1, &["perplexity", "log-probability"]);
    gpt2(&["forward", "--ids", "1,2,3,4", "--model", &model, "--allow-nonfinite"])?.succeeded();
    Ok(())
}
