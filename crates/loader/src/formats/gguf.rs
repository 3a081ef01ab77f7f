//! GGUF files, as llama.cpp reads and writes them: the weights, the config and the tokenizer of a model in one file.
//!
//! The layout is that of ggml's `docs/gguf.md`, version 3; version 2 differs in nothing that GPT-2 uses. Nothing in a file is
//! trusted: every length is compared with what is left of the file before it is used.

use super::gguf_header::{Header, Value};
use super::gguf_types;
use crate::error::LoadError;
use crate::error::refusal::Refusal;
use crate::stored::bytes::Bytes;
use crate::stored::names::{self, GGUF_OUTPUT};
use crate::stored::{Encoding, Stored, TensorInfo};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub(crate) const FORMAT: &str = "GGUF";

/// The parts of a model, in order; one if it is in one file. The first has the keys.
type Parts = [(PathBuf, Bytes)];

/// config.json, from the keys and tensors.
pub(crate) fn config(parts: &Parts) -> Result<Vec<u8>, LoadError> {
    let Some((path, bytes)) = parts.first() else { return Ok(vec![]) };
    let header = parse(path, bytes)?;
    let architecture =
        GgufArchitecture::of(&header).map_err(|refusal| LoadError::refused(path, FORMAT, bytes, refusal))?;
    let stored = tensors(parts)?;
    let find = |name: &str| stored.iter().find(|tensor| tensor.info.name == name);
    let table = find("token_embd.weight");
    let output = find(GGUF_OUTPUT);
    let vocab_size = table.and_then(|table| table.info.shape.first().copied());
    let tied = output.is_none() || same_numbers(table, output);
    let json = config_json(&header, architecture, vocab_size, tied);
    json.map_err(|reason| LoadError::damaged(path, FORMAT, bytes, reason))
}

/// Every tensor, under the name and with the shape that it has in a checkpoint. A table that is there twice, as embedding and as
/// output projection, is given once.
pub(crate) fn read(parts: &Parts) -> Result<Vec<(String, Stored)>, LoadError> {
    let mut stored = tensors(parts)?;
    let find = |name: &str| stored.iter().find(|tensor| tensor.info.name == name);
    if same_numbers(find("token_embd.weight"), find(GGUF_OUTPUT)) {
        stored.retain(|tensor| tensor.info.name != GGUF_OUTPUT);
    }
    let named = stored.into_iter().map(|tensor| {
        let name = names::from_gguf(&tensor.info.name).map(|(name, _)| name);
        // Another name is none of the model's, even if a checkpoint would have it.
        (name.unwrap_or_else(|| format!("{FORMAT}: {}", tensor.info.name)), tensor)
    });
    Ok(named.collect())
}

fn parse<'a>(path: &Path, bytes: &'a Bytes) -> Result<Header<'a>, LoadError> {
    Header::parse(bytes).map_err(|refusal| LoadError::refused(path, FORMAT, bytes, refusal))
}

/// The tensors of all parts.
fn tensors(parts: &Parts) -> Result<Vec<Stored>, LoadError> {
    let mut all: Vec<Stored> = vec![];
    let mut names = BTreeSet::new();
    // The first part has the keys of all. Whatever its architecture is called, a file without it is refused elsewhere.
    let first = parts.iter().next().map(|(path, bytes)| parse(path, bytes)).transpose()?;
    let is_conv1d = !first.is_some_and(|header| matches!(header.text(ARCHITECTURE), Ok(Some("starcoder"))));
    for (path, bytes) in parts {
        let damaged = |reason: String| LoadError::damaged(path, FORMAT, bytes, reason);
        for tensor in read_tensors(path, bytes, &parse(path, bytes)?, is_conv1d).map_err(damaged)? {
            if !names.insert(tensor.info.name.clone()) {
                return Err(damaged(format!("tensor {:?} is in another part, too", tensor.info.name)));
            }
            all.push(tensor);
        }
    }
    Ok(all)
}

/// The models of GGUF files that this program runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GgufArchitecture {
    Gpt2,
    /// llama.cpp's name for `gpt_bigcode`. Its weights are (out, in) in both programs.
    Starcoder,
}

impl GgufArchitecture {
    /// Refuses the files of other models.
    fn of(header: &Header) -> Result<Self, Refusal> {
        const EXPECTED: &str = "expected one of a gpt2 or a starcoder (gpt_bigcode)";
        match header.text(ARCHITECTURE)? {
            Some("gpt2") => Ok(Self::Gpt2),
            Some("starcoder") => Ok(Self::Starcoder),
            Some(other) => Err(Refusal::Unread(format!(
                "a GGUF file of a {other}; {EXPECTED}, which is what this program runs"
            ))),
            None => Err(Refusal::Unread(format!(
                "a GGUF file without {ARCHITECTURE}, so of no model; {EXPECTED}"
            ))),
        }
    }

    /// The beginning of its keys.
    fn key(self, rest: &str) -> String {
        let name = if self == Self::Gpt2 { "gpt2" } else { "starcoder" };
        format!("{name}.{rest}")
    }

    /// The heads of keys and values, if the queries have so many; llama.cpp's starcoder always has one.
    fn key_heads(self, heads: usize) -> usize {
        if self == Self::Gpt2 { heads } else { 1 }
    }
}

/// Whether both tensors are there and hold the same bytes.
fn same_numbers(a: Option<&Stored>, b: Option<&Stored>) -> bool {
    const PART: usize = 1 << 20;
    let (Some(a), Some(b)) = (a, b) else { return false };
    // Equal types and shapes take equally many bytes. The range is empty if the type is not read.
    if a.info.dtype != b.info.dtype || a.info.shape != b.info.shape || a.range.is_empty() {
        return false;
    }
    // Read, because touched pages of a map count as this process's memory.
    let read = |tensor: &Stored, from: usize| {
        let mut part = vec![0; PART.min(tensor.range.len() - from)];
        tensor.bytes.read_at(tensor.range.start + from, &mut part).ok().map(|()| part)
    };
    (0..a.range.len()).step_by(PART).all(|from| {
        let part = read(a, from);
        part.is_some() && part == read(b, from)
    })
}

/// The tensors of one part. `is_conv1d`: linear weights of the model are (in, out) in a checkpoint.
fn read_tensors(path: &Path, bytes: &Bytes, header: &Header, is_conv1d: bool) -> Result<Vec<Stored>, String> {
    let mut stored = vec![];
    for tensor in &header.tensors {
        let name = tensor.name;
        let encoding = gguf_types::encoding(tensor.kind);
        let transposed = is_conv1d && names::from_gguf(name).is_some_and(|(_, transposed)| transposed);
        let (row, rest) = tensor.dims.split_first().map_or((1, &[][..]), |(row, rest)| (*row, rest));
        let rows = rest.iter().try_fold(1usize, |rows, n| rows.checked_mul(*n));
        let too_many =
            || format!("{name}: {:?} numbers are too many, or no whole blocks of {encoding}", tensor.dims);
        rows.and_then(|rows| rows.checked_mul(row)).ok_or_else(too_many)?;
        let range = if matches!(encoding, Encoding::Unknown { .. }) {
            0..0
        } else {
            let len = encoding.bytes_of(row).zip(rows).and_then(|(row, rows)| row.checked_mul(rows));
            let len = len.ok_or_else(too_many)?;
            let start = usize::try_from(tensor.offset).ok();
            let start = start.and_then(|offset| header.data.checked_add(offset));
            let end = start.and_then(|start| start.checked_add(len)).filter(|end| *end <= bytes.len());
            let (Some(start), Some(end)) = (start, end) else {
                return Err(format!(
                    "{name}: its {len} bytes at offset {} go beyond the end of the file, which has {} bytes",
                    tensor.offset,
                    bytes.len()
                ));
            };
            start..end
        };
        let mut shape: Vec<usize> = tensor.dims.iter().rev().copied().collect();
        if transposed {
            shape.reverse();
        }
        let info = TensorInfo { name: name.to_string(), dtype: encoding, shape, file: path.to_path_buf() };
        stored.push(Stored { info, bytes: bytes.clone(), range, entry: None, strides: None, transposed });
    }
    check_overlap(&stored)?;
    Ok(stored)
}

/// Refuses tensors that share bytes, which no writer produces.
fn check_overlap(stored: &[Stored]) -> Result<(), String> {
    let mut places: Vec<_> = stored.iter().filter(|t| !t.range.is_empty()).collect();
    places.sort_by_key(|tensor| tensor.range.start);
    match places.windows(2).find(|pair| pair[1].range.start < pair[0].range.end) {
        Some(pair) => Err(format!("{} and {} share bytes of the file", pair[0].info.name, pair[1].info.name)),
        None => Ok(()),
    }
}

const ARCHITECTURE: &str = "general.architecture";

/// config.json for the model that the keys describe. `vocab_size` and `tied` come from its tensors.
fn config_json(
    header: &Header,
    of: GgufArchitecture,
    vocab_size: Option<usize>,
    tied: bool,
) -> Result<Vec<u8>, String> {
    let required = |rest: &str| {
        let key = of.key(rest);
        header.count(&key)?.ok_or_else(|| format!("{key} is missing"))
    };
    let heads = required("attention.head_count")?;
    let key = of.key("attention.head_count_kv");
    let expected = of.key_heads(heads);
    // Without the key, llama.cpp takes as many as the queries have.
    let found = header.count(&key)?.unwrap_or(heads);
    if found != expected {
        let whose = if of == GgufArchitecture::Gpt2 {
            format!("the {heads} heads of the queries")
        } else {
            "1".into()
        };
        return Err(format!("{key} is {found}; expected {whose}"));
    }
    let epsilon = match header.get(&of.key("attention.layer_norm_epsilon")) {
        // As decimal digits, so that 1e-5 in f32 is 1e-5 again.
        #[allow(clippy::cast_possible_truncation)] // it was f32
        Some(Value::Float(epsilon)) => {
            json!((*epsilon as f32).to_string().parse::<f64>().unwrap_or(*epsilon))
        }
        _ => {
            return Err(format!("{} is missing, or is not a float", of.key("attention.layer_norm_epsilon")));
        }
    };
    let vocab_size = vocab_size.ok_or("there is no token_embd.weight of two dimensions")?;
    let mut config = json!({
        "vocab_size": vocab_size,
        "n_positions": required("context_length")?,
        "n_embd": required("embedding_length")?,
        "n_layer": required("block_count")?,
        "n_head": heads,
        "n_inner": header.count(&of.key("feed_forward_length"))?,
        "layer_norm_epsilon": epsilon,
        "tie_word_embeddings": tied,
        "bos_token_id": header.count("tokenizer.ggml.bos_token_id")?,
        "eos_token_id": ends(header)?,
    });
    let own = match of {
        GgufArchitecture::Gpt2 => json!({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}),
        GgufArchitecture::Starcoder => json!({
            "model_type": "gpt_bigcode",
            "architectures": ["GPTBigCodeForCausalLM"],
            "activation_function": "gelu_pytorch_tanh",
            "multi_query": true,
        }),
    };
    if let serde_json::Value::Object(own) = own
        && let Some(config) = config.as_object_mut()
    {
        config.extend(own);
    }
    serde_json::to_vec_pretty(&config).map_err(|e| e.to_string())
}

/// The keys of the tokens that end a text: of it, of a turn and of a message. llama.cpp stops at each.
pub(crate) const END_KEYS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// `eos_token_id` as config.json has it: none, one, or a list.
fn ends(header: &Header) -> Result<serde_json::Value, String> {
    let found = END_KEYS.iter().map(|key| header.count(key)).collect::<Result<Vec<_>, _>>()?;
    let mut ends: Vec<usize> = vec![];
    for end in found.into_iter().flatten() {
        if !ends.contains(&end) {
            ends.push(end);
        }
    }
    Ok(match ends.as_slice() {
        [] => serde_json::Value::Null,
        [one] => json!(one),
        several => json!(several),
    })
}

/// The parts of a byte-level BPE.
pub(crate) struct Vocabulary<'a> {
    /// By id.
    pub(crate) tokens: Vec<&'a str>,
    /// Pairs with a space between, in order of priority.
    pub(crate) merges: Vec<&'a str>,
    /// The ids of tokens that stand for their own text.
    pub(crate) special: Vec<u32>,
}

/// llama.cpp's types of tokens that are searched for in the text before any other step.
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;

const TOKENS: &str = "tokenizer.ggml.tokens";
const MERGES: &str = "tokenizer.ggml.merges";
const TYPES: &str = "tokenizer.ggml.token_type";

/// The tokenizer that the file holds, if any.
pub(crate) fn vocabulary(bytes: &[u8]) -> Result<Option<Vocabulary<'_>>, String> {
    let header = Header::parse(bytes).map_err(Refusal::reason)?;
    let kind = header.text("tokenizer.ggml.model")?;
    match kind {
        None => return Ok(None),
        Some("gpt2") => {}
        Some(other) => return Err(format!("tokenizer.ggml.model is {other:?}; expected \"gpt2\"")),
    }
    if let Some(other) =
        header.text("tokenizer.ggml.pre")?.filter(|pre| !["gpt-2", "default", ""].contains(pre))
    {
        return Err(format!("tokenizer.ggml.pre is {other:?}; expected \"gpt-2\""));
    }
    let list = |key: &str| match header.get(key) {
        Some(Value::List(list)) => Ok(list),
        _ => Err(format!("{key} is missing, or is not a list")),
    };
    let tokens = list(TOKENS)?.texts(TOKENS)?;
    // Writers leave out an empty list.
    let merges = if header.get(MERGES).is_some() { list(MERGES)?.texts(MERGES)? } else { vec![] };
    let types = if header.get(TYPES).is_some() { list(TYPES)?.integers(TYPES)? } else { vec![] };
    if !types.is_empty() && types.len() != tokens.len() {
        return Err(format!("{TYPES} has {} elements for {} tokens", types.len(), tokens.len()));
    }
    let special = (0..)
        .zip(types)
        .filter(|(_, kind)| [CONTROL, USER_DEFINED].contains(kind))
        .map(|(id, _)| id)
        .collect();
    Ok(Some(Vocabulary { tokens, merges, special }))
}
