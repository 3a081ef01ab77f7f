//! A linear layer's weight as the kernels read it, and conversion to f32.

use crate::element::{Element, Widen};
use crate::isa;
use crate::vector::CHUNK;
use candle_core::{CpuStorage, Layout, Result, WithDType};
use rayon::prelude::*;
use std::borrow::Cow;

/// Some or all columns of a row-major matrix (K, N).
#[derive(Clone, Copy)]
pub(super) struct Weight<'a, E> {
    data: &'a [E],
    pub(super) depth: usize,
    pub(super) width: usize,
    stride: usize,
}

impl<'a, E: Element + WithDType> Weight<'a, E> {
    pub(super) fn new(storage: &'a CpuStorage, layout: &Layout) -> Result<Self> {
        let (depth, width) = layout.shape().dims2()?;
        let data = storage.as_slice::<E>()?.get(layout.start_offset()..).unwrap_or_default();
        let stride = layout.stride()[0];
        let end = depth.saturating_sub(1) * stride + width;
        if layout.stride()[1] != 1 || end > data.len() || depth * width == 0 {
            candle_core::bail!("linear: a weight of layout {layout:?} is empty or not made of rows")
        }
        Ok(Self { data, depth, width, stride })
    }
}

impl<'a, E: Element> Weight<'a, E> {
    pub(super) fn row(&self, k: usize) -> &'a [E] {
        &self.data[k * self.stride..][..self.width]
    }

    /// The matrix in f32, row-major, and the stride of its rows: borrowed in place, or widened.
    pub(super) fn in_f32(&self) -> (Cow<'a, [f32]>, usize) {
        if let Some(data) = E::as_f32s(self.data) {
            return (Cow::Borrowed(data), self.stride);
        }
        let mut wide = vec![0.0; self.depth * self.width];
        let arch = isa::arch();
        let rows = wide.par_chunks_mut(self.width).enumerate();
        rows.for_each(|(k, row)| arch.dispatch(Widen { from: self.row(k), to: row }));
        (Cow::Owned(wide), self.width)
    }
}

/// The numbers in f32: borrowed in place, or widened.
pub(super) fn in_f32<E: Element>(x: &[E]) -> Cow<'_, [f32]> {
    if let Some(x) = E::as_f32s(x) {
        return Cow::Borrowed(x);
    }
    let mut wide = vec![0.0; x.len()];
    let (arch, pairs) = (isa::arch(), wide.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)));
    pairs.for_each(|(to, from)| arch.dispatch(Widen { from, to }));
    Cow::Owned(wide)
}
