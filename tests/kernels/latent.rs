//! Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", §2.1): keys wider than values, a rotary part that all heads
//! share, and a cache of the latent vectors alone.

use crate::common::Result;
use crate::{distance, random};
use candle_core::{Tensor, Var};
use candle_fused::attention::{Mask, Sdpa};
use candle_fused::cache::{CacheDType, RowCache};

/// Heads, and the widths of the latent vector, of the two parts of a key, and of a value.
const H: usize = 4;
const RANK: usize = 40;
const NOPE: usize = 16;
const ROPE: usize = 8;
const DV: usize = 12;

/// The tensors that a layer has computed when it attends, of T positions.
struct Layer {
    /// (1, H, T, NOPE) and (1, H, T, ROPE)
    queries: [Tensor; 2],
    /// (1, T, RANK)
    latent: Tensor,
    /// (1, 1, T, ROPE)
    shared_keys: Tensor,
    /// (H, RANK, NOPE) and (H, RANK, DV): from the latent vector to keys and to values.
    up: [Tensor; 2],
}

impl Layer {
    fn new(t: usize) -> Result<Self> {
        Ok(Self {
            queries: [random(1, "q", 1., (1, H, t, NOPE))?, random(1, "qr", 1., (1, H, t, ROPE))?],
            latent: random(1, "c", 1., (1, t, RANK))?,
            shared_keys: random(1, "kr", 1., (1, 1, t, ROPE))?,
            up: [random(1, "uk", 0.2, (H, RANK, NOPE))?, random(1, "uv", 0.2, (H, RANK, DV))?],
        })
    }

    fn attention() -> Sdpa {
        Sdpa { scale: Some(1. / ((NOPE + ROPE) as f64).sqrt()), ..Sdpa::default() }
    }

    /// With keys and values of each head: (1, T, H, DV)
    fn expanded(&self) -> Result<Tensor> {
        let [k, v] = &self.up;
        let of_heads = |up: &Tensor| self.latent.unsqueeze(1)?.broadcast_matmul(&up.unsqueeze(0)?);
        let t = self.latent.dim(1)?;
        let shared = self.shared_keys.broadcast_as((1, H, t, ROPE))?;
        let k = Tensor::cat(&[&of_heads(k)?, &shared], 3)?;
        let q = Tensor::cat(&self.queries, 3)?;
        Ok(Self::attention().forward(&q, &k, &of_heads(v)?, Mask::default())?)
    }

    /// The row of each position that all heads read, (1, 1, T, RANK + ROPE).
    fn rows(&self) -> Result<Tensor> {
        Ok(Tensor::cat(&[&self.latent.unsqueeze(1)?, &self.shared_keys], 3)?)
    }

    /// With queries taken into the latent space, from position `from` on, over `rows`: (1, T - from, H, DV)
    fn absorbed(&self, rows: &Tensor, from: usize) -> Result<Tensor> {
        let [k, v] = &self.up;
        let t = self.latent.dim(1)? - from;
        let of_queries = |q: &Tensor| q.narrow(2, from, t);
        let q = of_queries(&self.queries[0])?.broadcast_matmul(&k.transpose(1, 2)?.unsqueeze(0)?)?;
        let q = Tensor::cat(&[&q, &of_queries(&self.queries[1])?], 3)?; // (1, H, T, RANK + ROPE)
        // The values are the first columns of the keys; codes cannot be cut, so there the context is.
        let is_codes = rows.dim(3)? > RANK + ROPE;
        let values = if is_codes { rows.clone() } else { rows.narrow(3, 0, RANK)? };
        let context = Self::attention().forward(&q, rows, &values, Mask::default())?.narrow(3, 0, RANK)?; // (1, T, H, RANK)
        let context = context.transpose(1, 2)?.contiguous()?; // (1, H, T, RANK)
        Ok(context.broadcast_matmul(&v.unsqueeze(0)?)?.transpose(1, 2)?)
    }
}

#[test]
fn the_absorbed_form_is_the_expanded_one() -> Result {
    for t in [3, 70] {
        let layer = Layer::new(t)?;
        let expected = layer.expanded()?;
        let off = distance(&layer.absorbed(&layer.rows()?, 0)?, &expected)?;
        assert!(off < 4e-6, "T {t}: {off}");
    }
    Ok(())
}

/// One row a position for all heads, and the last position alone.
#[test]
fn a_cache_of_latent_rows_serves_all_heads() -> Result {
    let layer = Layer::new(30)?;
    let rows = layer.rows()?;
    let expected = layer.expanded()?.narrow(1, 29, 1)?;
    for (dtype, most) in [(CacheDType::Plain(candle_core::DType::F32), 4e-6), (CacheDType::Q8_0, 0.03)] {
        let mut cache = RowCache::new([1, 1, 64, RANK + ROPE], dtype, rows.device())?;
        cache.append(&rows.narrow(2, 0, 29)?)?;
        let held = cache.append(&rows.narrow(2, 29, 1)?)?;
        let off = distance(&layer.absorbed(&held, 29)?, &expected)?;
        assert!(off < most, "{dtype:?}: {off}");
    }
    Ok(())
}

/// Values that are a view of the keys: both give their gradient to the same rows.
#[test]
fn gradients_reach_the_latent_vectors_by_either_form() -> Result {
    let mut layer = Layer::new(33)?;
    let latent = Var::from_tensor(&layer.latent)?;
    let shared = Var::from_tensor(&layer.shared_keys)?;
    (layer.latent, layer.shared_keys) = (latent.as_tensor().clone(), shared.as_tensor().clone());
    let weights = random(1, "g", 1., (1, 33, H, DV))?;
    let gradients = |context: Tensor| (context * &weights)?.sum_all()?.backward();
    let (expanded, absorbed) =
        (gradients(layer.expanded()?)?, gradients(layer.absorbed(&layer.rows()?, 0)?)?);
    for var in [&latent, &shared] {
        let of = |all: &candle_core::backprop::GradStore| all.get(var).cloned().ok_or("no gradient");
        let off = distance(&of(&absorbed)?, &of(&expanded)?)?;
        assert!(off < 2e-5, "{off}");
    }
    Ok(())
}
