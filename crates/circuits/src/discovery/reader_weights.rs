//! From the gradient at a layer's queries, keys or values to that at what each head reads.

use crate::circuits::folded;
use candle_core::{D, Result, Tensor};
use gpt2_model::{Block, Gpt2LMHeadModel};

/// A layer's weights of queries, keys and values, with `ln_1`'s γ folded in and each column's mean over C taken out, (H, D, C) each.
#[derive(Debug)]
pub(super) struct ReaderWeights {
    parts: [Tensor; 3],
}

impl ReaderWeights {
    /// Those of each layer.
    pub(super) fn of(model: &Gpt2LMHeadModel) -> Result<Vec<Self>> {
        model.transformer.h.iter().map(|block| Self::of_block(block, model)).collect()
    }

    fn of_block(block: &Block, model: &Gpt2LMHeadModel) -> Result<Self> {
        let heads = block.attn.head_weights()?;
        let dtype = candle_fused::accumulator(model.transformer.dtype());
        let stacked = |of: fn(&gpt2_model::HeadWeights) -> &Tensor| {
            let of_head = |head| folded(of(head), &block.ln_1)?.t();
            let all = heads.iter().map(of_head).collect::<Result<Vec<_>>>()?;
            Tensor::stack(&all, 0)?.to_dtype(dtype)?.to_device(block.ln_1.weight.device())
        };
        Ok(Self { parts: [stacked(|head| &head.q)?, stacked(|head| &head.k)?, stacked(|head| &head.v)?] })
    }

    /// The gradient at each head's copy of the stream, behind `x̂ = (x - mean(x)) / σ`, from that at its queries (part 0), keys or
    /// values: `(a - x̂·mean(a·x̂)) / σ` with `a = W·g`, whose mean over C is 0 because W's columns are centered (Ba et al. 2016,
    /// "Layer Normalization", has the derivative).
    ///
    /// # Shapes
    /// `gradient` (B, T, H, D), `scale` σ (B, T, 1), `normalized` x̂ (B, T, C) -> (H, B·T·C)
    pub(super) fn at_input(
        &self,
        part: usize,
        gradient: &Tensor,
        scale: &Tensor,
        normalized: &Tensor,
    ) -> Result<Tensor> {
        let (b, t, h, d) = gradient.dims4()?;
        let c = normalized.dim(D::Minus1)?;
        let weights = &self.parts[part]; // (H, D, C)
        let scaled = gradient.broadcast_div(&scale.unsqueeze(2)?)?;
        let scaled = scaled.reshape((b * t, h, d))?.transpose(0, 1)?.contiguous()?; // (H, B·T, D)
        let normalized = normalized.reshape((1, b * t, c))?;
        // mean(a·x̂) is g·(Wᵀx̂) / C, in which nothing of the size of a is made.
        let projected = normalized.broadcast_matmul(&weights.transpose(1, 2)?.contiguous()?)?; // (H, B·T, D)
        let along = ((&scaled * projected)?.sum_keepdim(D::Minus1)? / c as f64)?; // (H, B·T, 1)
        let all = scaled.matmul(weights)?; // (H, B·T, C)
        (all - normalized.broadcast_mul(&along)?)?.reshape((h, b * t * c))
    }
}
