//! Strided views of q, k and v, and the dtypes that they may have.

use candle_core::{Layout, Result};
use half::{bf16, f16};

/// A dtype that the kernel reads and writes; it computes in f32.
pub(super) trait Element: Copy + Send + Sync + 'static {
    fn to_f32(self) -> f32;
    fn from_f32(x: f32) -> Self;
    /// The same memory as f32, where it is f32.
    fn as_f32s(slice: &[Self]) -> Option<&[f32]>;
}

impl Element for f32 {
    fn to_f32(self) -> f32 {
        self
    }
    fn from_f32(x: f32) -> Self {
        x
    }
    fn as_f32s(slice: &[Self]) -> Option<&[f32]> {
        Some(slice)
    }
}

macro_rules! half_element {
    ($half:ty) => {
        impl Element for $half {
            fn to_f32(self) -> f32 {
                self.to_f32()
            }
            fn from_f32(x: f32) -> Self {
                Self::from_f32(x)
            }
            fn as_f32s(_: &[Self]) -> Option<&[f32]> {
                None
            }
        }
    };
}
half_element!(f16);
half_element!(bf16);

/// A tensor (B, H, T, D) of any strides.
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
        if dims.contains(&0) || end >= data.len() {
            candle_core::bail!(
                "causal attention: a layout of {dims:?} with strides {strides:?} is outside its data"
            )
        }
        Ok(Self { data, strides, dims })
    }

    /// Row `i` of a head as f32: in place where it lies so in memory, else copied into `scratch` (D).
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
        }
        for (c, x) in scratch.iter_mut().enumerate().take(d) {
            *x = self.data[start + c * sd].to_f32();
        }
        &scratch[..d]
    }
}
