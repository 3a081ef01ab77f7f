//! The config and the tensors of a model's files, whatever program wrote them.

use super::{naming, transposed_linear};
use crate::error::LoadError;
use crate::files::{Files, WeightFiles};
use crate::formats::index::Index;
use crate::formats::{gguf, json, llmc, pickle, safetensors_file};
use crate::stored::bytes::Bytes;
use crate::stored::{Encoding, Stored};
use gpt2_model::Config;
use gpt2_model::parameters::Parameter;
use naming::NamedTensors;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// The types of models that this program runs.
const TYPES: [&str; 2] = ["gpt2", "gpt_bigcode"];

/// The fields of config.json that say whose it is.
#[derive(Default, Deserialize)]
struct Type {
    model_type: Option<String>,
    architectures: Option<Vec<String>>,
}

/// config.json, whose type is checked before its fields: those of another model mean other things.
pub(super) fn config(path: &Path, bytes: &Bytes) -> Result<Config, LoadError> {
    let refused = |reason: String| LoadError::Config {
        path: path.to_path_buf(),
        reason: candle_core::Error::msg(reason),
    };
    // From a JSON list, serde would fill the fields in order.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(refused("a list; expected a GPT-2 config, a JSON object".into()));
    }
    if let Ok(Type { model_type: Some(other), .. }) = bytes.parse::<Type>()
        && !TYPES.contains(&other.as_str())
    {
        let [a, b] = TYPES;
        return Err(refused(format!("model_type is {other:?}; this program runs only {a:?} and {b:?}")));
    }
    let expected = "GPT-2 config";
    let mut fields: serde_json::Map<String, Value> = json::read(path, bytes, expected)?;
    if !END_FIELDS.iter().any(|name| fields.get(*name).is_some_and(has_negative)) {
        return json::read(path, bytes, expected);
    }
    for name in END_FIELDS {
        if let Some(value) = fields.get_mut(name) {
            *value = without_negative(value.take());
        }
    }
    serde_path_to_error::deserialize(Value::Object(fields)).map_err(|e| {
        let reason = format!("{}: {}", e.path(), e.inner());
        LoadError::json(path, expected)(reason)
    })
}

/// The fields of tokens that begin or end a text. Some programs write -1 for none, and transformers takes it as an id that no
/// token has.
const END_FIELDS: [&str; 2] = ["bos_token_id", "eos_token_id"];

fn is_negative(value: &Value) -> bool {
    value.as_i64().is_some_and(|id| id < 0)
}

/// Whether this is, or has, an id that no vocabulary has.
fn has_negative(value: &Value) -> bool {
    is_negative(value) || value.as_array().is_some_and(|ids| ids.iter().any(is_negative))
}

fn without_negative(value: Value) -> Value {
    match value {
        Value::Array(ids) => {
            let ids: Vec<Value> = ids.into_iter().filter(|id| !is_negative(id)).collect();
            if ids.is_empty() { Value::Null } else { Value::Array(ids) }
        }
        one if is_negative(&one) => Value::Null,
        other => other,
    }
}

/// The tensors under the model's names, and notes on what was read otherwise than it is stored.
pub(super) fn tensors(
    files: &Files,
    config: &Config,
    parameters: &[Parameter],
) -> Result<(NamedTensors, Vec<String>), LoadError> {
    let mut sizes = None;
    let alone = |stored: Vec<Stored>| vec![(String::new(), stored)];
    let dicts = match &files.weight_files {
        WeightFiles::Safetensors(path, bytes) => alone(safetensors_file::read(path, bytes)?),
        WeightFiles::Index(path) => alone(Index::open(path)?.read()?),
        WeightFiles::Headers(headers) => {
            let tensors = headers.iter().map(safetensors_file::read_header);
            alone(tensors.collect::<Result<Vec<_>, _>>()?.concat())
        }
        WeightFiles::Pickle(path, bytes) => {
            let saved = pickle::read_all(path, bytes)?;
            sizes = saved.sizes;
            saved.dicts
        }
        WeightFiles::Gguf(path, bytes) => {
            return Ok(of_gguf(gguf::read(&[(path.clone(), bytes.clone())])?));
        }
        WeightFiles::GgufParts(parts) => return Ok(of_gguf(gguf::read(parts)?)),
        WeightFiles::LlmC(path, bytes) => {
            return Ok((NamedTensors::already(llmc::read(path, bytes)?), vec![]));
        }
    };
    let mut named = naming::find(dicts, parameters).map_err(|prefixes| LoadError::SeveralModels {
        name: files.name.clone(),
        prefixes: prefixes.join("`, `"),
    })?;
    let mut notes = vec![];
    notes.extend(renamed(&named));
    if sizes.is_some() {
        transposed_linear::drop_shared_head(&mut named.tensors); // as nanoGPT ties them
    }
    // A gpt_bigcode under another type has such weights, too, and its heads lie in another order.
    let Type { architectures, .. } = files.config.1.parse().unwrap_or_default();
    let was_bigcode = architectures.unwrap_or_default().iter().any(|name| name.starts_with("GPTBigCode"));
    let may_be_turned = !config.is_bigcode() && config.multi_query.is_none() && !was_bigcode;
    if may_be_turned && transposed_linear::turn_linear(&mut named.tensors, parameters) {
        notes.push(
            "linear weights are saved as (out, in), as nanoGPT and nn.Linear do: they are transposed".into(),
        );
    }
    if sizes.is_some_and(|sizes: BTreeMap<_, _>| sizes.get("bias") == Some(&0))
        && transposed_linear::add_biases(&mut named.tensors, parameters)
    {
        notes.push("the model was trained without biases: they are zeros".into());
    }
    Ok((named, notes))
}

/// The tensors of a GGUF file; a note names the types that are unpacked.
fn of_gguf(tensors: Vec<(String, Stored)>) -> (NamedTensors, Vec<String>) {
    let mut packed: Vec<String> = tensors
        .iter()
        .filter(|(_, tensor)| matches!(tensor.info.dtype, Encoding::Packed(_)))
        .map(|(_, tensor)| tensor.info.dtype.to_string())
        .collect();
    packed.sort();
    packed.dedup();
    let note = (!packed.is_empty()).then(|| {
        format!("weights in {} are unpacked to f32: there are no products for them here", packed.join(", "))
    });
    (NamedTensors::already(tensors), note.into_iter().collect())
}

/// A note that names the key and the prefix, if there are any, and the keys of models that are not read.
fn renamed(named: &NamedTensors) -> Option<String> {
    let place =
        if named.key.is_empty() { "outside".into() } else { format!("under the key `{}`", named.key) };
    let others = named.other_keys.join("`, `");
    let from = match (named.key.is_empty(), others.is_empty()) {
        (true, true) => None,
        (false, true) => Some(format!("the weights are those {place}")),
        (_, false) => Some(format!("the weights are those {place}, not those under `{others}`")),
    };
    let without = (!named.wrapper.is_empty())
        .then(|| format!("names are read without their prefix `{}`", named.wrapper));
    let parts: Vec<String> = from.into_iter().chain(without).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}
