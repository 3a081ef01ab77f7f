//! Activations as codes of −127 to 127, in blocks of 32 that share a scale.

use super::portable::{ActivationCode, BLOCK, SUMS, VectorCode, Vectors};
use super::vectors::dispatch;
use crate::cpu::isa::Isa;
use crate::cpu::memory::copy_into;
use rayon::prelude::*;
use std::mem::MaybeUninit;

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
    #[allow(unsafe_code)]
    pub(super) fn new(isa: Isa, x: &[f32]) -> Self {
        let (x, rest) = x.as_chunks::<BLOCK>();
        assert!(rest.is_empty(), "rows of whole blocks");
        let mut all = Self {
            codes: Vec::with_capacity(x.len() * BLOCK),
            scales: Vec::with_capacity(x.len()),
            sums: Vec::with_capacity(x.len() * SUMS),
            starts: Vec::with_capacity(x.len()),
        };
        let Self { codes, scales, sums, starts } = &mut all;
        let whole = Quantize {
            x,
            codes: &mut codes.spare_capacity_mut()[..x.len() * BLOCK],
            scales: &mut scales.spare_capacity_mut()[..x.len()],
            sums: &mut sums.spare_capacity_mut()[..x.len() * SUMS],
            starts: &mut starts.spare_capacity_mut()[..x.len()],
        };
        if x.len() <= TASK {
            dispatch(isa, whole);
        } else {
            let Quantize { x, codes, scales, sums, starts } = whole;
            let tasks = x.par_chunks(TASK).zip(codes.par_chunks_mut(TASK * BLOCK));
            tasks
                .zip(scales.par_chunks_mut(TASK))
                .zip(sums.par_chunks_mut(TASK * SUMS).zip(starts.par_chunks_mut(TASK)))
                .for_each(|(((x, codes), scales), (sums, starts))| {
                    dispatch(isa, Quantize { x, codes, scales, sums, starts });
                });
        }
        // SAFETY: each block has written its codes, its scale, its sums and its start.
        unsafe {
            all.codes.set_len(x.len() * BLOCK);
            all.scales.set_len(x.len());
            all.sums.set_len(x.len() * SUMS);
            all.starts.set_len(x.len());
        }
        all
    }
}

/// Blocks, and room for what [`Activations`] holds of them.
struct Quantize<'a, X> {
    x: &'a [[f32; BLOCK]],
    codes: &'a mut [MaybeUninit<X>],
    scales: &'a mut [MaybeUninit<f32>],
    sums: &'a mut [MaybeUninit<i32>],
    starts: &'a mut [MaybeUninit<i32>],
}

impl<X: ActivationCode> VectorCode for Quantize<'_, X> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vectors>(self) {
        let Self { x, codes, scales, sums, starts } = self;
        assert!(codes.len() == x.len() * BLOCK && sums.len() == x.len() * SUMS);
        assert!(scales.len() == x.len() && starts.len() == x.len());
        let numbers = scales.iter_mut().zip(sums.as_chunks_mut::<SUMS>().0).zip(starts);
        for ((x, codes), ((scale, sums), start)) in
            x.iter().zip(codes.as_chunks_mut::<BLOCK>().0).zip(numbers)
        {
            // SAFETY: as the caller of `run` guarantees.
            let block = unsafe { V::call(QuantizeBlock { x, codes }) };
            scale.write(block.scale);
            start.write(-128 * block.sums.iter().sum::<i32>());
            copy_into(&block.sums, sums);
        }
    }
}

/// One block, in a function of its own: in a loop, the compiler takes several at once, and gathers their numbers one by one.
struct QuantizeBlock<'a, X> {
    x: &'a [f32; BLOCK],
    codes: &'a mut [MaybeUninit<X>; BLOCK],
}

/// The scale of a block, and the sums of its codes.
struct BlockNumbers {
    scale: f32,
    sums: [i32; SUMS],
}

impl<X: ActivationCode> VectorCode for QuantizeBlock<'_, X> {
    type Output = BlockNumbers;

    #[inline(always)]
    unsafe fn run<V: Vectors>(self) -> BlockNumbers {
        /// Below this, the inverse of the scale may overflow.
        const TINY: f32 = 1e-30;
        // SAFETY: as the caller of `run` guarantees.
        let largest = unsafe { V::largest(self.x) };
        let (scale, inverse) = match largest {
            TINY..f32::INFINITY => (largest / 127.0, 127.0 / largest),
            0.0..TINY => (0.0, 0.0),
            _ => {
                self.codes.fill(MaybeUninit::new(X::default())); // infinity times 0
                return BlockNumbers { scale: f32::NAN, sums: [0; SUMS] };
            }
        };
        let mut codes = [X::default(); BLOCK];
        // SAFETY: as above.
        let sums = unsafe { V::rounded(self.x, inverse, &mut codes) };
        copy_into(&codes, self.codes);
        BlockNumbers { scale, sums }
    }
}
