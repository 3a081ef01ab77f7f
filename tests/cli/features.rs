//! `gpt2 features`: the features of a dictionary in a text.

use super::{Run, gpt2};
use crate::common::{Result, assert_close, data};
use crate::folder::Folder;
use candle_core::{DType, Device, Tensor};
use serde_json::Value;

const TEXT: &str = "O Romeo, Romeo";

fn dictionary() -> String {
    data("features/demo").display().to_string()
}

fn features(more: &[&str]) -> Result<Run> {
    gpt2(&[&["features", TEXT, "--dictionary", &dictionary()][..], more].concat())
}

fn json(more: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&features(&[&["--json"][..], more].concat())?.succeeded().stdout)?)
}

/// The value at the dictionary's hook times `W_enc`, as a formula: the four largest sums of each token fire.
#[test]
fn the_features_of_a_text_are_those_of_its_values() -> Result {
    let folder = Folder::empty()?;
    let (run, export) = (folder.at("run.safetensors"), folder.at("features.safetensors"));
    let point = "blocks.1.hook_resid_pre";
    gpt2(&["forward", TEXT, "--export", &run, "--export-point", point])?.succeeded();
    let report = json(&["--export", &export, "-k", "4"])?;
    let of = |path: &str| candle_core::safetensors::load(path, &Device::Cpu);
    let weights = of(&format!("{}/sae_weights.safetensors", dictionary()))?;
    let x = of(&run)?[point].squeeze(0)?; // (T, C)
    let pre =
        x.broadcast_sub(&weights["b_dec"])?.matmul(&weights["W_enc"])?.broadcast_add(&weights["b_enc"])?;
    let exported = of(&export)?;
    assert_close("target", &exported["target"], &x, 1e-6);
    let mut expected = vec![];
    for row in pre.to_vec2::<f32>()? {
        let mut sorted = row.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        expected.push(
            row.into_iter().map(|x| if x >= sorted[3] { x.max(0.0) } else { 0.0 }).collect::<Vec<f32>>(),
        );
    }
    let expected = Tensor::new(expected, &Device::Cpu)?;
    assert_close("features", &exported["features"], &expected, 1e-5);
    let rebuilt = expected.matmul(&weights["W_dec"])?.broadcast_add(&weights["b_dec"])?;
    assert_close("rebuilt", &exported["rebuilt"], &rebuilt, 1e-5);

    let (target, error) = (x.to_dtype(DType::F64)?, (rebuilt - &x)?.to_dtype(DType::F64)?);
    let sum = |x: &Tensor| x.sqr()?.sum_all()?.to_scalar::<f64>();
    let explained = 1.0 - sum(&error)? / sum(&target.broadcast_sub(&target.mean_keepdim(0)?)?)?;
    let quality = &report["quality"];
    assert!(
        (quality["explained_variance"].as_f64().ok_or("a number")? - explained).abs()
            < 1e-4 * explained.abs()
    );
    let fired: u64 =
        report["tokens"].as_array().ok_or("a list")?.iter().filter_map(|one| one["fired"].as_u64()).sum();
    let tokens = expected.dim(0)? as f64;
    assert!((quality["l0"].as_f64().ok_or("a number")? - fired as f64 / tokens).abs() < 1e-9);
    Ok(())
}

/// The loss as it is is that of `forward`; with the stream before block 1 zeroed, all tokens predict the same.
#[test]
fn losses_are_those_of_runs_with_another_value() -> Result {
    let report = json(&[])?;
    let forward: Value = serde_json::from_str(&gpt2(&["forward", TEXT, "--json"])?.succeeded().stdout)?;
    let of = |name: &str| report["quality"][name].as_f64().ok_or(name.to_owned());
    let nats: Vec<f64> = forward["tokens"]
        .as_array()
        .ok_or("tokens")?
        .iter()
        .filter_map(|one| one["log_prob"].as_f64())
        .collect();
    let mean = -nats.iter().sum::<f64>() / nats.len() as f64;
    assert!((of("loss")? - mean).abs() < 1e-5, "{} {mean}", of("loss")?);
    let recovered = (of("loss_zeroed")? - of("loss_rebuilt")?) / (of("loss_zeroed")? - of("loss")?);
    assert!((of("loss_recovered")? - recovered).abs() < 1e-9);
    Ok(())
}

/// Effects to first order: the logit with a slightly smaller activation, by `--add` of a part of the feature's direction.
#[test]
fn effects_are_slopes_of_the_logit() -> Result {
    let report = json(&["--target", " and", "-k", "1"])?;
    let effect = &report["effects"]["largest"][0];
    let of = |name: &str| effect[name].as_f64().ok_or(name.to_owned());
    let folder = Folder::empty()?;
    let weights =
        candle_core::safetensors::load(format!("{}/sae_weights.safetensors", dictionary()), &Device::Cpu)?;
    let feature = usize::try_from(effect["feature"].as_u64().ok_or("a number")?)?;
    let vector = folder.at("v.npy");
    weights["W_dec"].get(feature)?.write_npy(&vector)?;
    let step = 1e-2;
    let logit = |scale: f64| -> Result<f64> {
        let add = format!("1@{}={vector}*{}", effect["position"], scale * of("activation")?);
        let export = folder.at("logits.safetensors");
        gpt2(&["forward", TEXT, "--add", &add, "--export", &export, "--overwrite", "--dtype", "f32"])?
            .succeeded();
        let logits = candle_core::safetensors::load(&export, &Device::Cpu)?;
        let logits = logits["logits"].flatten_to(1)?;
        let row = logits.get(logits.dim(0)? - 1)?.to_vec1::<f32>()?;
        let forward: Value = serde_json::from_str(&gpt2(&["forward", " and", "--json"])?.succeeded().stdout)?;
        let id = usize::try_from(forward["provenance"]["ids"][0].as_u64().ok_or("an id")?)?;
        Ok(f64::from(row[id]))
    };
    let slope = (logit(step)? - logit(-step)?) / (2.0 * step);
    assert!((slope - of("effect")?).abs() < 0.02 * slope.abs(), "{slope} {}", of("effect")?);
    Ok(())
}

#[test]
fn a_feature_shows_where_it_fires_and_what_it_makes_likelier() -> Result {
    let all = json(&[])?;
    let strongest = &all["tokens"][2]["strongest"][0];
    let feature = strongest["feature"].to_string();
    let one = json(&["--feature", &feature])?;
    let fires = one["details"][0]["fires"].as_array().ok_or("a list")?;
    let at = fires.iter().find(|one| one["position"] == 2).ok_or("position 2")?;
    assert_eq!(at["activation"], strongest["activation"]);
    let promoted = &one["details"][0]["promoted"];
    assert!(promoted["likelier"][0][1].as_f64() > promoted["likelier"][1][1].as_f64());
    assert!(promoted["less_likely"][0][1].as_f64() < Some(0.0));
    let shown = features(&["--feature", &feature])?;
    assert!(shown.succeeded().stdout.contains(&format!("feature {feature}")));
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_by_name() -> Result {
    features(&["--feature", "96"])?.refused(1, &["--feature 96", "0 to 95"]);
    let other = data("features/standard").display().to_string();
    gpt2(&["features", TEXT, "--dictionary", &other])?.refused(1, &["12 numbers", "128", "another model"]);
    gpt2(&["features", TEXT, "--dictionary", "no/such"])?.refused(1, &["no/such", "no such folder"]);
    features(&["--target", " and", "--against", " and"])?.refused(1, &["the same token"]);
    let weights = format!("{}/sae_weights.safetensors", dictionary());
    features(&["--export", &weights, "--overwrite"])?.refused(1, &["a file of --dictionary"]);
    Ok(())
}
