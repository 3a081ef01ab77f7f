//! Every output says how it was made: model, dtype, device, attention, tokens, layers and heads, interventions,
//! version.

use super::{DEMO, ODD, gpt2, json, list, metadata};
use crate::common::Result;
use crate::folder::{Folder, assert_says};
use serde_json::{Value, json};
use sha2::Digest;

const CHANGES: [&str; 4] = ["--ablate", "0.1", "--scale", "1.2=0.5"];

/// `odd` under two interventions, on the CPU.
fn changed<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [args, &["--ids", "1,2,3", "--device", "cpu", "--model", ODD], &CHANGES].concat()
}

/// Fails unless the facts describe such a run of a model of this name.
#[track_caller]
fn assert_facts(what: &str, facts: &Value, model: &str) {
    let expected = json!({
        "gpt2": env!("CARGO_PKG_VERSION"),
        "model": model,
        "dtype": "f32",
        "device": "cpu",
        "implementation": "fused",
        "ids": [1, 2, 3],
        "interventions": ["ablate 0.1", "scale 1.2=0.5"],
    });
    for (name, value) in expected.as_object().into_iter().flatten() {
        assert_eq!(&facts[name], value, "{what}: {name} in {facts}");
    }
}

#[test]
fn every_exported_file_says_what_made_it() -> Result {
    let folder = Folder::empty()?;
    gpt2(&changed(&["forward", "--export", &folder.at("x.safetensors")]))?.succeeded();
    let entries = metadata(&folder.file("x.safetensors"))?;
    assert_eq!(entries["gpt2"], env!("CARGO_PKG_VERSION"));
    // Others will see the file: the folders of this machine are no part of it.
    assert_facts("forward", &serde_json::from_str(&entries["provenance"])?, "odd");
    let chosen = ["--layer", "1", "--head", "0,2"];
    for name in ["w.safetensors", "w.npy", "w.jsonl", "w.json", "w.png", "w.html"] {
        let path = folder.at(name);
        let option = match name {
            "w.png" => "--picture",
            "w.html" => "--html",
            _ => "--export",
        };
        let more = if name == "w.npy" { &["--provenance"][..] } else { &[] };
        gpt2(&changed(&[&["attention", option, &path], more, &chosen].concat()))?.succeeded();
        let bytes = std::fs::read(folder.file(name))?;
        let content = String::from_utf8_lossy(&bytes);
        let facts: Value = match name {
            "w.safetensors" => serde_json::from_str(&metadata(&folder.file(name))?["provenance"])?,
            "w.npy" => serde_json::from_str(&std::fs::read_to_string(folder.file("w.npy.json"))?)?,
            "w.jsonl" => {
                let line: Value = serde_json::from_str(content.lines().next().ok_or("a line")?)?;
                line["provenance"].clone()
            }
            "w.json" => {
                let square: Value = serde_json::from_str(&content)?;
                assert_eq!((&square["layers"], &square["heads"]), (&json!([1]), &json!([0, 2])));
                square["provenance"].clone()
            }
            // As uncompressed text, in a chunk of a picture or in the data of a page.
            _ => {
                let start = content.find("{\"device\":").ok_or("facts")?;
                let mut facts = serde_json::Deserializer::from_str(&content[start..]).into_iter::<Value>();
                facts.next().ok_or("an object")??
            }
        };
        assert_facts(name, &facts, "odd");
        assert!(!content.contains(ODD), "{name}: names a folder");
        assert_eq!((&facts["layers"], &facts["heads"]), (&json!([1]), &json!([0, 2])), "{name}");
        if name == "w.html" {
            assert_says(name, &content, &["f32 on cpu, fused attention; ablate 0.1, scale 1.2=0.5"]);
        }
    }
    Ok(())
}

#[test]
fn json_and_the_terminals_first_line_say_what_made_them() -> Result {
    for args in [
        &["attention"][..],
        &["attention", "--layer", "0"],
        &["attention", "--rollout"],
        &["forward"],
        &["generate", "-n2", "--greedy"],
    ] {
        let facts = json(&[&changed(args)[..], &["--json"]].concat())?;
        assert_facts(args[0], &facts["provenance"], ODD);
        let run = gpt2(&changed(args))?.succeeded();
        // Generated text has no header.
        let out = if args[0] == "generate" { &run.stderr } else { &run.stdout };
        let first = out.lines().next().unwrap_or_default();
        assert_says(args[0], first, &[ODD, "3 tokens", "f32 on cpu", "ablate 0.1, scale 1.2=0.5"]);
    }
    Ok(())
}

#[test]
fn heads_names_its_tokens_lens_and_effect_what_they_ran() -> Result {
    let heads =
        json(&["heads", "--length", "4", "--batch", "2", "--json", "--model", ODD, "--device", "cpu"])?;
    let rows = list(&heads["ids"]);
    assert_eq!(rows.len(), 2);
    for row in rows.iter().map(list) {
        assert_eq!((row.len(), &row[1..5]), (17, &row[5..9]));
    }
    assert_eq!(heads["provenance"]["device"], "cpu");
    for args in [&["lens"][..], &["attention", "--effect"]] {
        let args = [args, &["--ids", "1,2,3", "--json", "--dtype", "bf16", "--model", ODD]].concat();
        let facts = &json(&args)?["provenance"];
        assert_eq!((&facts["dtype"], &facts["ids"]), (&json!("bf16"), &json!([1, 2, 3])));
    }
    Ok(())
}

#[test]
fn the_built_in_model_names_the_hash_of_its_weights() -> Result {
    let facts = &json(&["forward", "--json", "O Romeo"])?["provenance"];
    let weights = std::fs::read(format!("{DEMO}/model.safetensors"))?;
    assert_eq!(facts["weights"]["model.safetensors"], hex::encode(sha2::Sha256::digest(weights)));
    Ok(())
}
