//! Converts masks of other crates to the polarity of [`Mask`](crate::attention::Mask), where 1 is visible.
//!
//! Elsewhere 1 may also be visible (transformers' `attention_mask`, PyTorch's boolean `attn_mask`), or hidden (most masks of
//! candle-transformers, PyTorch's `key_padding_mask`), and nothing in a tensor tells which. So the caller says it by the
//! name of the function.

use candle_core::{Result, Tensor};

/// [`Mask::padding`](crate::attention::Mask::padding) from a mask in which 0 is hidden and any other integer visible.
///
/// # Shapes
/// `mask` (B, S) or (B, 1, 1, S) -> u8 (B, S)
///
/// # Errors
/// When the mask has another shape or holds floats.
pub fn padding_from_visible(mask: &Tensor) -> Result<Tensor> {
    let mask = of_keys(integers(mask)?)?;
    mask.ne(&mask.zeros_like()?)
}

/// [`Mask::padding`](crate::attention::Mask::padding) from a mask in which 0 is visible and any other integer hidden.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::attention::padding_from_hidden;
///
/// # fn main() -> candle_core::Result<()> {
/// let key_padding_mask = Tensor::new(&[[0u8, 0, 1], [0, 1, 1]], &Device::Cpu)?; // as PyTorch has it
/// assert_eq!(padding_from_hidden(&key_padding_mask)?.to_vec2::<u8>()?, [[1, 1, 0], [1, 0, 0]]);
/// # Ok(())
/// # }
/// ```
///
/// # Shapes
/// `mask` (B, S) or (B, 1, 1, S) -> u8 (B, S)
///
/// # Errors
/// When the mask has another shape or holds floats.
pub fn padding_from_hidden(mask: &Tensor) -> Result<Tensor> {
    let mask = of_keys(integers(mask)?)?;
    mask.eq(&mask.zeros_like()?)
}

/// A mask that is the same for all heads and queries, as (B, S).
fn of_keys(mask: &Tensor) -> Result<Tensor> {
    match *mask.dims() {
        [_, _] => Ok(mask.clone()),
        [b, 1, 1, s] => mask.reshape((b, s)),
        _ => candle_core::bail!(
            "a padding mask must be (B, S) or (B, 1, 1, S), got {:?}; one that differs among queries is Mask::added",
            mask.dims()
        ),
    }
}

/// [`Mask::added`](crate::attention::Mask::added) from a mask in which 0 is hidden and any other integer visible: 0 where a key is
/// visible, -inf where it is hidden.
///
/// # Shapes
/// `mask` (T, S), (B or 1, T, S) or (B or 1, H or 1, T or 1, S) -> f32 of rank 4
///
/// # Errors
/// When the mask has another rank or holds floats.
pub fn added_from_visible(mask: &Tensor) -> Result<Tensor> {
    added(&integers(mask)?.ne(&mask.zeros_like()?)?)
}

/// [`Mask::added`](crate::attention::Mask::added) from a mask in which 0 is visible and any other integer hidden, such as
/// candle-transformers' `build_causal_mask`.
///
/// # Shapes
/// `mask` (T, S), (B or 1, T, S) or (B or 1, H or 1, T or 1, S) -> f32 of rank 4
///
/// # Errors
/// When the mask has another rank or holds floats.
pub fn added_from_hidden(mask: &Tensor) -> Result<Tensor> {
    added(&integers(mask)?.eq(&mask.zeros_like()?)?)
}

/// Refuses floats, which are added to the scores as they are.
fn integers(mask: &Tensor) -> Result<&Tensor> {
    if mask.dtype().is_float() {
        candle_core::bail!(
            "a mask of {:?} holds no yes or no; floats are added to the scores as they are: Mask::added",
            mask.dtype()
        )
    }
    Ok(mask)
}

/// Floats of rank 4 from a mask in which 1 is visible.
fn added(visible: &Tensor) -> Result<Tensor> {
    let visible = match visible.rank() {
        2 => visible.unsqueeze(0)?.unsqueeze(0)?,
        3 => visible.unsqueeze(1)?,
        4 => visible.clone(),
        _ => candle_core::bail!(
            "a mask must be (T, S), (B or 1, T, S) or (B or 1, H or 1, T or 1, S), got {:?}",
            visible.dims()
        ),
    };
    let number = |x: f32| Tensor::new(x, visible.device())?.broadcast_as(visible.shape());
    visible.where_cond(&number(0.0)?, &number(f32::NEG_INFINITY)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::inputs::Chosen;
    use crate::attention::mask::Mask;
    use crate::attention::sdpa::Sdpa;
    use crate::attention::window::Window;
    use crate::cpu::test_numbers::numbers;
    use candle_core::{DType, Device, IndexOp};

    /// The causal rule as a mask of either polarity, beside the rule itself.
    #[test]
    fn both_polarities_hide_what_they_say() -> Result<()> {
        let q = numbers((2, 2, 5, 8), 1)?;
        let k = numbers((2, 2, 7, 8), 50)?;
        let causal = Sdpa::default().forward(&q, &k, &k, Mask::default())?;
        let visible: Vec<i64> = (0..5 * 7).map(|n| i64::from(n % 7 <= n / 7 + 2)).collect();
        let visible = Tensor::from_vec(visible, (5, 7), &Device::Cpu)?;
        let hidden = visible.eq(0i64)?;
        for added in [
            added_from_visible(&visible)?,
            added_from_visible(&visible.to_dtype(DType::U8)?.unsqueeze(0)?)?,
            added_from_hidden(&hidden)?,
            added_from_hidden(&hidden.to_dtype(DType::U32)?.unsqueeze(0)?.unsqueeze(0)?)?,
        ] {
            let full = Sdpa { window: Window::ALL, ..Sdpa::default() };
            let masked = full.forward(&q, &k, &k, Mask { added: Some(&added), ..Mask::default() })?;
            let difference = (masked - &causal)?.abs()?.max_all()?.to_scalar::<f32>()?;
            assert!(difference < 1e-6, "{difference}");
        }
        Ok(())
    }

    /// A mask (B, 1, 1, S), as candle-transformers' encoders pass it around.
    #[test]
    fn one_row_of_added_numbers_serves_all_queries() -> Result<()> {
        let q = numbers((2, 2, 5, 8), 1)?;
        let k = numbers((2, 2, 7, 8), 50)?;
        let hidden = Tensor::new(&[[[[0u8, 0, 1, 0, 0, 1, 1]]], [[[0, 1, 0, 0, 0, 0, 0]]]], &Device::Cpu)?;
        let full = Sdpa { window: Window::ALL, ..Sdpa::default() };
        let padding = padding_from_hidden(&hidden)?;
        let expected = full.forward(&q, &k, &k, Mask { padding: Some(&padding), ..Mask::default() })?;
        let one_row = candle_core::Var::from_tensor(&added_from_hidden(&hidden)?)?;
        let mask = Mask { added: Some(&one_row), ..Mask::default() };
        let context = full.forward(&q, &k, &k, mask)?;
        let difference = (&context - &expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(difference < 1e-6, "{difference}");
        let fixed = one_row.as_detached_tensor();
        for mask in [mask, Mask { added: Some(&fixed), ..Mask::default() }] {
            let weights = full.weights(&q, &k, mask, &Chosen::default())?;
            assert_eq!(weights.i((0, 1, 3, 2))?.to_scalar::<f32>()?.to_bits(), 0);
            assert!(weights.i((1, 1, 3, 2))?.to_scalar::<f32>()? > 0.0);
            let scores = full.scores(&q, &k, mask)?;
            assert_eq!(scores.i((1, 0, 4, 1))?.to_scalar::<f32>()?.to_bits(), f32::NEG_INFINITY.to_bits());
        }
        let gradients = context.sum_all()?.backward()?;
        assert_eq!(gradients.get(&one_row).expect("it learns").dims(), [2, 1, 1, 7]);
        Ok(())
    }

    #[test]
    fn padding_is_u8_and_one_is_visible() -> Result<()> {
        let mask = Tensor::new(&[[3i64, 0, -1]], &Device::Cpu)?;
        assert_eq!(padding_from_visible(&mask)?.to_vec2::<u8>()?, [[1, 0, 1]]);
        assert_eq!(padding_from_hidden(&mask)?.to_vec2::<u8>()?, [[0, 1, 0]]);
        let of_heads = mask.reshape((1, 1, 1, 3))?;
        assert_eq!(padding_from_visible(&of_heads)?.to_vec2::<u8>()?, [[1, 0, 1]]);
        assert_eq!(padding_from_hidden(&of_heads)?.to_vec2::<u8>()?, [[0, 1, 0]]);
        Ok(())
    }

    #[test]
    fn floats_and_other_ranks_are_refused() -> Result<()> {
        let floats = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
        let flat = Tensor::zeros(3, DType::U8, &Device::Cpu)?;
        let of_queries = Tensor::zeros((1, 1, 2, 3), DType::U8, &Device::Cpu)?;
        for padding in [padding_from_visible, padding_from_hidden] {
            let message = padding(&of_queries).expect_err("a mask that differs among queries").to_string();
            assert!(message.contains("Mask::added"), "{message}");
        }
        for mask in [padding_from_visible, padding_from_hidden, added_from_visible, added_from_hidden] {
            let message = mask(&floats).expect_err("floats").to_string();
            assert!(message.contains("Mask::added"), "{message}");
            assert!(mask(&flat).is_err());
        }
        Ok(())
    }
}
