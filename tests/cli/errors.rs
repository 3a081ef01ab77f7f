//! Every error has a message that names it and says what to do: exit code 1, or 2 for wrong arguments.

use super::{case, comma_separated, gpt2, json};
use crate::common::{Result, data};
use crate::folder::{Folder, read, zeros};
use safetensors::Dtype;

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
    for (folder, parts) in [
        (damage("config.json", None)?, &["no config.json", "save_pretrained"][..]),
        (
            damage("config.json", Some(b"{\"n_layer\": "))?,
            &["config.json", "line 1", "expected a GPT-2 config"],
        ),
        (damage("model.safetensors", None)?, &["no weights", "pytorch_model.bin"]),
        (
            damage("model.safetensors", Some(&whole[..9000]))?,
            &["model.safetensors", "damaged", "fetch the file again"],
        ),
        (
            damage("model.safetensors", Some(b"<html>"))?,
            &["model.safetensors", "web page", "fetch the file again"],
        ),
        (
            Folder::with_tensors("odd", &shapes)?,
            &["transformer.ln_f.bias", "[47]", "[48]", "belong together"],
        ),
    ] {
        let model = folder.path().display().to_string();
        for name in ["attention", "forward", "generate"] {
            gpt2(&[name, "--model", &model, "--ids", "1"])?
                .refused(1, &[&[model.as_str()][..], parts].concat());
        }
        gpt2(&["bench", "forward", "-t1", "-r1", "--model", &model])?.refused(1, parts);
    }
    let folder = Folder::of("odd")?;
    let nowhere = folder.file("nowhere").display().to_string();
    let file = folder.file("config.json").display().to_string();
    let parts = [nowhere.as_str(), "no such directory", "config.json"];
    for args in [
        &["attention", "--ids", "1"][..],
        &["forward", "--ids", "1"],
        &["generate", "--ids", "1"],
        &["inspect"],
    ] {
        gpt2(&[args, &["--model", &nowhere]].concat())?.refused(1, &parts);
    }
    gpt2(&["inspect", &file])?.refused(1, &[&file, "is a file", "name the folder"]);
    Ok(())
}

#[test]
fn ids_beyond_the_vocabulary() -> Result {
    for name in ["attention", "forward", "generate"] {
        let run = gpt2(&[name, "--model", &case("odd"), "--ids", "5,101"])?;
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
        let run = gpt2(&[name, "--model", &case("odd"), "--ids", &ids])?;
        run.refused(1, &["78 tokens", "n_positions = 77", "shorten"]);
        let text = "O Romeo! ".repeat(500);
        gpt2(&[name, &text])?.refused(1, &["tokens", "n_positions = ", "shorten"]);
    }
    Ok(())
}

#[test]
fn layers_and_heads_that_are_not_there() -> Result {
    let args = ["attention", "--model", &case("odd"), "--ids", "1"];
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
    let inside_a_file = "config.json/x.safetensors";
    for (file, reason) in [
        ("nowhere/x.safetensors", "no folder"),
        ("sub.safetensors", "name a file"),
        (inside_a_file, "no folder"),
    ] {
        let path = folder.file(file).display().to_string();
        for name in ["attention", "forward"] {
            let run = gpt2(&[name, "--model", &case("odd"), "--ids", "1,2", "--export", &path])?;
            run.refused(1, &[&path, reason]);
            assert_eq!(run.stderr.matches(&path).count(), 1, "said twice: {}", run.stderr);
        }
    }
    assert_eq!(
        folder.names()?,
        ["config.json", "model.safetensors", "sub.safetensors"],
        "something was left behind"
    );
    assert_eq!(std::fs::read_dir(folder.file("sub.safetensors"))?.count(), 0);
    Ok(())
}

#[test]
fn a_failed_export_leaves_what_was_there() -> Result {
    let folder = Folder::empty()?;
    folder.write("x.safetensors", "precious")?;
    let path = folder.file("x.safetensors").display().to_string();
    let replace = ["--export", &path, "--overwrite"];
    gpt2(&[&["forward", "--model", &case("odd"), "--ids", "500"], &replace[..]].concat())?
        .refused(1, &["token id 500"]);
    assert_eq!(std::fs::read(folder.file("x.safetensors"))?, b"precious");
    gpt2(&[&["forward", "--model", &case("odd"), "--ids", "50"], &replace[..]].concat())?.succeeded();
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
        let run = gpt2(&[name, "--model", &case("odd"), "--ids", "1", "--export", &path])?;
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
    let run = gpt2(&["forward", "--model", &case("odd"), "--ids", "1", "--export", &path])?;
    run.refused(1, &[&path]);
    Ok(())
}

#[test]
fn devices_that_this_build_has_not_are_refused_with_the_way_to_build_them() -> Result {
    let mut refused = 0;
    for (name, available) in [
        ("cuda", candle_core::utils::cuda_is_available()),
        ("metal", candle_core::utils::metal_is_available()),
    ] {
        if available {
            continue;
        }
        refused += 1;
        let (model, feature) = (case("odd"), format!("--features {name}"));
        for device in [name.to_string(), format!("{name}:1")] {
            for args in [
                &["forward", "--ids", "1", "--model", &model][..],
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

#[test]
fn wrong_arguments_are_exit_code_2() -> Result {
    let model = case("odd");
    for args in [
        &[][..],
        &["frobnicate"],
        &["forward", "--frobnicate"],
        &["forward", "--ids"],
        &["forward", "--ids", "1,x"],
        &["forward", "--ids", "-1"],
        &["forward", "--ids", "4294967296"],
        &["forward", "--ids", "1,,2"],
        &["forward", "text", "--ids", "1"],
        &["forward", "text", "--file", "x"],
        &["forward", "--file", "x", "--ids", "1"],
        &["forward", "one", "two"],
        &["forward", "--top-k", "-1", "text"],
        &["forward", "--dtype", "f8", "text"],
        &["forward", "--device", "tpu", "text"],
        &["forward", "--device", "cuda:x", "text"],
        &["forward", "--device", "cpu:0", "text"],
        &["forward", "--threads", "0", "text"],
        &["forward", "--threads", "70000", "text"],
        &["forward", "--seed", "-1", "text"],
        &["attention", "--layer", "3-1", "text"],
        &["attention", "--layer", "1-", "text"],
        &["attention", "--layer", "a", "text"],
        &["attention", "--head", "-1", "text"],
        &["attention", "--color", "sometimes", "text"],
        &["generate", "--greedy", "--temperature", "1", "text"],
        &["generate", "--greedy", "--top-k", "5", "text"],
        &["generate", "--max-new-tokens", "many", "text"],
        &["inspect", &model, &model],
        &["bench"],
        &["bench", "everything"],
        &["bench", "core", "--impl", "magic"],
        &["bench", "core", "--runs", "0"],
        &["bench", "core", "--batch", "0"],
        &["bench", "core", "--tokens", "0"],
        &["bench", "core", "--threads", "0"],
        &["train"],
        &["train", "--text", "x"],
        &["train", "--text", "x", "--out", "y", "--threads", "0"],
    ] {
        let run = gpt2(args)?;
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{args:?}: {}", run.stderr);
        assert!(run.stderr.contains("Usage") || run.stderr.contains("--help"), "{args:?}: {}", run.stderr);
    }
    Ok(())
}

#[test]
fn a_wrong_argument_is_named_with_the_reason() -> Result {
    for (args, parts) in [
        (["attention", "--layer", "3-1"], ["3-1", "backwards"]),
        (["attention", "--layer", "a"], ["`a`", "expected N or N-M"]),
        (["forward", "--device", "tpu"], ["tpu", "expected auto, cpu, cuda"]),
        (["forward", "--threads", "0"], ["--threads", "0 is not in 1.."]),
    ] {
        gpt2(&args)?.refused(2, &parts);
    }
    Ok(())
}

#[test]
fn the_same_model_is_fine_without_any_of_this() -> Result {
    let report = json(&["forward", "--model", &case("odd"), "--ids", "5,100", "--json"])?;
    assert_eq!(report["tokens"].as_array().map(Vec::len), Some(2));
    Ok(())
}
