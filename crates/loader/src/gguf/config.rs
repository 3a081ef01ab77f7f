//! A model's config, from the keys of a GGUF file.

use super::header::Header;
use super::value::Value;
use serde_json::json;

const ARCHITECTURE: &str = "general.architecture";

/// config.json for the model that the keys describe. `vocab_size` and `tied` come from its tensors.
pub(super) fn config_json(header: &Header, vocab_size: Option<usize>, tied: bool) -> Result<Vec<u8>, String> {
    let architecture = header.text(ARCHITECTURE)?;
    if architecture != Some("gpt2") {
        let found = architecture.map_or_else(|| "there is none".into(), |name| format!("it is {name:?}"));
        return Err(format!("{ARCHITECTURE}: {found}; expected \"gpt2\""));
    }
    let required = |key: &str| header.count(key)?.ok_or_else(|| format!("{key} is missing"));
    let heads = required("gpt2.attention.head_count")?;
    if let Some(key_heads) = header.count("gpt2.attention.head_count_kv")?.filter(|n| *n != heads) {
        return Err(format!(
            "gpt2.attention.head_count_kv is {key_heads}; expected the {heads} heads of the queries"
        ));
    }
    let epsilon = match header.get("gpt2.attention.layer_norm_epsilon") {
        // As decimal digits, so that 1e-5 in f32 is 1e-5 again.
        #[allow(clippy::cast_possible_truncation)] // it was f32
        Some(Value::Float(epsilon)) => {
            json!((*epsilon as f32).to_string().parse::<f64>().unwrap_or(*epsilon))
        }
        _ => return Err("gpt2.attention.layer_norm_epsilon is missing, or is no float".into()),
    };
    let vocab_size = vocab_size.ok_or("there is no token_embd.weight of two dimensions")?;
    let config = json!({
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": vocab_size,
        "n_positions": required("gpt2.context_length")?,
        "n_embd": required("gpt2.embedding_length")?,
        "n_layer": required("gpt2.block_count")?,
        "n_head": heads,
        "n_inner": header.count("gpt2.feed_forward_length")?,
        "layer_norm_epsilon": epsilon,
        "tie_word_embeddings": tied,
        "bos_token_id": header.count("tokenizer.ggml.bos_token_id")?,
        "eos_token_id": header.count("tokenizer.ggml.eos_token_id")?,
    });
    serde_json::to_vec_pretty(&config).map_err(|e| e.to_string())
}
