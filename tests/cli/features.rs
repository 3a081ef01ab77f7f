//! `gpt2 features`: the features of a dictionary in a text.

use super::{DEMO, Run, copy_demo, gpt2, list};
use crate::common::{Result, assert_close, data, relative_error};
use crate::folder::{Folder, assert_says};
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
    let (head, query, key) = (2, 4, 1);
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
    let (c, d) = (c_attn.dim(0)?, c_attn.dim(0)? / 4);
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
fn models_features() -> String {
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

/// The weights with which a block of the demo model reads the stream.
struct AttentionWeights {
    /// (C)
    gamma: Vec<f64>,
    /// (C, 3·C)
    c_attn: Vec<Vec<f64>>,
}

impl AttentionWeights {
    fn of_block(layer: usize) -> Result<Self> {
        let weights = candle_core::safetensors::load(format!("{DEMO}/model.safetensors"), &Device::Cpu)?;
        let of = |name: &str| weights[&format!("transformer.h.{layer}.{name}")].to_dtype(DType::F64);
        Ok(Self { gamma: of("ln_1.weight")?.to_vec1()?, c_attn: of("attn.c_attn.weight")?.to_vec2()? })
    }

    /// `‖dᵀ·W‖ / (‖d‖·‖W‖)` for one of 4 heads and its queries (0), keys (1) or values (2); W is γ times the weight less the mean of each
    /// column, which layer norm takes off.
    fn read_share(&self, direction: &[f64], part: usize, head: usize) -> f64 {
        let channels = direction.len();
        let mut products = 0.0;
        let mut weights = 0.0;
        for column in (0..channels / 4).map(|i| part * channels + head * channels / 4 + i) {
            let scaled: Vec<f64> =
                self.c_attn.iter().zip(&self.gamma).map(|(row, gamma)| row[column] * gamma).collect();
            let mean = scaled.iter().sum::<f64>() / channels as f64;
            products += direction.iter().zip(&scaled).map(|(d, w)| d * (w - mean)).sum::<f64>().powi(2);
            weights += scaled.iter().map(|w| (w - mean).powi(2)).sum::<f64>();
        }
        products.sqrt() / (direction.iter().map(|d| d * d).sum::<f64>() * weights).sqrt()
    }
}

/// Details against the dictionary's tensors and the model's weights; and the pages' files, which hold the same.
#[test]
fn details_and_pages_tell_what_is_related() -> Result {
    let folder = Folder::empty()?;
    std::fs::write(
        folder.at("text.txt"),
        "ROMEO:\nO, she doth teach the torches to burn bright!\n".repeat(8),
    )?;
    let store = folder.at("store");
    gpt2(&["record", &folder.at("text.txt"), "--points", "blocks.2.hook_resid_post", "--out", &store])?
        .succeeded();
    let args = ["features", "--store", &store, "--dictionary", "demo", "--json", "-k", "3"];
    let run = gpt2(&[&args[..], &["--details"]].concat())?.succeeded();
    let details: Value = serde_json::from_str(&run.stdout)?;
    let features = list(&details["features"]);
    assert_eq!(features.len(), 768);
    let path = format!("{}/sae_weights.safetensors", models_features());
    let weights = candle_core::safetensors::load(path, &Device::Cpu)?;
    let w_dec = weights["W_dec"].to_dtype(DType::F64)?.to_vec2::<f64>()?; // (768, C)
    let row = |feature: usize| &w_dec[feature];
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let cosine =
        |a: usize, b: usize| dot(row(a), row(b)) / (dot(row(a), row(a)) * dot(row(b), row(b))).sqrt();
    let block = AttentionWeights::of_block(3)?;
    for feature in [0, 13, 713] {
        let one = &features[feature];
        let mut others: Vec<(usize, f64)> =
            (0..768).filter(|&other| other != feature).map(|other| (other, cosine(feature, other))).collect();
        others.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
        let related = list(&one["related"]);
        assert_eq!(related.len(), 3);
        for (found, (other, cosine)) in related.iter().zip(others) {
            assert_eq!(found[0].as_u64(), Some(other as u64), "{feature}");
            assert!((found[1].as_f64().ok_or("a cosine")? - cosine).abs() < 1e-5, "{feature}");
        }
        let histogram: u64 = list(&one["histogram"]).iter().filter_map(|bar| bar[2].as_u64()).sum();
        let tokens = details["tokens"].as_u64().ok_or("tokens")? as f64;
        assert!((histogram as f64 - one["share"].as_f64().ok_or("a share")? * tokens).abs() < 1e-6);
        // The stream behind block 2 is read by block 3 alone.
        let mut expected: Vec<(String, [f64; 3])> = (0..4)
            .map(|head| {
                (format!("3.{head}"), [0, 1, 2].map(|part| block.read_share(row(feature), part, head)))
            })
            .collect();
        let most = |shares: &[f64; 3]| shares.iter().copied().fold(0.0, f64::max);
        expected.sort_by(|a, b| most(&b.1).total_cmp(&most(&a.1)));
        let heads = list(&one["read_by"]);
        assert_eq!(heads.len(), 3);
        for (head, (name, shares)) in heads.iter().zip(expected) {
            assert_eq!(head[0], name, "{feature}");
            for (found, share) in list(&head[1]).iter().zip(shares) {
                assert!((found.as_f64().ok_or("a share")? - share).abs() < 1e-5, "{feature}, {name}");
            }
        }
    }
    let pages = folder.at("pages");
    let with = ["features", "--store", &store, "--dictionary", "demo", "-k", "3", "--pages", &pages];
    let run = gpt2(&with)?.succeeded();
    assert_says("stdout", &run.stdout, &["765 more"]);
    assert_eq!(run.stderr.matches("wrote ").count(), 1, "{}", run.stderr);
    let first = std::fs::read_to_string(folder.at("pages/features/0.js"))?;
    let (_, data) = first.split_once("] = ").ok_or("data")?;
    let data: Value = serde_json::from_str(data.trim_end().trim_end_matches(';'))?;
    assert_eq!(list(&data), &features[..64]);
    assert_eq!(std::fs::read_dir(folder.at("pages/features"))?.count(), 13);
    gpt2(&with)?.refused(1, &["--pages", "is there already", "--overwrite"]);
    gpt2(&[&with[..], &["--overwrite", "--feature", "7"]].concat())?.succeeded();
    // What is left of more pages would be published with the new one.
    assert_eq!(std::fs::read_dir(folder.at("pages/features"))?.count(), 2);
    let index = folder.at("pages/index.html");
    std::fs::remove_file(&index)?;
    std::fs::hard_link(folder.at("store/store.json"), &index)?;
    gpt2(&[&with[..], &["--overwrite"]].concat())?.refused(1, &["is a file of the store", "this run reads"]);
    let model = folder.at("model");
    std::fs::create_dir(&model)?;
    copy_demo(model.as_ref())?;
    let into_model =
        ["features", "--store", &store, "--dictionary", "demo", "--model", &model, "--pages", &model];
    gpt2(&into_model)?.refused(1, &["--pages", "is the folder of the model"]);
    gpt2(&["features", "O Romeo", "--dictionary", "demo", "--pages", &pages])?
        .refused(1, &["--pages", "give --store"]);
    Ok(())
}

#[test]
fn explanations_of_a_file_stand_beside_the_features() -> Result {
    let folder = Folder::empty()?;
    let evil = "says <b>\u{1b}[2J thou";
    let entries = serde_json::json!([
        { "index": "713", "description": evil }, { "index": 713, "description": "again" }, { "index": 5, "description": null },
    ]);
    let file = folder.at("explanations.json");
    std::fs::write(&file, entries.to_string())?;
    let demo = ["features", "I love thee, and thou", "--dictionary", "demo", "--explanations", &file];
    let run = gpt2(&[&demo[..], &["--json"]].concat())?.succeeded();
    let report: Value = serde_json::from_str(&run.stdout)?;
    assert_eq!(report["explanations"], serde_json::json!({ "713": [evil, "again"] }));
    let shown = gpt2(&demo)?.succeeded().stdout;
    assert_says("stdout", &shown, &["feature 713: says <b>␛[2J thou\n", "feature 713: again\n"]);
    std::fs::write(folder.at("text.txt"), "I love thee, and thou art fair\n".repeat(4))?;
    let store = folder.at("store");
    gpt2(&["record", &folder.at("text.txt"), "--points", "blocks.2.hook_resid_post", "--out", &store])?
        .succeeded();
    let over = ["features", "--store", &store, "--dictionary", "demo", "--explanations", &file];
    let shown = gpt2(&[&over[..], &["--feature", "713"]].concat())?.succeeded().stdout;
    assert_says("stdout", &shown, &["  explanation        says <b>␛[2J thou\n"]);
    let pages = folder.at("pages");
    gpt2(&[&over[..], &["--pages", &pages]].concat())?.succeeded();
    let index = std::fs::read_to_string(folder.at("pages/features/index.js"))?;
    assert!(index.contains("says <b>\\u001b[2J thou"));
    for (content, says) in [
        ("no JSON", ["explanations.json", "expected a JSON list"]),
        (
            "[{\"index\": 768, \"description\": \"x\"}]",
            ["entry 1", "features 0 to 767; is it of another dictionary?"],
        ),
        ("[{\"description\": \"x\"}]", ["entry 1", "expected the number of a feature as index"]),
    ] {
        std::fs::write(&file, content)?;
        gpt2(&demo)?.refused(1, &[&["--explanations"][..], &says].concat());
    }
    let missing = folder.at("missing.json");
    gpt2(&[&demo[..5], &[&missing]].concat())?.refused(1, &["--explanations", "cannot read", "missing.json"]);
    Ok(())
}

/// Bodies of requests: each place's tokens with the activations that a run over the text finds.
#[test]
fn requests_for_neuronpedia_hold_the_features_that_fire() -> Result {
    let folder = Folder::empty()?;
    let text = "I love thee, and thou art fair";
    std::fs::write(folder.at("text.txt"), text)?;
    let store = folder.at("store");
    gpt2(&["record", &folder.at("text.txt"), "--points", "blocks.2.hook_resid_post", "--out", &store])?
        .succeeded();
    let file = folder.at("explanations.jsonl");
    std::fs::write(&file, "{\"layer\": \"2-mine\", \"index\": \"713\", \"description\": \"thou\"}\n")?;
    let upload = folder.at("upload");
    let with = ["features", "--store", &store, "--dictionary", "demo", "-k", "3", "--neuronpedia", &upload];
    let id = ["--neuronpedia-id", "tiny/2-mine"];
    gpt2(&[&with[..], &id, &["--explanations", &file]].concat())?.succeeded();
    let read = |name: &str| -> Result<Value> {
        Ok(serde_json::from_slice(&std::fs::read(folder.at(&format!("upload/{name}")))?)?)
    };
    let about = read("about.json")?;
    assert_eq!(about["neuronpedia"]["modelId"], "tiny");
    let count = |name: &str| about["neuronpedia"][name].as_u64().ok_or(name.to_owned());
    let fires = count("features")?;
    assert_eq!(fires + count("left_out")?, 768);
    let batch = read("batch-0.json")?;
    assert_eq!(batch["source"], "2-mine");
    let features = list(&batch["features"]);
    assert_eq!(features.len() as u64, fires.min(128));
    let all = std::fs::read_dir(&upload)?.count() as u64;
    assert_eq!(all, 1 + fires.div_ceil(128));
    let batches = (0..all - 1).map(|n| read(&format!("batch-{n}.json"))).collect::<Result<Vec<_>>>()?;
    let features = batches.iter().flat_map(|batch| list(&batch["features"]));
    let one = features.clone().find(|one| one["index"] == 713).ok_or("feature 713")?;
    let run = gpt2(&["features", text, "--dictionary", "demo", "--feature", "713", "--json"])?.succeeded();
    let found: Value = serde_json::from_str(&run.stdout)?;
    let tokens: Vec<&Value> = list(&found["tokens"]).iter().map(|one| &one["token"]).collect();
    let activation = &list(&one["activations"])[0];
    assert_eq!(list(&activation["tokens"]).iter().collect::<Vec<_>>(), tokens);
    let mut expected = vec![0.0; tokens.len()];
    for fire in list(&found["details"][0]["fires"]) {
        let at: usize = fire["position"].as_u64().ok_or("a position")?.try_into()?;
        expected[at] = fire["activation"].as_f64().ok_or("a number")?;
    }
    for (value, expected) in list(&activation["values"]).iter().zip(expected) {
        assert!((value.as_f64().ok_or("a value")? - expected).abs() < 1e-4, "{value} {expected}");
    }
    assert_eq!(one["explanations"], serde_json::json!([{ "text": "thou" }]));
    assert_eq!((list(&one["topLogits"]).len(), list(&one["bottomLogits"]).len()), (3, 3));
    assert!(one["density"].as_f64().is_some_and(|share| share > 0.0 && share <= 1.0));
    gpt2(&[&with[..], &id].concat())?.refused(1, &["--neuronpedia", "holds files already", "empty folder"]);
    gpt2(&[&with[..], &["--neuronpedia-id", "tiny"]].concat())?.refused(2, &["expected MODEL/SOURCE"]);
    gpt2(&with)?.refused(2, &["--neuronpedia-id"]);
    gpt2(&[&["features", text, "--dictionary", "demo", "--neuronpedia", &upload][..], &id].concat())?
        .refused(1, &["--neuronpedia", "give --store"]);
    Ok(())
}
