//! From the gradient at a layer's queries, keys or values to that at what each head reads.

use crate::circuits::{f64_of, folded};
use candle_core::{D, Result, Tensor};
use gpt2_model::{Block, Gpt2LMHeadModel, HeadWeights};

/// A layer's weights of queries, keys and values, with `ln_1`'s γ folded in and each column's mean over C taken out, (H, D, C) each.
#[derive(Debug)]
pub(super) struct ReaderWeights {
    parts: [Tensor; 3],
    /// The constant part of queries and keys, (H, D) each: their biases, and their weights applied to `ln_1`'s β.
    biases: [Tensor; 2],
}

impl ReaderWeights {
    /// The weights of all layers.
    pub(super) fn of(model: &Gpt2LMHeadModel) -> Result<Vec<Self>> {
        model.transformer.h.iter().map(|block| Self::of_block(block, model)).collect()
    }

    fn of_block(block: &Block, model: &Gpt2LMHeadModel) -> Result<Self> {
        let heads = block.attn.head_weights()?;
        let dtype = candle_fused::accumulator(model.dtype());
        let stacked = |of: fn(&HeadWeights) -> &Tensor| {
            let of_head = |head| folded(of(head), &block.ln_1)?.t();
            let all = heads.iter().map(of_head).collect::<Result<Vec<_>>>()?;
            Tensor::stack(&all, 0)?.to_dtype(dtype)?.to_device(block.ln_1.weight.device())
        };
        let beta = f64_of(&block.ln_1.bias)?.unsqueeze(0)?; // (1, C)
        let biases = |of: fn(&HeadWeights) -> (&Tensor, &Tensor)| {
            let of_head = |head: &HeadWeights| {
                let (weight, bias) = of(head);
                beta.matmul(&f64_of(weight)?)?.squeeze(0)? + f64_of(bias)?
            };
            let all = heads.iter().map(of_head).collect::<Result<Vec<_>>>()?;
            Tensor::stack(&all, 0)?.to_dtype(dtype)?.to_device(block.ln_1.weight.device())
        };
        Ok(Self {
            parts: [stacked(|head| &head.q)?, stacked(|head| &head.k)?, stacked(|head| &head.v)?],
            biases: [biases(|head| (&head.q, &head.q_bias))?, biases(|head| (&head.k, &head.k_bias))?],
        })
    }

    /// The queries and keys that a stream gives behind `ln_1`, whose ε is `eps`: (B, T, C) -> (B, T, H, D) each
    pub(super) fn queries_and_keys(&self, x: &Tensor, eps: f64) -> Result<(Tensor, Tensor)> {
        let (b, t, c) = x.dims3()?;
        let centered = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
        let variance = centered.sqr()?.mean_keepdim(D::Minus1)?;
        let normalized = centered.broadcast_div(&(variance + eps)?.sqrt()?)?.reshape((b * t, c))?;
        let part = |part: usize| {
            let (h, d, _) = self.parts[part].dims3()?;
            let read = normalized.matmul(&self.parts[part].reshape((h * d, c))?.t()?)?; // (B·T, H·D)
            read.reshape((b, t, h, d))?.broadcast_add(&self.biases[part])
        };
        Ok((part(0)?, part(1)?))
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
