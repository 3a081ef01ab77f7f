//! The `bias` triangle, padding masks, and the positions that follow from them. In all masks 1 means visible.

use candle_core::{DType, Device, Result, Tensor};

pub use candle_fused::attention::causal_bias;

/// The padding mask of a batch: row `i` has `lengths[i]` visible tokens at the right end of `width`
/// columns (left padding).
///
/// # Shapes
/// -> u8 (B, `width`), 1 = visible
///
/// # Errors
/// When a length is above `width`.
pub fn left_padding(lengths: &[usize], width: usize, device: &Device) -> Result<Tensor> {
    if let Some(long) = lengths.iter().find(|&&l| l > width) {
        candle_core::bail!("padding mask: a row of {long} tokens does not fit {width} columns")
    }
    let mask: Vec<u8> =
        lengths.iter().flat_map(|&l| (0..width).map(move |j| u8::from(j >= width - l))).collect();
    Tensor::from_vec(mask, (lengths.len(), width), device)
}

/// The position of each token of a masked batch: the number of visible tokens before it.
///
/// transformers' `generate` derives the same positions from a mask (`cumsum - 1`, at least 0). Its
/// `forward` counts columns instead, which is why positions are an input here.
///
/// # Shapes
/// `mask` (B, S), any integer dtype -> u32 (B, S)
///
/// # Errors
/// When the mask does not have rank 2, is not of integers, or the device fails.
pub fn position_ids(mask: &Tensor) -> Result<Tensor> {
    let (b, s) = mask.dims2()?;
    let rows = visible_keys(mask)?.to_vec2::<u8>()?;
    let ids: Vec<u32> = rows
        .iter()
        .flat_map(|row| {
            row.iter().scan(0u32, |seen, &visible| {
                *seen += u32::from(visible != 0);
                Some(seen.saturating_sub(1))
            })
        })
        .collect();
    Tensor::from_vec(ids, (b, s), mask.device())
}

/// Each position counted from the start of its document: (B, T) -> (B, T)
pub(crate) fn positions_in_documents(starts: &Tensor) -> Result<Tensor> {
    #[allow(clippy::cast_possible_truncation)] // a length
    let columns = Tensor::arange(0, starts.dim(1)? as u32, starts.device())?;
    if starts.broadcast_gt(&columns)?.to_dtype(DType::U32)?.sum_all()?.to_scalar::<u32>()? > 0 {
        candle_core::bail!("document_starts: a position comes before the start of its document")
    }
    columns.broadcast_sub(starts)
}

/// Converts a mask of any integer dtype to the u8 mask (B, S) of 0 and 1 that attention and hooks take. `over` says what S counts.
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

/// A mask of any integer dtype as u8 of 0 and 1, by which hooks multiply; its shape is not checked.
pub(crate) fn visible_keys(mask: &Tensor) -> Result<Tensor> {
    if mask.dtype().is_float() {
        candle_core::bail!(
            "a padding mask must be integers (1 = visible), got {} {:?}",
            mask.dtype().as_str(),
            mask.dims()
        )
    }
    mask.ne(&mask.zeros_like()?)
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
