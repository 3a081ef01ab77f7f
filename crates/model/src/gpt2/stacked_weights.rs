//! The weights of all layers and heads as single tensors, under the names of TransformerLens' `HookedTransformer`.

use super::block::Block;
use super::layers::conv1d::Conv1D;
use super::lm_head_model::Gpt2LMHeadModel;
use crate::attention::HeadWeights;
use candle_core::{DType, Result, Tensor};

/// The names that [`Gpt2LMHeadModel::stacked_weight`] knows.
pub const STACKED_WEIGHTS: &[&str] = &[
    "W_E", "W_pos", "W_U", "b_U", "W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O", "W_in", "b_in",
    "W_out", "b_out",
];

impl Gpt2LMHeadModel {
    /// A weight of all layers and heads, as `x·W + b`: `W_Q`, `W_K` and `W_V` (L, H, C, D), `W_O` (L, H, D, C), their biases `b_Q`,
    /// `b_K`, `b_V` (L, H, D) and `b_O` (L, C); `W_in` (L, C, width), `b_in`, `W_out` (L, width, C), `b_out`; `W_E` (V, C), `W_pos`
    /// (N, C), `W_U` (C, V) and `b_U` (V). A copy, but of tables; quantized weights become f32. Heads that share keys each have them.
    ///
    /// # Errors
    /// When there is no such weight, or a layer cannot produce a dense one.
    pub fn stacked_weight(&self, name: &str) -> Result<Tensor> {
        let heads = |of: fn(&HeadWeights) -> &Tensor| {
            let of_layer = |block: &Block| {
                let all = block.attn.head_weights()?;
                Tensor::stack(&all.iter().map(of).collect::<Vec<_>>(), 0)
            };
            self.stacked(of_layer)
        };
        match name {
            "W_E" => self.transformer.wte.weight(),
            "W_pos" => Ok(self.transformer.wpe.clone()),
            "W_U" => self.lm_head.weight()?.t(),
            "b_U" => match self.lm_head.bias() {
                Some(bias) => Ok(bias.clone()),
                None => self.zeros(self.config().vocab_size),
            },
            "W_Q" => heads(|head| &head.q),
            "W_K" => heads(|head| &head.k),
            "W_V" => heads(|head| &head.v),
            "W_O" => heads(|head| &head.o),
            "b_Q" => heads(|head| &head.q_bias),
            "b_K" => heads(|head| &head.k_bias),
            "b_V" => heads(|head| &head.v_bias),
            "b_O" => self.stacked(|block| self.bias_of(&block.attn.c_proj)),
            "W_in" => self.stacked(|block| block.mlp.c_fc.weight()),
            "b_in" => self.stacked(|block| self.bias_of(&block.mlp.c_fc)),
            "W_out" => self.stacked(|block| block.mlp.c_proj.weight()),
            "b_out" => self.stacked(|block| self.bias_of(&block.mlp.c_proj)),
            other => {
                candle_core::bail!("there is no weight {other:?}; expected {}", STACKED_WEIGHTS.join(", "))
            }
        }
    }

    fn stacked(&self, of: impl Fn(&Block) -> Result<Tensor>) -> Result<Tensor> {
        Tensor::stack(&self.transformer.h.iter().map(of).collect::<Result<Vec<_>>>()?, 0)
    }

    fn bias_of(&self, layer: &Conv1D) -> Result<Tensor> {
        layer.bias().map_or_else(|| self.zeros(layer.shape().1), |bias| Ok(bias.clone()))
    }

    fn zeros(&self, width: usize) -> Result<Tensor> {
        let dtype = if self.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        Tensor::zeros(width, dtype, self.device())
    }
}
