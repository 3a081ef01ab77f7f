//! Dropout in a training pass.

use candle_core::Result;
use candle_fused::Dropout;

/// Turns a forward pass into a training pass, with dropout at the config's rates. The masks depend only on
/// the seed, the step, the layer and the position in the tensor: they are the same for any number of
/// threads, on every device, and when a forward pass runs again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Training {
    /// The run's seed.
    pub seed: u64,
    /// The optimizer's step, or any other number that distinguishes passes whose masks must differ; below
    /// 2^44.
    pub step: u64,
}

/// Where the model applies dropout.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Site {
    /// `embd_pdrop`, on the sum of the embeddings.
    Embeddings,
    /// `attn_pdrop`, on the attention weights.
    Weights,
    /// `resid_pdrop`, on what attention adds to the residual stream.
    Attention,
    /// `resid_pdrop`, on what the MLP adds to it.
    Mlp,
    /// `attn_pdrop`, on the weights of cross-attention.
    CrossWeights,
    /// `resid_pdrop`, on what cross-attention adds to the residual stream.
    CrossAttention,
    /// An adapter's dropout, on the input of a linear layer: the first of a block's, in their order.
    Lora,
}

impl Training {
    /// The dropout for one place in the model.
    fn dropout(self, rate: f64, layer_idx: usize, site: Site) -> Result<Dropout> {
        self.dropout_at(rate, place(layer_idx, site, 0))
    }

    /// The dropout for the place of this number, below 2^20.
    pub(crate) fn dropout_at(self, rate: f64, place: u32) -> Result<Dropout> {
        Dropout::new(rate, self.seed, self.step << 20 | u64::from(place))
    }
}

/// The number of a place in the model: 4 bits hold the site and 16 the layer.
#[allow(clippy::cast_possible_truncation)] // no model has 2^16 layers
pub(crate) fn place(layer_idx: usize, site: Site, nth: u32) -> u32 {
    (layer_idx as u32) << 4 | (site as u32 + nth)
}

/// The dropout for one place in the model, in a training pass.
pub(crate) fn dropout(
    training: Option<Training>,
    rate: f64,
    layer_idx: usize,
    site: Site,
) -> Result<Option<Dropout>> {
    training.map(|training| training.dropout(rate, layer_idx, site)).transpose()
}
