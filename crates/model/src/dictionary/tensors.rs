//! The parts of a dictionary: its tensors, its way to select features, and its normalization of inputs.

use candle_core::Tensor;

/// The rule by which a dictionary selects the features that fire, from `pre = x·W_enc + b_enc`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Selection {
    /// Features above 0 fire.
    Relu,
    /// Features with `pre` above 0 fire, where `b_enc` is `b_gate`. Their activation is
    /// `max(0, x·W_enc·exp(r_mag) + b_mag)`.
    Gated {
        /// `r_mag`, (features)
        r_mag: Tensor,
        /// `b_mag`, (features)
        b_mag: Tensor,
    },
    /// Features above 0 and above their own threshold fire; the thresholds are (features).
    JumpRelu(Tensor),
    /// The k largest features fire, as far as they are above 0.
    TopK {
        /// The most features that can fire at a position.
        k: usize,
        /// Whether `pre` is multiplied by the norm of the feature's row of `W_dec` first, and the activation divided by it last.
        by_norm: bool,
        /// Whether features are compared by absolute value; their activations may then be negative.
        absolute: bool,
    },
}

/// The normalization of a dictionary's input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scaling {
    /// No normalization.
    #[default]
    None,
    /// Each position's mean becomes 0 and its standard deviation (of n - 1) 1.
    LayerNorm,
    /// Each position's norm becomes √d.
    ConstantNorm,
}

/// The tensors of a dictionary, in f32.
#[derive(Debug, Clone)]
pub struct DictionaryTensors {
    /// `W_enc`, (d, features)
    pub w_enc: Tensor,
    /// `b_enc`, or `b_gate`, (features)
    pub b_enc: Tensor,
    /// `W_dec`, (features, d out)
    pub w_dec: Tensor,
    /// `b_dec`, (d out)
    pub b_dec: Tensor,
    /// `W_skip` of a transcoder, (d out, d)
    pub skip: Option<Tensor>,
}
