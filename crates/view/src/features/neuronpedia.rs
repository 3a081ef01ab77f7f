//! Features as Neuronpedia takes them: bodies for its `POST /api/feature/upload-batch`, some features in each.
//!
//! The form is that of `apps/webapp/app/api/feature/upload-batch/route.tsx` in github.com/hijohnnylin/neuronpedia at commit
//! ebb8426fc550 of August 2026, which its Python library 2.0.0 sends, too.

use super::frame::facts;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::fmt;
use std::str::FromStr;

/// The features in a body, at most.
const FEATURES: usize = 128;
/// The promoted tokens of a feature on either side, at most.
const LOGITS: usize = 20;
/// The UTF-16 units of an explanation, at most: a JavaScript program counts these.
const EXPLANATION: usize = 512;
const EXPECTED: &str = "expected MODEL/SOURCE as Neuronpedia names them, with the layer before the source's name: gpt2-small/6-res-jb";

/// A dictionary's place on Neuronpedia: the names of its model and of its source, which begins with the layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NeuronpediaId {
    model: String,
    source: String,
}

impl fmt::Display for NeuronpediaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.model, self.source)
    }
}

impl From<NeuronpediaId> for String {
    fn from(id: NeuronpediaId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for NeuronpediaId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map_err(|expected| format!("neuronpedia_id {text:?}: {expected}"))
    }
}

impl FromStr for NeuronpediaId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_name = |name: &str| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        let (model, source) = text.split_once('/').ok_or(EXPECTED)?;
        let (layer, name) = source.split_once('-').ok_or(EXPECTED)?;
        let is_layer = layer.bytes().all(|byte| byte.is_ascii_digit()) && layer.parse::<u32>().is_ok();
        if !is_name(model) || !is_name(name) || !is_layer {
            return Err(EXPECTED.to_owned());
        }
        Ok(Self { model: model.to_ascii_lowercase(), source: source.to_ascii_lowercase() })
    }
}

/// The names and contents of the files: `batch-N.json`, each the body of a request, and `about.json`, which says how they were made.
///
/// `about` and `features` are the report of `gpt2 features --store` for Neuronpedia, and its features. Features that never fire are left
/// out, for Neuronpedia takes none without a text.
///
/// # Errors
/// When one cannot be serialized.
pub fn neuronpedia_files(
    id: &NeuronpediaId,
    about: &impl Serialize,
    features: &[impl Serialize],
) -> serde_json::Result<Vec<(String, Vec<u8>)>> {
    let mut bodies = vec![];
    for feature in features {
        bodies.extend(body(&serde_json::to_value(feature)?));
    }
    let mut about = facts(&serde_json::to_value(about)?);
    about["neuronpedia"] = json!({
        "modelId": id.model,
        "source": id.source,
        "features": bodies.len(),
        "left_out": features.len() - bodies.len(),
    });
    let mut files = vec![("about.json".to_owned(), serde_json::to_vec_pretty(&about)?)];
    for (number, features) in bodies.chunks(FEATURES).enumerate() {
        let batch = json!({ "modelId": id.model, "source": id.source, "features": features });
        files.push((format!("batch-{number}.json"), serde_json::to_vec(&batch)?));
    }
    Ok(files)
}

/// A feature in a body; `None` if it never fires.
fn body(feature: &Value) -> Option<Value> {
    let places = feature["strongest"].as_array().filter(|places| !places.is_empty())?;
    let text = |token: &Value| token.as_str().map(told).unwrap_or_default();
    let activation = |place: &Value| {
        let around = place["around"].as_array().map(Vec::as_slice).unwrap_or_default();
        let tokens: Vec<String> = around.iter().map(|one| text(&one[0])).collect();
        let values: Vec<&Value> = around.iter().map(|one| &one[1]).collect();
        json!({ "tokens": tokens, "values": values })
    };
    let mut body = Map::new();
    body.insert("index".to_owned(), feature["feature"].clone());
    body.insert("density".to_owned(), feature["share"].clone());
    for (name, side) in [("topLogits", "likelier"), ("bottomLogits", "less_likely")] {
        let Some(tokens) = feature["promoted"][side].as_array() else { continue };
        let logit = |one: &Value| json!({ "token": text(&one[0]), "value": one[1] });
        body.insert(name.to_owned(), tokens.iter().take(LOGITS).map(logit).collect());
    }
    if let Some(explanations) = feature["explanations"].as_array() {
        let explanation = |one: &Value| json!({ "text": beginning(&text(one)) });
        body.insert("explanations".to_owned(), explanations.iter().map(explanation).collect());
    }
    body.insert("activations".to_owned(), places.iter().map(activation).collect());
    Some(Value::Object(body))
}

/// The beginning of an explanation that is not too long.
fn beginning(text: &str) -> String {
    let mut units = 0;
    let fits = |c: &char| {
        units += c.len_utf16();
        units <= EXPLANATION
    };
    text.chars().take_while(fits).collect()
}

/// A text as Neuronpedia can store it: it refuses an empty one, and its database a character 0.
fn told(text: &str) -> String {
    if text.is_empty() { "\u{fffd}".to_owned() } else { text.replace('\0', "\u{2400}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Result<NeuronpediaId, String> {
        text.parse()
    }

    #[test]
    fn names_have_a_model_a_layer_and_a_source() -> Result<(), String> {
        let NeuronpediaId { model, source } = id("GPT2-small/6-res-jb")?;
        assert_eq!([model.as_str(), &source], ["gpt2-small", "6-res-jb"]);
        for bad in [
            "",
            "gpt2-small",
            "gpt2-small/res-jb",
            "/6-res",
            "a/6-",
            "a/6",
            "a/b/6-x",
            "a b/6-x",
            "a/6-x y",
            "a/+6-x",
        ] {
            assert!(id(bad).is_err_and(|error| error.contains("gpt2-small/6-res-jb")), "{bad}");
        }
        Ok(())
    }

    #[test]
    fn bodies_hold_what_neuronpedia_allows() -> Result<(), Box<dyn std::error::Error>> {
        let logits: Vec<(String, f64)> = (0..30).map(|n| (format!(" t{n}"), 1.0)).collect();
        let fires = |n: usize| {
            json!({
                "feature": n, "share": 0.25, "explanations": ["</script>", "é".repeat(600), "🎭".repeat(300)],
                "promoted": { "likelier": logits, "less_likely": [["\0", -1.0]] },
                "strongest": [{ "activation": 2.0, "around": [["", 0.0], [" thou", 2.0]] }],
            })
        };
        let silent = json!({ "feature": 7, "share": 0.0, "strongest": [], "promoted": null });
        let features: Vec<Value> = (0..=FEATURES).map(fires).chain([silent]).collect();
        let files = neuronpedia_files(&id("m/2-x")?, &json!({ "store": "s", "features": [] }), &features)?;
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["about.json", "batch-0.json", "batch-1.json"]);
        let of = |at: usize| serde_json::from_slice::<Value>(&files[at].1);
        assert_eq!(of(0)?["neuronpedia"]["left_out"], 1);
        let first = of(1)?;
        assert_eq!((&first["modelId"], &first["source"]), (&json!("m"), &json!("2-x")));
        assert_eq!(first["features"].as_array().map(Vec::len), Some(FEATURES));
        let one = &first["features"][3];
        assert_eq!((&one["index"], &one["density"]), (&json!(3), &json!(0.25)));
        assert_eq!(one["topLogits"].as_array().map(Vec::len), Some(LOGITS));
        assert_eq!(one["bottomLogits"], json!([{ "token": "\u{2400}", "value": -1.0 }]));
        assert_eq!(one["activations"], json!([{ "tokens": ["\u{fffd}", " thou"], "values": [0.0, 2.0] }]));
        let length = |n: usize| one["explanations"][n]["text"].as_str().map(|text| text.chars().count());
        assert_eq!([length(1), length(2)], [Some(EXPLANATION), Some(EXPLANATION / 2)]);
        assert_eq!(of(2)?["features"].as_array().map(Vec::len), Some(1));
        Ok(())
    }
}
