//! What each head of attention reads, where hooks have replaced it: the split inputs of TransformerLens
//! (`use_attn_in`, `use_split_qkv_input`).

use crate::LayerNorm;
use crate::hooks::{PassHooks, Point};
use candle_core::{Module, Result, Tensor};
use candle_fused::attention::HeadLayout;

/// The normalized inputs of the queries, keys and values, (B, T, heads, C) each, where a hook has replaced them.
#[derive(Debug, Default)]
pub(crate) struct HeadInputs([Option<Tensor>; 3]);

impl HeadInputs {
    /// Offers a copy of the stream `x` (B, T, C) for each head to the hooks, and normalizes those that they replace.
    pub(crate) fn of(
        x: &Tensor,
        norm: &LayerNorm,
        heads: HeadLayout,
        (layer, hooks): (usize, PassHooks),
    ) -> Result<Self> {
        let (b, t, c) = x.dims3()?;
        let copies = |heads| x.unsqueeze(2)?.broadcast_as((b, t, heads, c));
        let all = hooks.read(Point::AttnIn(layer), || copies(heads.heads))?; // (B, T, H, C)
        if all.is_some() && heads.key_heads != heads.heads {
            candle_core::bail!(
                "hook at {}: {} heads share {} heads of keys and values, so their inputs cannot be replaced together; use {}, \
                 {} and {}",
                Point::AttnIn(layer),
                heads.heads,
                heads.key_heads,
                Point::QInput(layer),
                Point::KInput(layer),
                Point::VInput(layer)
            )
        }
        let normed = all.as_ref().map(|x| norm.forward(&x.contiguous()?)).transpose()?;
        let input = |point: Point, heads: usize| -> Result<Option<Tensor>> {
            let current = || all.clone().map_or_else(|| copies(heads), Ok);
            let replaced = hooks.read(point, current)?;
            replaced
                .map(|x| norm.forward(&x.contiguous()?))
                .transpose()
                .map(|own| own.or_else(|| normed.clone()))
        };
        Ok(Self([
            input(Point::QInput(layer), heads.heads)?,
            input(Point::KInput(layer), heads.key_heads)?,
            input(Point::VInput(layer), heads.key_heads)?,
        ]))
    }

    /// Queries (B, T, H, D) or (B, 1, H, D), and keys and values (B, T, 2·key heads, D), with the replaced inputs' in their
    /// place. `project` gives the query (part 0), key (1) or value (2) of one head: (B, T, C) -> (B, T, D).
    pub(crate) fn replace(
        &self,
        (q, kv): (Tensor, Tensor),
        project: impl Fn(&Tensor, usize, usize) -> Result<Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        if self.0.iter().all(Option::is_none) {
            return Ok((q, kv));
        }
        let key_heads = kv.dim(2)? / 2;
        let part = |part: usize, plain: Result<Tensor>| -> Result<Tensor> {
            let Some(x) = &self.0[part] else { return plain };
            let heads = (0..x.dim(2)?)
                .map(|head| project(&x.narrow(2, head, 1)?.squeeze(2)?.contiguous()?, part, head));
            Tensor::stack(&heads.collect::<Result<Vec<_>>>()?, 2) // (B, T, heads, D)
        };
        let q = {
            let all = part(0, Ok(q.clone()))?;
            all.narrow(1, all.dim(1)? - q.dim(1)?, q.dim(1)?)?
        };
        let (k, v) = (part(1, kv.narrow(2, 0, key_heads))?, part(2, kv.narrow(2, key_heads, key_heads))?);
        Ok((q, Tensor::cat(&[k, v], 2)?))
    }
}
