//! `gpt2 features`: the features of a dictionary in a text.

use super::{Run, gpt2};
use crate::common::{Result, assert_close, data};
use crate::folder::Folder;
use candle_core::{DType, Device, Tensor};
use serde_json::Value;

pub(crate) const TEXT: &str = "O Romeo, Romeo";

pub(crate) fn dictionary() -> String {
    data("features/demo").display().to_string()
}

fn features(more: &[&str]) -> Result<Run> {
    gpt2(&[&["features", TEXT, "--dictionary", &dictionary()][..], more].concat())
}

pub(crate) fn json(more: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&features(&[&["--json"][..], more].concat())?.succeeded().stdout)?)
}

/// The value at the dictionary's hook times `W_enc`, as a formula: the four largest sums of each token fire.
#[test]
fn the_features_of_a_text_are_those_of_its_values() -> Result {
    let folder = Folder::empty()?;
    let run = folder.at("run.safetensors");
    let export = folder.at("features.safetensors");
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

    let target = x.to_dtype(DType::F64)?;
    let error = (rebuilt - &x)?.to_dtype(DType::F64)?;
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

/// All pairs add up to the score, and one of them is recomputed from the weights as they are in the file.
#[test]
fn pairs_of_features_add_up_to_a_score() -> Result {
    let folder = Folder::empty()?;
    let export = folder.at("run.safetensors");
    let points = "blocks.1.attn.hook_attn_scores,blocks.1.attn.hook_pattern,blocks.1.ln1.hook_scale";
    gpt2(&["forward", TEXT, "--export", &export, "--export-point", points])?.succeeded();
    let of = |path: &str| candle_core::safetensors::load(path, &Device::Cpu);
    let run = of(&export)?;
    let head = 2;
    let query = 4;
    let key = 1;
    let report = json(&["--attention", "1.2/4:1", "-k", "60000"])?;
    let found = &report["attention"];
    let number = |value: &Value| value.as_f64().ok_or("a number");
    let at = |name: &str| -> Result<f64> {
        Ok(run[name].squeeze(0)?.get(head)?.get(query)?.get(key)?.to_scalar::<f32>()?.into())
    };
    let score = at("blocks.1.attn.hook_attn_scores")?;
    assert!((number(&found["score"])? - score).abs() < 1e-5 * score.abs());
    assert!((number(&found["weight"])? - at("blocks.1.attn.hook_pattern")?).abs() < 1e-6);
    let pairs = found["pairs"].as_array().ok_or("pairs")?;
    let sum: f64 = pairs.iter().filter_map(|pair| pair["score"].as_f64()).sum();
    assert!((sum - score).abs() < 1e-4 * score.abs().max(1.0), "{sum} {score}");

    let pair = pairs.iter().find(|pair| pair["query"].is_object() && pair["key"].is_object());
    let pair = pair.ok_or("a pair of features")?;
    let model =
        of(&format!("{}/../../models/tiny-shakespeare/model.safetensors", env!("CARGO_MANIFEST_DIR")))?;
    let tensor = |end: &str| -> Result<Tensor> {
        let found = model.iter().find(|(name, _)| name.ends_with(&format!("h.1.{end}")));
        Ok(found.ok_or(end.to_owned())?.1.to_dtype(DType::F64)?)
    };
    let (gamma, c_attn) = (tensor("ln_1.weight")?, tensor("attn.c_attn.weight")?); // (C), (C, 3C)
    let c = c_attn.dim(0)?;
    let d = c_attn.dim(0)? / 4;
    let w_dec = of(&format!("{}/sae_weights.safetensors", dictionary()))?["W_dec"].clone();
    let part = |side: &Value, position: usize, column: usize| -> Result<Tensor> {
        let feature = usize::try_from(side["feature"].as_u64().ok_or("a feature")?)?;
        let direction = w_dec.get(feature)?.to_dtype(DType::F64)?;
        let centered = direction.broadcast_sub(&direction.mean_all()?)?;
        let scale = run["blocks.1.ln1.hook_scale"].flatten_all()?.get(position)?.to_scalar::<f32>()?;
        let factor = number(&side["activation"])? / f64::from(scale);
        let weight = c_attn.narrow(1, column * c + head * d, d)?.contiguous()?;
        Ok((centered * &gamma)?.unsqueeze(0)?.matmul(&weight)?.affine(factor, 0.0)?)
    };
    let q = part(&pair["query"], query, 0)?;
    let k = part(&pair["key"], key, 1)?;
    let expected = (q * k)?.sum_all()?.to_scalar::<f64>()? / (d as f64).sqrt();
    let got = number(&pair["score"])?;
    assert!((got - expected).abs() < 1e-4 * expected.abs().max(1e-2), "{got} {expected}");

    features(&["--attention", "0.1/4:1"])?.refused(1, &["--attention", "blocks.0.hook_resid_pre"]);
    features(&["--attention", "1.9/4:1"])?.refused(1, &["1.9", "heads 0 to 3"]);
    features(&["--attention", "1.1/400:1"])?.refused(1, &["400", "positions"]);
    features(&["--attention", "1.1/4:1", "--attention-temperature", "1.1=0.5"])?
        .refused(1, &["hook_q", "leave it out"]);
    features(&["--attention", "1.1/4:1", "--block", "4:1"])?.refused(1, &["knocked out"]);
    features(&["--attention", "1.1"])?.refused(2, &["1.1", "QUERY:KEY"]);
    Ok(())
}

/// Over a store of three documents: the same counts and strongest tokens as in the activations of each text.
#[test]
fn a_store_says_how_often_a_feature_fires_and_where_most() -> Result {
    let folder = Folder::empty()?;
    let texts = ["O Romeo, Romeo", "To be, or not to be, that is the question", "What say you, my lord?"];
    std::fs::write(folder.at("texts.txt"), texts.join("\n"))?;
    let store = folder.at("store");
    let point = "blocks.1.hook_in"; // another name of blocks.1.hook_resid_pre
    gpt2(&["record", &folder.at("texts.txt"), "--by", "line", "--points", point, "--out", &store])?
        .succeeded();
    let over = |more: &[&str]| -> Result<Value> {
        let args = ["features", "--store", &store, "--dictionary", &dictionary(), "--json", "-k", "3"];
        Ok(serde_json::from_str(&gpt2(&[&args[..], more].concat())?.succeeded().stdout)?)
    };
    let (mut all, mut total): (Vec<(usize, usize, Vec<f32>)>, usize) = (vec![], 0);
    for (document, text) in texts.iter().enumerate() {
        let export = folder.at(&format!("{document}.safetensors"));
        gpt2(&["features", text, "--dictionary", &dictionary(), "--export", &export])?.succeeded();
        let found = candle_core::safetensors::load(&export, &Device::Cpu)?["features"].to_vec2::<f32>()?;
        total += found.len();
        all.extend(found.into_iter().enumerate().map(|(position, row)| (document, position, row)));
    }
    let summary = over(&[])?;
    assert_eq!(summary["tokens"].as_u64(), Some(total as u64));
    let fired = |feature: usize| all.iter().filter(|(_, _, row)| row[feature] != 0.0).count();
    let silent = (0..96).filter(|&feature| fired(feature) == 0).count();
    assert_eq!(summary["silent"].as_u64(), Some(silent as u64));
    let most = usize::try_from(summary["features"][0]["feature"].as_u64().ok_or("a feature")?)?;
    assert_eq!(fired(most), (0..96).map(fired).max().ok_or("features")?);

    let report = over(&["--feature", &most.to_string()])?;
    let one = &report["features"][0];
    let share = one["share"].as_f64().ok_or("a share")?;
    assert!((share - fired(most) as f64 / total as f64).abs() < 1e-9, "{share}");
    assert!(one["promoted"]["likelier"][0][0].is_string());
    // No two peaks of one document, which are all short.
    let mut best: Vec<(f32, usize, usize)> = vec![];
    for document in 0..texts.len() {
        let of = |(at, position, row): &(usize, usize, Vec<f32>)| {
            (*at == document && row[most] != 0.0).then_some((row[most], document, *position))
        };
        best.extend(all.iter().filter_map(of).max_by(|a, b| a.0.total_cmp(&b.0)));
    }
    best.sort_by(|a, b| b.0.total_cmp(&a.0));
    let strongest = one["strongest"].as_array().ok_or("a list")?;
    assert_eq!(strongest.len(), best.len());
    for (found, (activation, document, position)) in strongest.iter().zip(best) {
        let of = |name: &str| found[name].as_f64().ok_or(name.to_owned());
        assert!((of("activation")? - f64::from(activation)).abs() < 1e-4, "{found}");
        assert_eq!((of("document")?, of("position")?), (document as f64, position as f64));
        let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
        let around = [text("before"), text("token"), text("after")].concat();
        assert!(texts[document].contains(&around), "{around}");
    }

    let other = models_features();
    gpt2(&["features", "--store", &store, "--dictionary", &other])?
        .refused(1, &["has no blocks.2.hook_resid_post", point]);
    gpt2(&["features", "--store", &folder.at("none"), "--dictionary", &dictionary()])?.refused(1, &["none"]);
    gpt2(&["features", "--store", &store, "--dictionary", &dictionary(), "--target", " and"])?
        .refused(2, &["--store", "--target"]);
    Ok(())
}

#[test]
fn a_page_shows_the_features_of_each_token() -> Result {
    let folder = Folder::empty()?;
    let page = folder.at("page.html");
    let run =
        |more: &[&str]| gpt2(&[&["attention", TEXT, "--html", &page, "--overwrite"][..], more].concat());
    run(&["--with", "features", "--dictionary", &dictionary(), "--ablate", "0.1", "--compare"])?.succeeded();
    let text = std::fs::read_to_string(&page)?;
    let found: Vec<Value> = text
        .split("class=\"features\">")
        .skip(1)
        .filter_map(|rest| serde_json::from_str(rest.split_once("</script")?.0).ok())
        .collect();
    assert_eq!(found.len(), 2, "a block for each run");
    let report = json(&["-k", "4"])?;
    for (shown, place) in found[0]["tokens"]
        .as_array()
        .ok_or("tokens")?
        .iter()
        .zip(report["tokens"].as_array().ok_or("tokens")?)
    {
        assert_eq!(shown[0][0], place["strongest"][0]["feature"]);
    }
    assert_ne!(found[0]["tokens"], found[1]["tokens"]);
    run(&["--with", "features"])?.refused(1, &["--with features", "--dictionary"]);
    run(&["--with", "lens", "--dictionary", &dictionary()])?
        .refused(1, &["--dictionary", "nothing here uses it"]);
    Ok(())
}

/// The dictionary that ships beside the code.
pub(crate) fn models_features() -> String {
    format!("{}/../../models/tiny-shakespeare-features", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn what_does_not_fit_is_refused_by_name() -> Result {
    features(&["--feature", "96"])?.refused(1, &["--feature 96", "0 to 95"]);
    let other = data("features/standard").display().to_string();
    gpt2(&["features", TEXT, "--dictionary", &other])?.refused(1, &["12 numbers", "128", "another model"]);
    gpt2(&["features", TEXT, "--dictionary", "./no/such"])?.refused(1, &["no/such", "no such folder"]);
    gpt2(&["features", TEXT, "--dictionary", "no/such", "--offline"])?
        .refused(1, &["there is no folder no/such", "on the Hub"]);
    features(&["--target", " and", "--against", " and"])?.refused(1, &["the same token"]);
    let weights = format!("{}/sae_weights.safetensors", dictionary());
    features(&["--export", &weights, "--overwrite"])?.refused(1, &["a file of --dictionary"]);
    Ok(())
}
