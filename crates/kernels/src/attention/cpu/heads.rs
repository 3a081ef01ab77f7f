//! Strided views of q, k and v.

use crate::element::Element;
use candle_core::{Layout, Result};

/// A tensor (B, H, T, D) with any strides.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a, E> {
    data: &'a [E],
    strides: [usize; 4],
    pub(super) dims: [usize; 4],
}

impl<'a, E: Element> Heads<'a, E> {
    /// # Errors
    /// When the layout is not of rank 4 or reaches beyond `data`.
    pub(super) fn new(data: &'a [E], layout: &Layout) -> Result<Self> {
        let (b, h, t, d) = layout.shape().dims4()?;
        let dims = [b, h, t, d];
        let mut strides = [0; 4];
        strides.copy_from_slice(layout.stride());
        let data = data.get(layout.start_offset()..).unwrap_or_default();
        let end: usize = dims.iter().zip(&strides).map(|(n, s)| n.saturating_sub(1) * s).sum();
        // A dimension of stride 0 can make the count arbitrarily large.
        let count = dims.iter().try_fold(1usize, |count, n| count.checked_mul(*n));
        if dims.contains(&0) || end >= data.len() || count.is_none() {
            candle_core::bail!("attention: a layout of {dims:?} with strides {strides:?} is outside its data")
        }
        Ok(Self { data, strides, dims })
    }

    /// Row `i` of a head as f32: borrowed in place if memory holds it that way, otherwise copied into `scratch` (D).
    // Inlined, so that widening is compiled for its caller's instruction set.
    #[inline(always)]
    pub(super) fn row<'b>(&self, b: usize, h: usize, i: usize, scratch: &'b mut [f32]) -> &'b [f32]
    where
        'a: 'b,
    {
        let [sb, sh, st, sd] = self.strides;
        let start = b * sb + h * sh + i * st;
        let d = self.dims[3];
        if sd == 1 {
            let row = &self.data[start..start + d];
            if let Some(row) = E::as_f32s(row) {
                return row;
            }
            E::widen(row, &mut scratch[..d]);
            return &scratch[..d];
        }
        for (c, x) in scratch.iter_mut().enumerate().take(d) {
            *x = self.data[start + c * sd].to_f32();
        }
        &scratch[..d]
    }
}
