//! How a checkpoint stores the weight of a linear layer.

use candle_core::{Result, Tensor};

/// Which of a weight's axes comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightLayout {
    /// (in, out): GPT-2's `Conv1D`.
    InOut,
    /// (out, in): PyTorch's `Linear`.
    OutIn,
}

impl WeightLayout {
    /// The shape of the weight of a layer with so many inputs and outputs.
    #[must_use]
    pub fn shape(self, n_in: usize, n_out: usize) -> (usize, usize) {
        match self {
            Self::InOut => (n_in, n_out),
            Self::OutIn => (n_out, n_in),
        }
    }

    /// The weight as (in, out): a view.
    ///
    /// # Errors
    /// When the weight does not have rank 2.
    pub fn in_out(self, weight: &Tensor) -> Result<Tensor> {
        match self {
            Self::InOut => Ok(weight.clone()),
            Self::OutIn => weight.t(),
        }
    }
}
