//! Checks on the inputs of a forward pass.

use crate::cross_attention::Encoder;
use candle_core::{DType, Device, Result, Tensor};

/// Returns the ids as a flat u32 tensor, a dtype that every device can gather with. Fails on the
/// first id that is not in `0..limit`.
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

/// Converts a mask of any integer dtype to the u8 mask (B, S) that attention takes. `over` says what S counts.
pub(crate) fn padding_mask(mask: &Tensor, shape: [usize; 2], over: &str, device: &Device) -> Result<Tensor> {
    if mask.dims() != shape || mask.dtype().is_float() {
        candle_core::bail!(
            "attention_mask must be integers {shape:?} (1 = visible) over {over}, got {:?} {:?}",
            mask.dtype(),
            mask.dims()
        )
    }
    mask.ne(&mask.zeros_like()?)?.to_device(device)
}

/// Fails unless the hidden states are (B, S, C) in the model's dtype.
pub(crate) fn check_encoder(encoder: Encoder, (b, c): (usize, usize), dtype: DType) -> Result<()> {
    let x = encoder.hidden_states;
    if !matches!(x.dims(), &[rows, _, width] if (rows, width) == (b, c)) || x.dtype() != dtype {
        candle_core::bail!(
            "the encoder's hidden states must be {dtype:?} [{b}, S, {c}], got {:?} {:?}",
            x.dtype(),
            x.dims()
        )
    }
    Ok(())
}

/// Rejects a mask (B, S) with padding before a visible token: default positions count columns, so the row would not
/// give the same result as it does alone.
pub(crate) fn refuse_padding_before_a_token(mask: &Tensor) -> Result<()> {
    for (i, row) in mask.to_vec2::<u8>()?.iter().enumerate() {
        let visible = row.iter().rposition(|&visible| visible != 0).map_or(0, |last| last + 1);
        if row[..visible].contains(&0) {
            candle_core::bail!(
                "attention_mask: row {i} has padding before a visible token, and there are no position_ids; give \
                 gpt2_model::mask::position_ids(mask), of which the last T columns belong to T new tokens"
            )
        }
    }
    Ok(())
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
