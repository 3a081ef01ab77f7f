//! The inputs of a forward pass, checked.

use super::args_and_outputs::ForwardArgs;
use super::attention::mask::{padding_mask, positions_in_documents, refuse_padding_before_a_token};
use super::attention::pass::Encoder;
use crate::config::Config;
use crate::hooks::PassHooks;
use candle_core::{DType, Result, Tensor};

/// The blocks' inputs besides the embeddings.
pub(crate) struct BlockInputs {
    /// The number of positions in the cache.
    pub(crate) past: usize,
    /// u8 (B, S)
    pub(crate) padding: Option<Tensor>,
    /// (B, T) or (1, T), unless they simply follow the cache's positions.
    pub(crate) positions: Option<Tensor>,
    /// u8 (B, S), S of the encoder.
    encoder_mask: Option<Tensor>,
}

impl BlockInputs {
    /// Checks ids (B, T) and what goes with them, for a model of this config with this table of positions.
    pub(crate) fn new(
        input_ids: &Tensor,
        args: &mut ForwardArgs,
        config: &Config,
        wpe: &Tensor,
    ) -> Result<Self> {
        let (b, t) = input_ids.dims2()?;
        if b == 0 || t == 0 {
            candle_core::bail!("input_ids {:?}: a prompt needs at least one token", input_ids.dims())
        }
        if let Some(cache) = args.cache.as_deref_mut() {
            cache.check_room(b, t, config.n_layer)?;
        }
        let past = args.cache.as_ref().map_or(0, |cache| cache.len());
        let s = past + t;
        let n = config.n_positions;
        if s > n {
            candle_core::bail!("{s} tokens are more than the model's n_positions = {n}; shorten the prompt")
        }
        let over = "the cache and the new tokens";
        let mask = |mask| padding_mask(mask, [b, s], over, wpe.device());
        let padding = args.attention_mask.map(mask).transpose()?;
        if let (Some(padding), None) = (&padding, args.position_ids) {
            refuse_padding_before_a_token(padding)?;
        }
        if args.document_starts.is_some() && args.cache.is_some() {
            candle_core::bail!("document_starts cannot be combined with a cache")
        }
        let in_documents = args.document_starts.map(positions_in_documents).transpose()?;
        let encoder_mask = args.encoder.map(|encoder| encoder_mask(encoder, b, wpe)).transpose()?.flatten();
        Ok(Self { past, padding, positions: args.position_ids.cloned().or(in_documents), encoder_mask })
    }

    /// The hooks, and what they learn about the pass.
    pub(crate) fn hooks<'a>(&'a self, args: &ForwardArgs<'a>) -> PassHooks<'a> {
        let hooks = args.hooks;
        let cached = args.cache.is_some();
        PassHooks { hooks, past: self.past, cached, padding: self.padding.as_ref() }
    }

    /// The encoder, with its mask as attention takes it.
    pub(crate) fn encoder<'a>(&'a self, args: &ForwardArgs<'a>) -> Option<Encoder<'a>> {
        args.encoder.map(|encoder| Encoder { attention_mask: self.encoder_mask.as_ref(), ..encoder })
    }
}

/// The mask of the encoder's padding as u8 (B, S), if there is one; fails unless the hidden states are (B, S, C) in the dtype
/// of the table of positions.
fn encoder_mask(encoder: Encoder, b: usize, wpe: &Tensor) -> Result<Option<Tensor>> {
    let x = encoder.hidden_states;
    let c = wpe.dim(1)?;
    let dtype = wpe.dtype();
    if !matches!(x.dims(), &[rows, _, width] if (rows, width) == (b, c)) || x.dtype() != dtype {
        candle_core::bail!(
            "the encoder's hidden states must be {dtype:?} [{b}, S, {c}], got {:?} {:?}",
            x.dtype(),
            x.dims()
        )
    }
    let mask = |mask| padding_mask(mask, [b, x.dims()[1]], "the encoder's positions", wpe.device());
    encoder.attention_mask.map(mask).transpose()
}

/// Returns the ids as a flat u32 tensor, a dtype that every device can gather with. Fails on the
/// first id that is not in `0..limit`. Ids in the CPU's memory cost no wait for a GPU; those on a GPU have to be copied back.
pub(crate) fn check_below(what: &str, ids: &Tensor, limit: usize, limit_name: &str) -> Result<Tensor> {
    if ids.dtype().is_float() {
        candle_core::bail!("{what}s must be integers, got {:?}", ids.dtype())
    }
    let flat = ids.flatten_all()?;
    let wide = flat.to_dtype(DType::I64)?.to_vec1::<i64>()?;
    match wide.iter().find(|&&id| usize::try_from(id).map_or(true, |id| id >= limit)) {
        Some(id) => candle_core::bail!("{what} {id} is not in 0..{limit} ({limit_name})"),
        None => flat.to_dtype(DType::U32),
    }
}

/// Fails unless there is one target for each id.
pub(crate) fn check_targets(input_ids: &Tensor, targets: &Tensor) -> Result<()> {
    if input_ids.dims() != targets.dims() {
        candle_core::bail!(
            "targets {:?} must be of the shape of input_ids {:?}",
            targets.dims(),
            input_ids.dims()
        )
    }
    Ok(())
}
