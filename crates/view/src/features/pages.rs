//! Pages of a dictionary's features, as a folder of files that any host of files serves and that opens from disk: `index.html` lists and
//! searches them and shows the one that the address names after `#`; its data are scripts beside it, some features in each.

use super::frame::{facts, filled};
use serde::Serialize;
use serde_json::{Value, json};

const FRAME: &str = include_str!("pages.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = concat!(include_str!("common.js"), include_str!("pages.js"));
/// The features in a file, at least.
const IN_A_FILE: usize = 64;
/// The files of features, at most, for whoever copies or publishes them.
const FILES: usize = 64;

/// The names and contents of the files.
///
/// `about` and `features` are the report of `gpt2 features --store` with details, and its features: the script reads the same names.
///
/// # Errors
/// When one cannot be serialized.
pub fn feature_pages(
    about: &impl Serialize,
    features: &[impl Serialize],
) -> serde_json::Result<Vec<(String, Vec<u8>)>> {
    let in_a_file = IN_A_FILE.max(features.len().div_ceil(FILES));
    let listed = |feature| Ok(listed(&serde_json::to_value(feature)?));
    let list = features.iter().map(listed).collect::<serde_json::Result<Vec<Value>>>()?;
    let index = json!({ "about": facts(&serde_json::to_value(about)?), "inAFile": in_a_file, "list": list });
    let mut files = vec![
        ("index.html".to_owned(), filled(FRAME, STYLE, SCRIPT).into_bytes()),
        ("features/index.js".to_owned(), script("index", &index)?),
    ];
    for (number, features) in features.chunks(in_a_file).enumerate() {
        files.push((format!("features/{number}.js"), script(&number.to_string(), &features)?));
    }
    Ok(files)
}

/// The parts of a feature that the list shows and the search reads.
fn listed(feature: &Value) -> Value {
    let tokens = feature["promoted"]["likelier"].as_array().into_iter().flatten();
    let tokens: Vec<&Value> = tokens.take(5).map(|one| &one[0]).collect();
    let place = &feature["strongest"][0];
    json!([
        feature["feature"],
        feature["share"],
        tokens,
        place["before"],
        place["token"],
        place["after"],
        place["activation"],
        feature["explanations"].as_array().map_or(&[][..], Vec::as_slice),
        feature["strongest"].as_array().is_some_and(|places| !places.is_empty())
    ])
}

/// A script that gives the page its data.
fn script(name: &str, data: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    Ok(format!("(globalThis.featureData ??= {{}})[\"{name}\"] = {};\n", serde_json::to_string(data)?)
        .into_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::frame::hash;
    use super::*;

    #[test]
    fn hostile_texts_stay_in_scripts_of_data() -> serde_json::Result<()> {
        let place =
            json!({"before": "</script><b>", "token": "\u{2028}", "after": "\"\\", "activation": 1.5});
        let feature = |n: usize| json!({"feature": n, "share": 0.5, "promoted": {"likelier": [["<i>", 1.0]]}, "explanations": ["<u>"], "strongest": [place.clone()]});
        let features: Vec<Value> = (0..=IN_A_FILE).map(feature).collect();
        let report =
            json!({"dictionary": {"name": "/home/me/<x>"}, "model": "owner/name", "store": "/home/me/store"});
        let files = feature_pages(&report, &features)?;
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["index.html", "features/index.js", "features/0.js", "features/1.js"]);
        let text = |at: usize| String::from_utf8_lossy(&files[at].1).into_owned();
        assert!(!text(0).contains("{{") && !text(0).contains("<x>"));
        // The hashes are those of what stands in the page.
        for part in [STYLE, SCRIPT] {
            assert!(text(0).contains(part) && text(0).matches(&hash(part)).count() == 1);
        }
        let data = |at: usize| -> serde_json::Result<Value> {
            let text = text(at);
            let (_, data) = text.split_once("] = ").expect("data");
            serde_json::from_str(data.trim_end().trim_end_matches(';'))
        };
        assert_eq!(data(3)?, json!([features[IN_A_FILE]]));
        assert_eq!(data(1)?["about"]["dictionary"]["name"], "<x>");
        assert_eq!(data(1)?["about"]["model"], "owner/name");
        assert!(!text(1).contains("/home/me"));
        let many: Vec<Value> = (0..10_000).map(|n| json!({"feature": n, "strongest": []})).collect();
        assert_eq!(feature_pages(&report, &many)?.len(), 2 + 64);
        assert_eq!(
            data(1)?["list"][0],
            json!([0, 0.5, ["<i>"], "</script><b>", "\u{2028}", "\"\\", 1.5, ["<u>"], true])
        );
        Ok(())
    }
}
