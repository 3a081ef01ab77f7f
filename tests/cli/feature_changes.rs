//! `--ablate-feature`, `--scale-feature`, `--set-feature`: features of a dictionary changed in a run.

use super::features::{TEXT, dictionary, json};
use super::gpt2;
use crate::common::{Result, assert_close, data, relative_error};
use crate::folder::{Folder, assert_says};
use candle_core::{Device, Tensor};
use serde_json::Value;

/// The logits of a run with these options.
fn logits(folder: &Folder, more: &[&str]) -> Result<Tensor> {
    let export = folder.at("logits.safetensors");
    gpt2(&[&["forward", TEXT, "--export", &export, "--overwrite"][..], more].concat())?.succeeded();
    Ok(candle_core::safetensors::load(&export, &Device::Cpu)?["logits"].clone())
}

/// A feature's change is a vector that is added where it fires.
#[test]
fn changed_features_change_the_stream_by_their_direction() -> Result {
    let folder = Folder::empty()?;
    let report = json(&[])?;
    let feature = &report["tokens"][1]["strongest"][0]["feature"];
    let number = feature.to_string();
    let weights =
        candle_core::safetensors::load(format!("{}/sae_weights.safetensors", dictionary()), &Device::Cpu)?;
    let vector = folder.at("v.npy");
    weights["W_dec"].get(usize::try_from(feature.as_u64().ok_or("a number")?)?)?.write_npy(&vector)?;
    let fires = json(&["--feature", &number])?["details"][0]["fires"].clone();
    let fires: Vec<(u64, f64)> = fires
        .as_array()
        .ok_or("a list")?
        .iter()
        .filter_map(|one| Some((one["position"].as_u64()?, one["activation"].as_f64()?)))
        .collect();
    let dictionary = dictionary();
    let with = |option: &str, value: &str| logits(&folder, &["--dictionary", &dictionary, option, value]);
    let added = |change: &dyn Fn(f64) -> f64| -> Result<Tensor> {
        let adds: Vec<String> =
            fires.iter().map(|(at, value)| format!("1@{at}={vector}*{}", change(*value))).collect();
        let more: Vec<&str> = adds.iter().flat_map(|add| ["--add", add.as_str()]).collect();
        logits(&folder, &more)
    };
    assert_close("ablated", &with("--ablate-feature", &number)?, &added(&|value| -value)?, 1e-5);
    assert_close(
        "scaled",
        &with("--scale-feature", &format!("{number}=3"))?,
        &added(&|value| 2.0 * value)?,
        1e-5,
    );
    // Two at once: both from what fires before either is changed.
    let other = report["tokens"][1]["strongest"][1]["feature"].to_string();
    let both = with("--ablate-feature", &format!("{number},{other}"))?;
    let mut adds: Vec<String> = vec![];
    for (feature, file) in [(&number, "a.npy"), (&other, "b.npy")] {
        let vector = folder.at(file);
        weights["W_dec"].get(feature.parse()?)?.write_npy(&vector)?;
        let report = json(&["--feature", feature])?;
        for one in report["details"][0]["fires"].as_array().ok_or("a list")? {
            adds.extend([
                "--add".to_owned(),
                format!("1@{}={vector}*-{}", one["position"], one["activation"]),
            ]);
        }
    }
    let adds: Vec<&str> = adds.iter().map(String::as_str).collect();
    assert_close("both", &both, &logits(&folder, &adds)?, 1e-5);
    let plain = logits(&folder, &[])?;
    assert!(relative_error(&with("--ablate-feature", &number)?, &plain)? > 1e-3);
    // At one position, and where it does not fire.
    let set = with("--set-feature", &format!("{number}@0=5"))?;
    let old = fires.iter().find(|(at, _)| *at == 0).map_or(0.0, |(_, value)| *value);
    let add = format!("1@0={vector}*{}", 5.0 - old);
    assert_close("set", &set, &logits(&folder, &["--add", &add])?, 1e-5);
    Ok(())
}

/// Generation decodes token by token with a cache, `forward` reads each longer text anew.
#[test]
fn changed_features_act_on_every_new_token() -> Result {
    let dictionary = dictionary();
    let change = ["--dictionary", &dictionary, "--set-feature", "7=20"];
    let mut found = TEXT.to_owned();
    let mut ids = String::new();
    for _ in 0..4 {
        let text = if ids.is_empty() { vec![TEXT] } else { vec!["--ids", ids.as_str()] };
        let run = gpt2(&[&["forward", "--json"][..], &text, &change].concat())?.succeeded().stdout;
        let report: Value = serde_json::from_str(&run)?;
        let read = report["provenance"]["ids"].as_array().ok_or("ids")?;
        ids =
            read.iter().chain([&report["next"][0]["id"]]).map(Value::to_string).collect::<Vec<_>>().join(",");
        found.push_str(report["next"][0]["token"].as_str().ok_or("a token")?);
    }
    let usual = ["generate", TEXT, "--greedy", "--max-new-tokens", "4"];
    let generated = gpt2(&[&usual[..], &change].concat())?.succeeded().stdout;
    assert_eq!(generated.trim_end(), found.trim_end());
    assert_ne!(generated, gpt2(&usual)?.succeeded().stdout);
    Ok(())
}

#[test]
fn changes_that_do_not_fit_are_refused_by_name() -> Result {
    let dictionary = dictionary();
    let forward = |more: &[&str]| gpt2(&[&["forward", TEXT, "--dictionary", &dictionary][..], more].concat());
    forward(&["--ablate-feature", "96"])?.refused(1, &["feature 96", "0 to 95"]);
    forward(&["--ablate-feature", "7@300"])?.refused(1, &["7@300", "positions 0 to"]);
    forward(&["--scale-feature", "7"])?.refused(2, &["12=0.5"]);
    gpt2(&["forward", TEXT, "--ablate-feature", "7"])?.refused(2, &["--dictionary"]);
    forward(&[])?.refused(2, &["--ablate-feature"]);
    forward(&["--ablate-feature", "7", "--set-feature", "7@1=2"])?.refused(1, &["feature 7", "twice"]);
    let transcoder = data("features/transcoder").display().to_string();
    gpt2(&["forward", TEXT, "--dictionary", &transcoder, "--ablate-feature", "7"])?
        .refused(1, &["12", "128"]);
    Ok(())
}

/// A transcoder of the demo model: its own MLP's prediction loses a feature.
#[test]
fn features_of_transcoders_are_changed_where_they_predict() -> Result {
    let folder = Folder::empty()?;
    let from = dictionary();
    let transcoder = folder.at("transcoder");
    std::fs::create_dir(&transcoder)?;
    std::fs::copy(
        format!("{from}/sae_weights.safetensors"),
        format!("{transcoder}/sae_weights.safetensors"),
    )?;
    let mut config: Value = serde_json::from_slice(&std::fs::read(format!("{from}/cfg.json"))?)?;
    config["architecture"] = "transcoder".into();
    config["apply_b_dec_to_input"] = false.into();
    config["d_out"] = 128.into();
    config["metadata"]["hook_name"] = "blocks.1.hook_mlp_in".into();
    config["metadata"]["hook_name_out"] = "blocks.1.hook_mlp_out".into();
    std::fs::write(format!("{transcoder}/cfg.json"), config.to_string())?;
    let report: Value = serde_json::from_str(
        &gpt2(&["features", TEXT, "--dictionary", &transcoder, "--json"])?.succeeded().stdout,
    )?;
    let feature = report["tokens"][1]["strongest"][0]["feature"].to_string();
    let change = ["--dictionary", &transcoder, "--ablate-feature", &feature];
    let run = gpt2(&[&["forward", TEXT][..], &change].concat())?.succeeded();
    assert_says("stdout", &run.stdout, &["ablate-feature", "of blocks.1.hook_mlp_in"]);
    assert!(relative_error(&logits(&folder, &change)?, &logits(&folder, &[])?)? > 1e-3);
    Ok(())
}
