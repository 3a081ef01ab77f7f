//! The structs that the kernels get, in C's layout: `cuda/tiles.cuh` and `cuda/masks.cuh` have the same ones.

use crate::attention::drop_weights::WeightDropout;
use candle_core::Layout;

/// Strides of a tensor (B, H, positions, D), in elements. D is contiguous.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Strides {
    pub(super) batch: i64,
    pub(super) head: i64,
    pub(super) position: i64,
}

impl Strides {
    /// `None` if D is not contiguous, or if a row does not start at a multiple of `unit` elements.
    pub(super) fn of(layout: &Layout, unit: usize) -> Option<Self> {
        let &[batch, head, position, 1] = layout.stride() else { return None };
        let aligned = [batch, head, position, layout.start_offset()].iter().all(|x| x % unit == 0);
        let stride = |x: usize| x.try_into().ok();
        aligned.then_some(())?;
        Some(Self { batch: stride(batch)?, head: stride(head)?, position: stride(position)? })
    }
}

/// The sizes and strides of q (B, H, T, D) and of k and v (B, H, S, D).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Shape {
    pub(super) q: Strides,
    pub(super) k: Strides,
    pub(super) v: Strides,
    pub(super) heads: i32,
    pub(super) queries: i32,
    pub(super) keys: i32,
    /// For decoding: keys per block, and blocks per head.
    pub(super) split_keys: i32,
    pub(super) splits: i32,
    /// How many heads go through all their tiles before the next heads start.
    pub(super) section: i32,
    /// The scale of the scores, times log2(e).
    pub(super) scale: f32,
}

const _: () = assert!(size_of::<Shape>() == 104 && std::mem::offset_of!(Shape, heads) == 72);

/// Keys hidden from single queries, and dropout.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Masks {
    /// Addresses in the GPU's memory, or 0.
    pub(super) hidden_starts: u64,
    pub(super) hidden_keys: u64,
    pub(super) seed: [u32; 2],
    pub(super) stream: [u32; 2],
    pub(super) threshold: u32,
    pub(super) kept: f32,
    pub(super) first_head: i32,
    pub(super) all_heads: i32,
}

const _: () = assert!(size_of::<Masks>() == 48 && std::mem::offset_of!(Masks, threshold) == 32);

impl Masks {
    /// Nothing hidden, and this dropout. `None` if the layer has more heads than a kernel can count.
    pub(super) fn new(dropout: Option<&WeightDropout>) -> Option<Self> {
        let none = Self {
            hidden_starts: 0,
            hidden_keys: 0,
            seed: [0; 2],
            stream: [0; 2],
            threshold: 0,
            kept: 1.0,
            first_head: 0,
            all_heads: 0,
        };
        let Some(dropout) = dropout else { return Some(none) };
        let (words, heads) = (dropout.words(), dropout.heads());
        Some(Self {
            seed: words.key,
            stream: words.stream,
            threshold: words.threshold,
            kept: words.kept,
            first_head: heads.first.try_into().ok()?,
            all_heads: heads.total.try_into().ok()?,
            ..none
        })
    }
}
