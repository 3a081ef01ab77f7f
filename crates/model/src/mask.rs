//! The `bias` triangle and padding masks. In all of them 1 means visible.

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
/// `mask` (B, S) -> u32 (B, S)
///
/// # Errors
/// When the mask does not have rank 2 or the device fails.
pub fn position_ids(mask: &Tensor) -> Result<Tensor> {
    let (b, s) = mask.dims2()?;
    let rows = mask.to_dtype(DType::U8)?.to_vec2::<u8>()?;
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
