//! The names in a saved `GPT2LMHeadModel`, and how they relate to the model's own names.

use gpt2_model::parameters::PREFIX;

/// The prefix of the output projection, which is outside the transformer.
const HEAD: &str = "lm_head.";

/// GPT-2's causal triangle, a buffer of each layer.
const TRIANGLE: &str = "attn.bias";
/// The score of a hidden key, a buffer of each layer in older checkpoints.
const HIDDEN_SCORE: &str = "attn.masked_bias";
/// The same two in cross-attention, which needs no triangle.
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

/// The name under which transformers saves the causal triangle of a layer.
pub(crate) fn saved_triangle(layer: usize) -> String {
    saved(&format!("h.{layer}.{TRIANGLE}"))
}

/// Whether this is `h.N.attn.bias`, the triangle (1, 1, n, n), or `h.N.attn.masked_bias`, a scalar, for N < L; or one of
/// `h.N.crossattention`.
pub(crate) fn is_mask_buffer(name: &str, shape: &[usize], n_layer: usize) -> bool {
    let Some((layer, rest)) = name.strip_prefix("h.").and_then(|n| n.split_once('.')) else { return false };
    let known = match rest {
        TRIANGLE | CROSS_TRIANGLE => matches!(shape, [1, 1, n, m] if n == m),
        HIDDEN_SCORE | CROSS_HIDDEN_SCORE => shape.iter().product::<usize>() == 1,
        _ => false,
    };
    known && layer.parse::<usize>().is_ok_and(|n| n < n_layer)
}
