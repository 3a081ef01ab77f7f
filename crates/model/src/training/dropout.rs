//! Which numbers a training pass drops.

use candle_core::Result;
use gpt2_kernels::Dropout;

/// Makes a forward pass one of training: dropout at the config's rates. What is dropped is a function of the
/// seed, the step, the layer and the place in the tensor, and of nothing else: the same for any number of
/// threads, on every device, and in a forward pass that is run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Training {
    /// The run's seed.
    pub seed: u64,
    /// The optimiser's step, or whatever else tells passes apart that should not drop the same numbers; below
    /// 2^44.
    pub step: u64,
}

/// Where in the model numbers are dropped.
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
}

impl Training {
    /// The dropout of one place in the model.
    pub(crate) fn dropout(self, rate: f64, layer_idx: usize, site: Site) -> Result<Dropout> {
        // 4 bits for the site and 16 for the layer.
        Dropout::new(rate, self.seed, self.step << 20 | (layer_idx as u64) << 4 | site as u64)
    }
}
