//! The names of tensors in files, transformers' and llama.cpp's, and how they relate to the model's own names.

use gpt2_model::parameters::{LM_HEAD, PREFIX};

/// The prefix of the output projection, which is outside the transformer.
const HEAD: &str = "lm_head.";

/// GPT-2's causal triangle, a buffer of each layer.
pub(crate) const TRIANGLE: &str = "attn.bias";
/// The score of a hidden key, a buffer of each layer in older checkpoints.
const HIDDEN_SCORE: &str = "attn.masked_bias";
/// The names of both in cross-attention, which needs no triangle.
const CROSS_TRIANGLE: &str = "crossattention.bias";
const CROSS_HIDDEN_SCORE: &str = "crossattention.masked_bias";

/// The model's name for the tensor saved as `saved`.
pub(crate) fn without_prefix(saved: &str) -> &str {
    saved.strip_prefix(PREFIX).unwrap_or(saved)
}

/// The name under which transformers saves a parameter: only the output projection is outside the transformer.
pub(crate) fn saved(name: &str) -> String {
    if name.starts_with(HEAD) { name.into() } else { format!("{PREFIX}{name}") }
}

/// The number of the block that a name is of, and the name inside it.
pub(crate) fn h_of(name: &str) -> Option<(usize, &str)> {
    let (layer, rest) = name.strip_prefix("h.")?.split_once('.')?;
    Some((layer.parse().ok()?, rest))
}

/// Whether this is `h.N.attn.bias`, the triangle (1, 1, n, n), or `h.N.attn.masked_bias`, a scalar, for N < L; or one of
/// `h.N.crossattention`.
pub(crate) fn is_mask_buffer(name: &str, shape: &[usize], n_layer: usize) -> bool {
    let Some((layer, rest)) = h_of(name) else { return false };
    let known = match rest {
        TRIANGLE | CROSS_TRIANGLE => matches!(shape, [1, 1, n, m] if n == m),
        HIDDEN_SCORE | CROSS_HIDDEN_SCORE => shape.iter().product::<usize>() == 1,
        _ => false,
    };
    known && layer < n_layer
}

/// The two namings, as places in the tables.
const GGUF: usize = 0;
const OURS: usize = 1;

/// The text before the number of a block: in GGUF files, and in ours.
const BLOCKS: [&str; 2] = ["blk.", "h."];

/// The names outside the blocks.
const ROOT: [[&str; 2]; 3] = [["token_embd", "wte"], ["position_embd", "wpe"], ["output_norm", "ln_f"]];

/// The output projection, if it is not the token embedding.
pub(crate) const GGUF_OUTPUT: &str = "output.weight";
const OUTPUT: [&str; 2] = [GGUF_OUTPUT, LM_HEAD];

/// The names inside a block, and whether the weight is one of a `Conv1D`: GGUF holds its transpose.
const BLOCK: [([&str; 2], bool); 6] = [
    (["attn_norm", "ln_1"], false),
    (["attn_qkv", "attn.c_attn"], true),
    (["attn_output", "attn.c_proj"], true),
    (["ffn_norm", "ln_2"], false),
    (["ffn_up", "mlp.c_fc"], true),
    (["ffn_down", "mlp.c_proj"], true),
];

/// The checkpoint's name for llama.cpp's `name`, and whether the tensor is transposed.
pub(crate) fn from_gguf(name: &str) -> Option<(String, bool)> {
    renamed(name, GGUF, OURS)
}

/// llama.cpp's name for the checkpoint's `name`, and whether the tensor is transposed.
pub(crate) fn in_gguf(name: &str) -> Option<(String, bool)> {
    renamed(name, OURS, GGUF)
}

fn renamed(name: &str, from: usize, to: usize) -> Option<(String, bool)> {
    if name == OUTPUT[from] {
        return Some((OUTPUT[to].into(), false));
    }
    let (module, parameter) = name.rsplit_once('.')?;
    if let Some(names) = ROOT.iter().find(|names| names[from] == module) {
        return Some((format!("{}.{parameter}", names[to]), false));
    }
    let (layer, module) = module.strip_prefix(BLOCKS[from])?.split_once('.')?;
    let (names, conv1d) = BLOCK.iter().find(|(names, _)| names[from] == module)?;
    Some((format!("{}{layer}.{}.{parameter}", BLOCKS[to], names[to]), *conv1d && parameter == "weight"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpt2_model::Config;

    #[test]
    fn every_parameter_has_a_name_and_gets_its_own_back() {
        let config = Config { n_layer: 2, tie_word_embeddings: false, ..Config::gpt2() };
        for parameter in config.parameters().expect("valid") {
            let (name, transposed) = in_gguf(&parameter.name).expect("a name");
            assert_eq!(from_gguf(&name), Some((parameter.name.clone(), transposed)), "{name}");
        }
        assert_eq!(in_gguf("h.11.mlp.c_proj.weight"), Some(("blk.11.ffn_down.weight".into(), true)));
        assert_eq!(from_gguf("rope_freqs.weight"), None);
    }
}
