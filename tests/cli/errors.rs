//! Every error has a message that names it and says what to do. A result that is not finite is one, unless the user
//! allows it.

use super::{ODD, comma_separated, gpt2, json, words};
use crate::common::{Result, data};
use crate::folder::{Folder, Tensors, read, serialized, zeros};
use safetensors::Dtype;
use serde_json::Value;

#[test]
fn models_that_are_not_there_or_not_whole() -> Result {
    let whole = std::fs::read(data("odd").join("model.safetensors"))?;
    let damage = |name: &str, content: Option<&[u8]>| -> Result<Folder> {
        let folder = Folder::of("odd")?;
        match content {
            Some(content) => folder.write(name, content)?,
            None => std::fs::remove_file(folder.file(name))?,
        }
        Ok(folder)
    };
    let mut shapes = read(&data("odd").join("model.safetensors"))?;
    shapes.insert("transformer.ln_f.bias".into(), zeros(Dtype::F32, &[47]));
    let config = "config.json";
    let weights = "model.safetensors";
    for (folder, parts) in [
        (damage(config, None)?, &["no config.json", "save_pretrained"][..]),
        (damage(config, Some(b"{\"n_layer\": "))?, &[config, "line 1", "expected a GPT-2 config"]),
        (damage(weights, None)?, &["no weights", "pytorch_model.bin"]),
        (damage(weights, Some(&whole[..9000]))?, &[weights, "damaged", "fetch the file again"]),
        (damage(weights, Some(b"<html>"))?, &[weights, "is a web page", "fetch the file itself"]),
        (
            Folder::with_tensors("odd", &shapes)?,
            &["transformer.ln_f.bias", "[47]", "[48]", "belong together"],
        ),
    ] {
        let model = folder.dir();
        for name in ["attention", "forward", "generate"] {
            gpt2(&[name, "--model", &model, "--ids", "1"])?
                .refused(1, &[&[model.as_str()][..], parts].concat());
        }
        gpt2(&["bench", "forward", "-t1", "-r1", "--model", &model])?.refused(1, parts);
    }
    let folder = Folder::of("odd")?;
    let nowhere = folder.at("nowhere");
    let file = folder.at("config.json");
    for line in ["attention --ids 1", "forward --ids 1", "generate --ids 1", "inspect"] {
        let run = gpt2(&[words(line), vec!["--model", &nowhere]].concat())?;
        run.refused(1, &[&nowhere, "no such directory", "config.json"]);
    }
    gpt2(&["inspect", &file])?.refused(1, &[&file, "is a JSON file", "name the folder"]);
    Ok(())
}

#[test]
fn ids_beyond_the_vocabulary() -> Result {
    for name in ["attention", "forward", "generate"] {
        let run = gpt2(&[name, "--model", ODD, "--ids", "5,101"])?;
        run.refused(1, &["token id 101", "0..101", "vocab_size"]);
        let run = gpt2(&[name, "--ids", "4294967295"])?;
        run.refused(1, &["4294967295", "vocab_size"]);
    }
    Ok(())
}

#[test]
fn prompts_longer_than_the_context() -> Result {
    let ids = comma_separated(&[1; 78]);
    for name in ["attention", "forward", "generate"] {
        let run = gpt2(&[name, "--model", ODD, "--ids", &ids])?;
        run.refused(1, &["78 tokens", "n_positions = 77", "shorten"]);
        let text = "O Romeo! ".repeat(500);
        let run = gpt2(&[name, &text])?;
        run.refused(
            1,
            &[
                "the prompt has 4500 characters",
                "the model reads n_positions = 256 tokens, which is about the first ",
                " characters of it: shorten",
            ],
        );
        assert_eq!(run.stderr.matches("the prompt").count(), 1, "{}", run.stderr);
        // Each character is three tokens, and no space separates them.
        for (times, has) in [(100, "300 tokens"), (4000, "4000 characters")] {
            let says = format!("the prompt has {has}, but");
            let run = gpt2(&[name, &"日".repeat(times)])?;
            run.refused(1, &[&says, "= 256 tokens, which is about the first 85 characters of it: shorten"]);
        }
    }
    Ok(())
}

#[test]
fn layers_and_heads_that_are_not_there() -> Result {
    let args = ["attention", "--model", ODD, "--ids", "1"];
    for (choice, parts) in [
        (&["--layer", "2"][..], ["there is no layer 2", "0 to 1"]),
        (&["--layer", "0-5"], ["there is no layer 5", "0 to 1"]),
        (&["--head", "3"], ["there is no head 3", "0 to 2"]),
        (
            &["--layer", "0", "--head", "18446744073709551615"],
            ["there is no head 18446744073709551615", "0 to 2"],
        ),
    ] {
        gpt2(&[&args[..], choice].concat())?.refused(1, &parts);
    }
    Ok(())
}

#[test]
fn exports_that_cannot_be_written() -> Result {
    let folder = Folder::of("odd")?;
    std::fs::create_dir(folder.file("sub.safetensors"))?;
    for (file, reason) in [
        ("nowhere/x.safetensors", "no folder"),
        ("sub.safetensors", "name a file"),
        ("config.json/x.safetensors", "no folder"),
    ] {
        let path = folder.at(file);
        for name in ["attention", "forward"] {
            let run = gpt2(&[name, "--model", ODD, "--ids", "1,2", "--export", &path])?;
            run.refused(1, &[&path, reason]);
            assert_eq!(run.stderr.matches(&path).count(), 1, "said twice: {}", run.stderr);
        }
    }
    let names = ["config.json", "model.safetensors", "sub.safetensors"];
    assert_eq!(folder.names()?, names, "something was left behind");
    assert_eq!(std::fs::read_dir(folder.file("sub.safetensors"))?.count(), 0);
    Ok(())
}

#[test]
fn a_failed_export_leaves_what_was_there() -> Result {
    let folder = Folder::empty()?;
    folder.write("x.safetensors", "precious")?;
    let path = folder.at("x.safetensors");
    let replace = ["--export", &path, "--overwrite"];
    gpt2(&[&["forward", "--model", ODD, "--ids", "500"], &replace[..]].concat())?
        .refused(1, &["token id 500"]);
    assert_eq!(std::fs::read(folder.file("x.safetensors"))?, b"precious");
    gpt2(&[&["forward", "--model", ODD, "--ids", "50"], &replace[..]].concat())?.succeeded();
    assert_eq!(candle_core::safetensors::load(&path, &candle_core::Device::Cpu)?.len(), 2);
    Ok(())
}

#[test]
#[cfg(unix)]
fn a_device_behind_a_link_is_not_replaced() -> Result {
    use std::os::unix::fs::FileTypeExt;
    let folder = Folder::empty()?;
    let link = folder.file("x.safetensors");
    std::os::unix::fs::symlink("/dev/null", &link)?;
    let path = link.display().to_string();
    for name in ["attention", "forward"] {
        let run = gpt2(&[name, "--model", ODD, "--ids", "1", "--export", &path])?;
        run.refused(1, &[&path, "a device"]);
    }
    assert_eq!(std::fs::read_link(&link)?.as_os_str(), "/dev/null");
    assert!(std::fs::metadata("/dev/null")?.file_type().is_char_device());
    Ok(())
}

#[test]
#[cfg(unix)]
fn a_read_only_folder_is_named() -> Result {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::empty()?;
    let sub = folder.file("sub");
    std::fs::create_dir(&sub)?;
    std::fs::set_permissions(&sub, std::fs::Permissions::from_mode(0o555))?;
    // The superuser may write there, so use a folder instead that nobody may write to.
    let sub = if std::fs::write(sub.join("probe"), "").is_ok() { "/proc".into() } else { sub };
    let path = sub.join("x.safetensors").display().to_string();
    let run = gpt2(&["forward", "--model", ODD, "--ids", "1", "--export", &path])?;
    run.refused(1, &[&path]);
    Ok(())
}

#[test]
fn devices_that_this_build_lacks_are_refused_with_the_way_to_build_them() -> Result {
    let mut refused = 0;
    for (name, available) in [
        ("cuda", candle_core::utils::cuda_is_available()),
        ("metal", candle_core::utils::metal_is_available()),
    ] {
        if available {
            continue;
        }
        refused += 1;
        let feature = format!("--features {name}");
        for device in [name.to_string(), format!("{name}:1")] {
            for args in [
                &["forward", "--ids", "1", "--model", ODD][..],
                &["attention", "--ids", "1"],
                &["generate", "O"],
                &["bench", "core"],
                &["train", "--text", "/dev/null", "--out", "/nowhere"],
            ] {
                let run = gpt2(&[args, &["--device", &device]].concat())?;
                run.refused(1, &[&format!("--device {name}"), "cargo build", &feature]);
                assert!(!run.stderr.contains("device: cpu"), "it fell back: {}", run.stderr);
            }
        }
    }
    assert!(refused > 0, "no machine has both");
    Ok(())
}

/// `odd` with the first number of some tensors replaced.
pub(crate) fn with_numbers(changes: &[(&str, f32)]) -> Result<Folder> {
    let mut tensors: Tensors = read(&data("odd").join("model.safetensors"))?;
    for (tensor, value) in changes {
        let (_, raw) = tensors.iter_mut().find(|(name, _)| name.ends_with(tensor)).ok_or("a tensor")?;
        raw.data[..4].copy_from_slice(&value.to_le_bytes());
    }
    Folder::with_tensors("odd", &tensors)
}

const IDS: [&str; 2] = ["--ids", "1,2,3"];

/// Every command that shows a run's numbers, and those that write them into the file or the picture.
fn commands<'a>(file: &'a str, picture: &'a str) -> Vec<Vec<&'a str>> {
    let shown = "attention,attention --json,attention --layer 1,attention --effect,attention --effect=mean,\
                 attention --rollout,forward,lens,lens --ablate 0.1,generate -n3";
    let written = [
        ["attention", "--html", file],
        ["attention", "--picture", picture],
        ["lens", "--picture", picture],
        ["attention", "--export", file],
        ["forward", "--export", file],
    ];
    let shown = shown.split(',').map(|line| [words(line), IDS.into()].concat());
    let written = written.iter().map(|args| [&args[..], &IDS].concat());
    shown.chain(written).chain([words("heads --length 4 --batch 1")]).collect()
}

#[test]
fn an_option_that_would_do_nothing_is_refused() -> Result {
    gpt2(&["circuits", "--token", " Romeo", "--composition", "q"])?.refused(2, &["<L.H>"]);
    gpt2(&["attention", "O", "--rollout", "--provenance"])?.refused(2, &["--export"]);
    for option in [&["--raw"][..], &["--target", ","], &["--target", ",", "--against", "."]] {
        let page = ["attention", "O", "--fragment", "--with", "lens,scores"];
        gpt2(&[&page[..], option].concat())?.refused(1, &[option[0], "--effect", "--with effect"]);
        gpt2(&[&["attention", "O", "--fragment", "--with", "lens,effect"][..], option].concat())?.succeeded();
    }
    Ok(())
}

#[test]
fn damaged_weights_are_named_with_their_layer_and_leave_no_file() -> Result {
    let folder = with_numbers(&[("h.0.mlp.c_fc.weight", f32::NAN)])?;
    let out = Folder::empty()?;
    let model = folder.dir();
    let file = out.at("w.safetensors");
    let picture = out.at("w.svg");
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
fn compare_names_the_model_that_is_not_finite() -> Result {
    let whole = Folder::empty()?;
    let broken = Folder::empty()?;
    super::copy_demo(whole.path())?;
    super::copy_demo(broken.path())?;
    let mut tensors: Tensors = read(&broken.file("model.safetensors"))?;
    let (_, raw) =
        tensors.iter_mut().find(|(name, _)| name.ends_with("h.0.mlp.c_fc.weight")).ok_or("a tensor")?;
    raw.data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    broken.write("model.safetensors", serialized(&tensors)?)?;
    broken.write("text.txt", "O Romeo, Romeo! wherefore art thou Romeo?")?;
    let text = broken.at("text.txt");
    let whole = whole.dir();
    let broken = broken.dir();
    for (models, role) in [([&broken, &whole], "MODEL"), ([&whole, &broken], "OTHER")] {
        let run = gpt2(&["compare", models[0], models[1], "--text", &text])?;
        run.refused(1, &[&format!("{role}, {broken}: "), "not finite", "layer 0", "h.0.mlp.c_fc.weight"]);
    }
    Ok(())
}

#[test]
fn what_overflows_in_a_half_is_sent_to_f32_where_it_does_not() -> Result {
    // The largest f16 is 65504, and both go into the residual stream.
    let folder = with_numbers(&[("h.0.mlp.c_proj.bias", 60000.0), ("h.1.mlp.c_proj.bias", 60000.0)])?;
    let model = folder.dir();
    let run = gpt2(&["forward", "--ids", "1,2,3", "--model", &model, "--dtype", "f16"])?;
    run.refused(1, &["not finite", "layer 1", "f16", "--dtype f32"]);
    gpt2(&["forward", "--ids", "1,2,3", "--model", &model])?.succeeded();
    Ok(())
}

#[test]
fn interventions_that_ask_for_too_much_are_named() -> Result {
    let args = ["forward", "--ids", "1,2,3", "--model", ODD, "--scale", "0.1=1e38"];
    gpt2(&args)?.refused(1, &["not finite", "layer 0", "interventions"]);
    Ok(())
}

#[test]
fn broken_models_can_be_looked_at_on_purpose() -> Result {
    let folder = with_numbers(&[("h.0.mlp.c_fc.weight", f32::NAN)])?;
    let out = Folder::empty()?;
    let model = folder.dir();
    let file = out.at("w.safetensors");
    let picture = out.at("w.svg");
    for args in commands(&file, &picture) {
        if args[0] == "generate" {
            continue; // there is no next token
        }
        let _ = (std::fs::remove_file(&file), std::fs::remove_file(&picture));
        gpt2(&[&args[..], &["--model", &model, "--allow-nonfinite"]].concat())?.succeeded();
    }
    let file = out.at("w.npy");
    let args = ["attention", "--export", &file, "--model", &model, "--allow-nonfinite"];
    gpt2(&[&args[..], &IDS].concat())?.succeeded();
    let weights: Vec<f32> = candle_core::Tensor::read_npy(&file)?.flatten_all()?.to_vec1()?;
    assert!(weights.iter().any(|weight| weight.is_nan()), "the file hides them");
    let args = ["forward", "--json", "--ids", "1,2", "--model", &model, "--allow-nonfinite"];
    assert_eq!(json(&args)?["next"][0]["probability"], Value::Null);
    Ok(())
}

/// The check covers the weights that are shown, not only the final result, which no longer contains the broken head.
#[test]
fn a_broken_head_that_is_ablated_is_not_shown_as_numbers() -> Result {
    // A weight of the queries of layer 0's head 0, which the intervention then ablates.
    let folder = with_numbers(&[("h.0.attn.c_attn.weight", f32::NAN)])?;
    let out = Folder::empty()?;
    let model = folder.dir();
    let file = out.at("w.npy");
    let ablated = ["attention", "--model", &model, "--ids", "1,2,3", "--ablate", "0.0"];
    for more in [&[][..], &["--layer", "0"], &["--export", &file]] {
        gpt2(&[&ablated[..], more].concat())?.refused(1, &["not finite", "h.0.attn.c_attn.weight"]);
        assert!(out.names()?.is_empty());
    }
    Ok(())
}

#[test]
fn what_is_finite_in_f64_and_not_in_the_f32_that_is_shown_is_an_error() -> Result {
    let out = Folder::empty()?;
    let file = out.at("x.safetensors");
    let args = ["forward", "--dtype", "f64", "--ids", "1,2,3", "--scale", "0.1=1e100", "--model", ODD];
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
    let model = folder.dir();
    gpt2(&["forward", "--ids", "1,2,3,4", "--model", &model])?.refused(1, &["perplexity", "log-probability"]);
    gpt2(&["forward", "--ids", "1,2,3,4", "--model", &model, "--allow-nonfinite"])?.succeeded();
    Ok(())
}
