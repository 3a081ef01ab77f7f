//! Activations as codes of −127 to 127, in blocks of 32 that share a scale.

use super::portable::{ActivationCode, BLOCK, SUMS, VectorCode, Vectors};
use super::vectors::dispatch;
use crate::cpu::isa::Isa;
use rayon::prelude::*;

/// Rows of codes.
pub(super) struct Activations<X> {
    /// (rows, depth)
    pub(super) codes: Vec<X>,
    /// (rows, blocks). NaN if the block holds a number that is not finite.
    pub(super) scales: Vec<f32>,
    /// (rows, blocks, [`SUMS`]): the sums of the codes.
    pub(super) sums: Vec<i32>,
    /// (rows, blocks): -128 times the sum of the codes, which takes an offset of 128 off the other factors.
    pub(super) starts: Vec<i32>,
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
            starts: vec![0; blocks],
        };
        let Self { codes, scales, sums, starts } = &mut all;
        if blocks <= TASK {
            dispatch(isa, Quantize { x, codes, scales, sums, starts });
        } else {
            let tasks = x.par_chunks(TASK * BLOCK).zip(codes.par_chunks_mut(TASK * BLOCK));
            tasks
                .zip(scales.par_chunks_mut(TASK))
                .zip(sums.par_chunks_mut(TASK * SUMS).zip(starts.par_chunks_mut(TASK)))
                .for_each(|(((x, codes), scales), (sums, starts))| {
                    dispatch(isa, Quantize { x, codes, scales, sums, starts });
                });
        }
        all
    }
}

struct Quantize<'a, X> {
    x: &'a [f32],
    codes: &'a mut [X],
    scales: &'a mut [f32],
    sums: &'a mut [i32],
    starts: &'a mut [i32],
}

impl<X: ActivationCode> VectorCode for Quantize<'_, X> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vectors>(self) {
        let blocks = self.x.as_chunks::<BLOCK>().0.iter().zip(self.codes.as_chunks_mut::<BLOCK>().0);
        let sums = self.sums.as_chunks_mut::<SUMS>().0.iter_mut().zip(self.starts);
        for (((x, codes), scale), (sums, start)) in blocks.zip(self.scales).zip(sums) {
            // SAFETY: as the caller of `run` guarantees.
            *scale = unsafe { V::call(QuantizeBlock { x, codes, sums }) };
            *start = -128 * sums.iter().sum::<i32>();
        }
    }
}

/// One block, in a function of its own: in a loop, the compiler takes several at once, and gathers their numbers one by one.
struct QuantizeBlock<'a, X> {
    x: &'a [f32; BLOCK],
    codes: &'a mut [X; BLOCK],
    sums: &'a mut [i32; SUMS],
}

impl<X: ActivationCode> VectorCode for QuantizeBlock<'_, X> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<V: Vectors>(self) -> f32 {
        // SAFETY: as the caller of `run` guarantees.
        unsafe { quantize::<V, X>(self.x, self.codes, self.sums) }
    }
}

/// Quantizes a block; returns its scale.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn quantize<V: Vectors, X: ActivationCode>(
    x: &[f32; BLOCK],
    codes: &mut [X; BLOCK],
    sums: &mut [i32; SUMS],
) -> f32 {
    /// Below this, the inverse of the scale may overflow.
    const TINY: f32 = 1e-30;
    // SAFETY: passed on.
    let largest = unsafe { V::largest(x) };
    let (scale, inverse) = match largest {
        TINY..f32::INFINITY => (largest / 127.0, 127.0 / largest),
        0.0..TINY => (0.0, 0.0),
        _ => {
            (*codes, *sums) = ([X::default(); BLOCK], [0; SUMS]); // infinity times 0
            return f32::NAN;
        }
    };
    // SAFETY: passed on.
    *sums = unsafe { V::rounded(x, inverse, codes) };
    scale
}
