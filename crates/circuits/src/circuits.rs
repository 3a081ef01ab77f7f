//! The weights of all heads, with layer norms folded in and centered, and the two circuits that they form.

use candle_core::{DType, Device, Result, Tensor};
use gpt2_model::finite::all_finite;
use gpt2_model::hooks::Head;
use gpt2_model::{Block, Gpt2LMHeadModel, HeadWeights, LayerNorm};
use std::sync::OnceLock;

/// One of the two circuits of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Circuit {
    /// Attention: the score of each key's token for each query's token.
    Qk,
    /// Output: the change of each token's logit when the head attends to a token.
    Ov,
}

/// A head's matrices on the CPU, in f32, or in f64 for a model in f64.
#[derive(Debug)]
pub(crate) struct Matrices {
    /// (C, D)
    pub(crate) q: Tensor,
    pub(crate) k: Tensor,
    pub(crate) v: Tensor,
    /// (D, C)
    pub(crate) o: Tensor,
}

/// The circuits of all heads of a model.
#[derive(Debug)]
pub struct Circuits {
    heads: Vec<Vec<Matrices>>,
    /// The factors on each layer's scores.
    scales: Vec<f64>,
    /// `W_E` (V, C), in the same dtype.
    pub(crate) embedding: Tensor,
    /// `W_U`ᵀ (V, C), in the same.
    pub(crate) unembedding: Tensor,
    /// `W_U·W_E`, (C, C) in f64: computed when it is first needed.
    token_product: OnceLock<Tensor>,
}

impl Circuits {
    /// Copies and processes the weights of `model`, in f32, or in f64 for a model in f64.
    ///
    /// # Errors
    /// When a layer cannot produce a dense weight, or a weight is NaN or infinite.
    pub fn new(model: &Gpt2LMHeadModel) -> Result<Self> {
        let transformer = &model.transformer;
        let dtype = if model.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let of_layer = |(layer, block): (usize, &Block)| -> Result<Vec<Matrices>> {
            let heads =
                block.attn.head_weights()?.into_iter().map(|head| matrices(&head, &block.ln_1, dtype));
            let heads = heads.collect::<Result<Vec<_>>>()?;
            for (head, Matrices { q, k, v, o }) in heads.iter().enumerate() {
                for matrix in [q, k, v, o] {
                    check_finite(&format!("head {layer}.{head}"), matrix)?;
                }
            }
            Ok(heads)
        };
        let gamma = transformer.ln_f.weight.to_device(&Device::Cpu)?.to_dtype(dtype)?;
        let table = |table: Tensor| table.to_device(&Device::Cpu)?.to_dtype(dtype); // (V, C)
        let unembedding = centered(&table(model.lm_head.weight()?)?.broadcast_mul(&gamma)?, 1)?;
        let circuits = Self {
            heads: transformer.h.iter().enumerate().map(of_layer).collect::<Result<_>>()?,
            scales: transformer.h.iter().map(|block| block.attn.scale()).collect(),
            embedding: centered(&table(transformer.wte.weight()?)?, 1)?,
            unembedding: centered(&unembedding, 0)?,
            token_product: OnceLock::new(),
        };
        check_finite("the embedding", &circuits.embedding)?;
        check_finite("the unembedding", &circuits.unembedding)?;
        Ok(circuits)
    }

    /// L
    #[must_use]
    pub fn layers(&self) -> usize {
        self.heads.len()
    }

    /// H of a layer; 0 if there is no such layer.
    #[must_use]
    pub fn heads(&self, layer: usize) -> usize {
        self.heads.get(layer).map_or(0, Vec::len)
    }

    /// V
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.embedding.dims()[0]
    }

    pub(crate) fn of(&self, Head { layer, head }: Head) -> Result<&Matrices> {
        match self.heads.get(layer).and_then(|heads| heads.get(head)) {
            Some(matrices) => Ok(matrices),
            None => candle_core::bail!(
                "head {layer}.{head}: the model has layers 0 to {} of {} heads",
                self.layers().saturating_sub(1),
                self.heads(0)
            ),
        }
    }

    /// The two factors of a circuit in the residual stream, (C, D) and (D, C) in f64, without the scale of scores: `W_V·W_O` or
    /// `W_Q·W_Kᵀ`.
    pub(crate) fn factors(&self, head: Head, circuit: Circuit) -> Result<(Tensor, Tensor)> {
        let Matrices { q, k, v, o } = self.of(head)?;
        let wide = |x: &Tensor| x.to_dtype(DType::F64);
        match circuit {
            Circuit::Ov => Ok((wide(v)?, wide(o)?)),
            Circuit::Qk => Ok((wide(q)?, wide(k)?.t()?.contiguous()?)),
        }
    }

    /// The factor on the scores of a head's layer.
    pub(crate) fn scale(&self, head: Head) -> f64 {
        self.scales.get(head.layer).copied().unwrap_or(f64::NAN)
    }

    /// `W_U·W_E`, (C, C): the sum over all tokens.
    pub(crate) fn token_product(&self) -> Result<&Tensor> {
        const ROWS: usize = 4096;
        if let Some(product) = self.token_product.get() {
            return Ok(product);
        }
        let (v, c) = self.embedding.dims2()?;
        let mut sum = Tensor::zeros((c, c), DType::F64, &Device::Cpu)?;
        for first in (0..v).step_by(ROWS) {
            let part = |table: &Tensor| table.narrow(0, first, ROWS.min(v - first))?.to_dtype(DType::F64);
            sum = (sum + part(&self.unembedding)?.t()?.matmul(&part(&self.embedding)?)?)?;
        }
        Ok(self.token_product.get_or_init(|| sum))
    }
}

/// Processed in f64, kept in `dtype`.
fn matrices(head: &HeadWeights, norm: &LayerNorm, dtype: DType) -> Result<Matrices> {
    let reads = |w: &Tensor| folded(w, norm)?.to_dtype(dtype);
    let o = centered(&f64_of(&head.o)?, 1)?.to_dtype(dtype)?;
    Ok(Matrices { q: reads(&head.q)?, k: reads(&head.k)?, v: reads(&head.v)?, o })
}

/// Weights (C, D) that read what `norm` makes of the stream, multiplied by its γ and without each column's mean, in f64 on the CPU: a
/// column that reads the same of all channels reads nothing of what layer norm has centered.
pub(crate) fn folded(w: &Tensor, norm: &LayerNorm) -> Result<Tensor> {
    let gamma = f64_of(&norm.weight)?.unsqueeze(1)?; // (C, 1)
    centered(&f64_of(w)?.broadcast_mul(&gamma)?, 0)
}

/// f64 on the CPU.
pub(crate) fn f64_of(x: &Tensor) -> Result<Tensor> {
    x.to_device(&Device::Cpu)?.to_dtype(DType::F64)
}

/// Refuses NaN and infinity, on which no decomposition ends.
fn check_finite(what: &str, x: &Tensor) -> Result<()> {
    if all_finite(x)? {
        return Ok(());
    }
    candle_core::bail!("circuits: the weights of {what} are not finite: they hold NaN or infinity")
}

/// Less the mean over a dimension.
fn centered(x: &Tensor, dim: usize) -> Result<Tensor> {
    x.broadcast_sub(&x.mean_keepdim(dim)?)
}
