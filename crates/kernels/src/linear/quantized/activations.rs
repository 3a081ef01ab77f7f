//! Activations as codes of −127 to 127, in blocks of 32 that share a scale.

use super::portable::{ActivationCode, VectorCode, Vectors};
use super::vectors::dispatch;
use crate::cpu::isa::Isa;
use rayon::prelude::*;

/// The inputs that share a scale.
pub(super) const BLOCK: usize = 32;

/// Sums are kept for each half of a block, because `Q6_K` has a scale for each.
pub(super) const SUMS: usize = 2;

/// Rows of codes.
pub(super) struct Activations<X> {
    /// (rows, depth)
    pub(super) codes: Vec<X>,
    /// (rows, blocks). NaN if the block holds a number that is not finite.
    pub(super) scales: Vec<f32>,
    /// (rows, blocks, [`SUMS`]): the sums of the codes.
    pub(super) sums: Vec<i32>,
}

/// The number of blocks in a task.
const TASK: usize = 256;

impl<X: ActivationCode> Activations<X> {
    /// Quantizes rows whose length is a multiple of [`BLOCK`].
    pub(super) fn new(isa: Isa, x: &[f32]) -> Self {
        let blocks = x.len() / BLOCK;
        let mut all = Self {
            codes: vec![X::default(); x.len()],
            scales: vec![0.0; blocks],
            sums: vec![0; blocks * SUMS],
        };
        let Self { codes, scales, sums } = &mut all;
        if blocks <= TASK {
            dispatch(isa, Quantize { x, codes, scales, sums });
        } else {
            let tasks = x.par_chunks(TASK * BLOCK).zip(codes.par_chunks_mut(TASK * BLOCK));
            tasks
                .zip(scales.par_chunks_mut(TASK))
                .zip(sums.par_chunks_mut(TASK * SUMS))
                .for_each(|(((x, codes), scales), sums)| dispatch(isa, Quantize { x, codes, scales, sums }));
        }
        all
    }
}

struct Quantize<'a, X> {
    x: &'a [f32],
    codes: &'a mut [X],
    scales: &'a mut [f32],
    sums: &'a mut [i32],
}

impl<X: ActivationCode> VectorCode for Quantize<'_, X> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vectors>(self) {
        let blocks = self.x.as_chunks::<BLOCK>().0.iter().zip(self.codes.as_chunks_mut::<BLOCK>().0);
        let sums = self.sums.as_chunks_mut::<SUMS>().0;
        for (((x, codes), scale), sums) in blocks.zip(self.scales).zip(sums) {
            *scale = quantize(x, codes, sums);
        }
    }
}

/// Quantizes a block; returns its scale.
///
/// Bits are compared instead of numbers, so that NaN is the largest of all.
#[inline(always)]
#[allow(clippy::cast_possible_wrap)] // both are below 2³¹
fn quantize<X: ActivationCode>(x: &[f32; BLOCK], codes: &mut [X; BLOCK], sums: &mut [i32; SUMS]) -> f32 {
    /// Adding 1.5·2²³ leaves the nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    /// Below this, the inverse of the scale may overflow.
    const TINY: f32 = 1e-30;
    let mut largest = 0;
    for x in x {
        largest = largest.max(x.to_bits() & 0x7fff_ffff);
    }
    let largest = f32::from_bits(largest);
    let (scale, inverse) = match largest {
        TINY..f32::INFINITY => (largest / 127.0, 127.0 / largest),
        0.0..TINY => (0.0, 0.0),
        _ => (f32::NAN, 0.0),
    };
    let mut wide = [0; BLOCK];
    for (code, x) in wide.iter_mut().zip(x) {
        *code = (x * inverse + ROUND).to_bits() as i32 - ROUND.to_bits() as i32;
    }
    if scale.is_nan() {
        wide = [0; BLOCK]; // infinity times 0
    }
    for (sum, codes) in sums.iter_mut().zip(wide.as_chunks::<{ BLOCK / SUMS }>().0) {
        *sum = codes.iter().sum();
    }
    for (code, wide) in codes.iter_mut().zip(wide) {
        *code = X::from_i32(wide);
    }
    scale
}
