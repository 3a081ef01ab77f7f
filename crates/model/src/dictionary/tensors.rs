//! What a dictionary is made of: its tensors, how it selects features, and how it normalizes what it reads.

use candle_core::Tensor;

/// How a dictionary selects the features that fire, from `pre = x·W_enc + b_enc`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Selection {
    /// Those above 0.
    Relu,
    /// Those with `pre` above 0, where `b_enc` is `b_gate`; their activation is `max(0, x·W_enc·exp(r_mag) + b_mag)`.
    Gated {
        /// `r_mag`, (features)
        r_mag: Tensor,
        /// `b_mag`, (features)
        b_mag: Tensor,
    },
    /// Those above 0 and above a threshold of their own, (features).
    JumpRelu(Tensor),
    /// The k largest that are above 0.
    TopK {
        /// How many.
        k: usize,
        /// Whether `pre` is multiplied by the norm of the feature's row of `W_dec` first, and the activation divided by it last.
        by_norm: bool,
        /// Whether size counts, not sign: activations may be negative.
        absolute: bool,
    },
}

/// How a dictionary normalizes what it reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scaling {
    /// Not at all.
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
