//! `gpt2 features --details`, `--pages`, `--explanations`, `--neuronpedia`: what is related to a feature, and files that show it.

use super::features::models_features;
use super::{DEMO, copy_demo, gpt2, list};
use crate::common::Result;
use crate::folder::{Folder, assert_says};
use candle_core::{DType, Device};
use serde_json::Value;

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

/// A store of the stream behind block 2, recorded in the folder.
fn recorded(folder: &Folder) -> Result<String> {
    std::fs::write(
        folder.at("text.txt"),
        "ROMEO:\nO, she doth teach the torches to burn bright!\n".repeat(8),
    )?;
    let store = folder.at("store");
    gpt2(&["record", &folder.at("text.txt"), "--points", "blocks.2.hook_resid_post", "--out", &store])?
        .succeeded();
    Ok(store)
}

/// The details of the demo's features over a store.
fn details(store: &str) -> Result<Value> {
    let args = ["features", "--store", store, "--dictionary", "demo", "--json", "-k", "3", "--details"];
    Ok(serde_json::from_str(&gpt2(&args)?.succeeded().stdout)?)
}

/// Details against the dictionary's tensors and the model's weights.
#[test]
fn details_tell_what_is_related() -> Result {
    let folder = Folder::empty()?;
    let details = details(&recorded(&folder)?)?;
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
    Ok(())
}

/// Pages hold the same as `--json`, and replace what is theirs alone.
#[test]
fn pages_hold_the_details_and_spare_other_files() -> Result {
    let folder = Folder::empty()?;
    let store = recorded(&folder)?;
    let details = details(&store)?;
    let features = list(&details["features"]);
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
