//! The points where hooks read and change values.

use std::fmt;

/// A place in the model. Points inside a block hold the layer, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Point {
    /// The residual stream before a block, (B, T, C); before block 0, the sum of the embeddings.
    ResidPre(usize),
    /// Queries, (B, T, H, D).
    Q(usize),
    /// The new positions' keys, before they go into the cache, (B, T, key heads, D).
    K(usize),
    /// The new positions' values, before they go into the cache, (B, T, key heads, D).
    V(usize),
    /// The attention weights of all heads, (B, H, T, S), in f32 or wider. A hook that wants this point makes the
    /// model compute all weights in addition to the fused kernel; replacing them replaces the context. Weights
    /// asked for as data are those before the replacement.
    Pattern(usize),
    /// Each head's context, before `c_proj`, (B, T, H, D).
    Z(usize),
    /// What attention adds to the residual stream, (B, T, C).
    AttnOut(usize),
    /// The residual stream between attention and MLP, (B, T, C).
    ResidMid(usize),
    /// What the MLP adds to the residual stream, (B, T, C).
    MlpOut(usize),
    /// The residual stream after a block, (B, T, C).
    ResidPost(usize),
    /// The output of `ln_f`, (B, T, C), or (B, 1, C) if the last block processed only the last position.
    LnFinal,
    /// The returned logits, (B, T, V) or (B, 1, V).
    Logits,
}

impl Point {
    /// The points of one layer, in the order of the forward pass.
    #[must_use]
    pub fn of_layer(layer: usize) -> [Self; 10] {
        [
            Self::ResidPre(layer),
            Self::Q(layer),
            Self::K(layer),
            Self::V(layer),
            Self::Pattern(layer),
            Self::Z(layer),
            Self::AttnOut(layer),
            Self::ResidMid(layer),
            Self::MlpOut(layer),
            Self::ResidPost(layer),
        ]
    }

    /// The layer of a point inside a block, counted from 0.
    #[must_use]
    pub fn layer(&self) -> Option<usize> {
        match *self {
            Self::ResidPre(layer)
            | Self::Q(layer)
            | Self::K(layer)
            | Self::V(layer)
            | Self::Pattern(layer)
            | Self::Z(layer)
            | Self::AttnOut(layer)
            | Self::ResidMid(layer)
            | Self::MlpOut(layer)
            | Self::ResidPost(layer) => Some(layer),
            Self::LnFinal | Self::Logits => None,
        }
    }
}

impl fmt::Display for Point {
    /// TransformerLens' name, such as `blocks.3.attn.hook_z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layer, name) = match self {
            Self::ResidPre(l) => (l, "hook_resid_pre"),
            Self::Q(l) => (l, "attn.hook_q"),
            Self::K(l) => (l, "attn.hook_k"),
            Self::V(l) => (l, "attn.hook_v"),
            Self::Pattern(l) => (l, "attn.hook_pattern"),
            Self::Z(l) => (l, "attn.hook_z"),
            Self::AttnOut(l) => (l, "hook_attn_out"),
            Self::ResidMid(l) => (l, "hook_resid_mid"),
            Self::MlpOut(l) => (l, "hook_mlp_out"),
            Self::ResidPost(l) => (l, "hook_resid_post"),
            Self::LnFinal => return f.write_str("ln_final.hook_normalized"),
            Self::Logits => return f.write_str("logits"),
        };
        write!(f, "blocks.{layer}.{name}")
    }
}
