//! A GGUF file of Llama's shape with random weights, for candle-transformers' quantized model and for llama.cpp.

use crate::models::Model;
use anyhow::{Context, Result};
use candle_core::quantized::gguf_file::{Content, Value, write};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::quantized_llama::ModelWeights;
use std::fs::File;
use std::path::Path;

/// Where a layer's matrices and norms are in the checkpoint.
const LAYER: [(&str, &str); 9] = [
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
];

/// Writes the matrices of a Llama in `format`, and its norms in f32. The output layer is the table of embeddings. The rotary
/// channels are not put in llama.cpp's order, so that its numbers are those of another model of the same size.
///
/// # Errors
/// When a size is missing from the config, or the file cannot be written.
pub fn write_llama(
    path: &Path,
    config: &serde_json::Value,
    format: GgmlDType,
    vb: &VarBuilder,
) -> Result<()> {
    let size = |name: &str| -> Result<usize> {
        Ok(usize::try_from(config[name].as_u64().with_context(|| format!("config: {name}"))?)?)
    };
    let hidden = size("hidden_size")?;
    let inner = size("intermediate_size")?;
    let vocab = size("vocab_size")?;
    let (heads, key_heads, layers) =
        (size("num_attention_heads")?, size("num_key_value_heads")?, size("num_hidden_layers")?);
    let keys = hidden / heads * key_heads;
    let mut tensors = vec![];
    let mut add = |name: String, tensor: Tensor| -> Result<()> {
        let format = if tensor.rank() == 2 { format } else { GgmlDType::F32 };
        tensors.push((name, QTensor::quantize(&tensor, format)?));
        Ok(())
    };
    add("token_embd.weight".to_owned(), vb.get((vocab, hidden), "model.embed_tokens.weight")?)?;
    add("output_norm.weight".to_owned(), vb.get(hidden, "model.norm.weight")?)?;
    for n in 0..layers {
        for (name, from) in LAYER {
            let from = format!("model.layers.{n}.{from}.weight");
            let tensor = match name {
                "attn_q" | "attn_output" => vb.get((hidden, hidden), &from),
                "attn_k" | "attn_v" => vb.get((keys, hidden), &from),
                "ffn_gate" | "ffn_up" => vb.get((inner, hidden), &from),
                "ffn_down" => vb.get((hidden, inner), &from),
                _ => vb.get(hidden, &from),
            };
            add(format!("blk.{n}.{name}.weight"), tensor?)?;
        }
    }
    let number = |x: usize| -> Result<Value> { Ok(Value::U32(u32::try_from(x)?)) };
    let theta = config["rope_theta"].as_f64().context("config: rope_theta")?;
    #[allow(clippy::cast_possible_truncation)] // as GGUF stores it
    let metadata = [
        ("general.architecture", Value::String("llama".to_owned())),
        ("llama.block_count", number(layers)?),
        ("llama.context_length", number(size("max_position_embeddings")?)?),
        ("llama.embedding_length", number(hidden)?),
        ("llama.feed_forward_length", number(inner)?),
        ("llama.attention.head_count", number(heads)?),
        ("llama.attention.head_count_kv", number(key_heads)?),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-6)),
        ("llama.rope.dimension_count", number(hidden / heads)?),
        ("llama.rope.freq_base", Value::F32(theta as f32)),
        ("llama.vocab_size", number(vocab)?),
        ("tokenizer.ggml.model", Value::String("no_vocab".to_owned())),
    ];
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(name, value)| (*name, value)).collect();
    let tensors: Vec<(&str, &QTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let part = path.with_extension("part");
    let mut file = File::create(&part).with_context(|| format!("{}", part.display()))?;
    write(&mut file, &metadata, &tensors)?;
    Ok(std::fs::rename(part, path)?)
}

/// candle-transformers' quantized Llama of such a file.
///
/// # Errors
/// When the file cannot be read.
pub fn load_llama(path: &Path) -> Result<Box<dyn Model>> {
    let mut file = File::open(path).with_context(|| format!("{}", path.display()))?;
    let content = Content::read(&mut file)?;
    Ok(Box::new(Quantized(ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?)))
}

struct Quantized(ModelWeights);

impl Model for Quantized {
    fn read(&mut self, ids: &Tensor) -> Result<Tensor> {
        Ok(self.0.forward(ids, 0)?)
    }

    fn step(&mut self, ids: &Tensor, past: usize) -> Result<Option<Tensor>> {
        Ok(Some(self.0.forward(ids, past)?))
    }
}
