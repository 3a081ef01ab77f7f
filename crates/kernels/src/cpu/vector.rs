//! Elementwise work on vectors, generic over the instruction set and spread over threads.

use super::cpu_op::CpuInput;
use super::isa;
use candle_core::{CpuStorage, Layout, Result, Shape, Tensor};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// `2^x` for x below 127: relative error below 1.2e-7, exactly 1 at 0, exactly 0 below -126 and at -inf; NaN
/// stays NaN.
///
/// `2^x = 2^n · 2^f` with n the nearest integer and f in -1/2..1/2. `2^f` is a polynomial of degree 6; the bits of `2^n` are made of n.
#[inline(always)]
pub(crate) fn exp2<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    // Adding 1.5·2^23 leaves the nearest integer in the low bits of the mantissa, here plus 127, as the exponent's bits hold it.
    const ROUND: f32 = 12_582_912.0 + 127.0;
    // Of all polynomials of degree 6 that are 1 at 0, the one whose largest relative error from -1/2 to 1/2 is smallest: 2e-9, with
    // coefficients in f32 2e-8.
    const C: [f32; 7] = [
        1.0,
        std::f32::consts::LN_2,
        0.240_226_48,
        0.055_503_324,
        0.009_618_437,
        0.001_339_887_5,
        0.000_153_533_62,
    ];
    // Below -126, n = -127: the bits of 0. NaN compares as false.
    let tiny = simd.less_than_f32s(x, simd.splat_f32s(-126.0));
    let x = simd.select_f32s(tiny, simd.splat_f32s(-127.0), x);
    let round = simd.splat_f32s(ROUND);
    let shifted = simd.add_f32s(x, round);
    let f = simd.sub_f32s(x, simd.sub_f32s(shifted, round));
    let power = simd.wrapping_dyn_shl_u32s(simd.transmute_u32s_f32s(shifted), simd.splat_u32s(23));
    let mut p = simd.splat_f32s(C[6]);
    for c in C[..6].iter().rev() {
        p = simd.mul_add_e_f32s(p, f, simd.splat_f32s(*c));
    }
    simd.mul_f32s(p, simd.transmute_f32s_u32s(power))
}

/// `tanh(x)`: relative error below 4e-7; NaN stays NaN.
///
/// Below 1 by Lambert's continued fraction, `x / (1 + x² / (3 + x² / (5 + ..)))`, cut off after 11, which keeps small results
/// exact; above by `1 - 2 / (e^2x + 1)`.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    const TWICE_LOG2_E: f32 = 2.0 * std::f32::consts::LOG2_E;
    let splat = |x| simd.splat_f32s(x);
    let one = splat(1.0);
    let size = simd.abs_f32s(x);
    let squared = simd.mul_f32s(x, x);
    let above = simd.mul_add_e_f32s(
        simd.mul_add_e_f32s(splat(21.0), squared, splat(1260.0)),
        squared,
        splat(10395.0),
    );
    let below = simd.mul_add_e_f32s(simd.add_f32s(squared, splat(210.0)), squared, splat(4725.0));
    let below = simd.mul_add_e_f32s(below, squared, splat(10395.0));
    let near = simd.div_f32s(simd.mul_f32s(x, above), below);
    // From 10 on the result is 1.
    let power = exp2(simd, simd.mul_f32s(simd.min_f32s(size, splat(10.0)), splat(TWICE_LOG2_E)));
    let far = simd.sub_f32s(one, simd.div_f32s(splat(2.0), simd.add_f32s(power, one)));
    let negative = simd.less_than_f32s(x, splat(0.0));
    let far = simd.select_f32s(negative, simd.neg_f32s(far), far);
    let value = simd.select_f32s(simd.less_than_f32s(size, one), near, far);
    simd.select_f32s(simd.equal_f32s(x, x), value, x)
}

/// A function of one or two numbers, applied to whole vectors.
pub(crate) trait Function: Sync {
    fn apply<S: Simd>(&self, simd: S, a: S::f32s, b: S::f32s) -> S::f32s;
}

/// `function(a, b)` of two contiguous f32 tensors of one shape.
pub(crate) fn parallel_map(
    function: &impl Function,
    a: CpuInput,
    b: CpuInput,
) -> Result<(CpuStorage, Shape)> {
    let shape = a.shape();
    if shape != b.shape() {
        candle_core::bail!("shapes {shape:?} and {:?} differ", b.shape())
    }
    let a = a.slice()?;
    let b = b.slice()?;
    let mut out = vec![0f32; a.len()];
    let arch = isa::arch();
    out.par_chunks_mut(CHUNK).zip(a.par_chunks(CHUNK).zip(b.par_chunks(CHUNK))).for_each(|(out, (a, b))| {
        arch.dispatch(MapPairs { a, b, out, function });
    });
    Ok((CpuStorage::F32(out), shape.clone()))
}

/// `function(x, x)` in place of x, contiguous and f32.
pub(crate) fn parallel_map_in_place(
    function: &impl Function,
    x: &mut CpuStorage,
    layout: &Layout,
) -> Result<()> {
    let (CpuStorage::F32(data), Some((start, end))) = (x, layout.contiguous_offsets()) else {
        candle_core::bail!("expected a contiguous f32 tensor, got {layout:?}")
    };
    let arch = isa::arch();
    data[start..end].par_chunks_mut(CHUNK).for_each(|x| {
        arch.dispatch(MapInPlace { x, function });
    });
    Ok(())
}

/// The number of elements that a thread takes at a time: enough to outweigh the cost of scheduling, few enough to stay in
/// cache.
pub const CHUNK: usize = 1 << 13;

/// Runs `f` on the elements of contiguous f32 tensors on the CPU.
pub(crate) fn with_slices<const N: usize, R>(
    tensors: [&Tensor; N],
    f: impl FnOnce([&[f32]; N]) -> R,
) -> Result<R> {
    let guards = tensors.map(Tensor::storage_and_layout);
    let mut slices = [&[][..]; N];
    for (slice, (storage, layout)) in slices.iter_mut().zip(&guards) {
        *slice = CpuInput::new(storage, layout)?.slice()?;
    }
    Ok(f(slices))
}

/// `Σ f(a, b, c)` over slices of equal length, in lanes that the compiler turns into vectors.
#[inline(always)]
pub(crate) fn sum3(a: &[f32], b: &[f32], c: &[f32], f: impl Fn(f32, f32, f32) -> f32) -> f32 {
    const LANES: usize = 32;
    debug_assert!(a.len() == b.len() && a.len() == c.len());
    let mut sums = [0f32; LANES];
    let ((a, a_tail), (b, b_tail), (c, c_tail)) = (a.as_chunks(), b.as_chunks(), c.as_chunks());
    for (a, (b, c)) in a.iter().zip(b.iter().zip(c)) {
        let lanes: (&[f32; LANES], &[f32; LANES], &[f32; LANES]) = (a, b, c);
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum += f(lanes.0[i], lanes.1[i], lanes.2[i]);
        }
    }
    let tail = a_tail.iter().zip(b_tail.iter().zip(c_tail)).map(|(a, (b, c))| f(*a, *b, *c));
    sums.iter().sum::<f32>() + tail.sum::<f32>()
}

/// The number of elements that a thread fills at a time, if filling is all it does.
const FILL: usize = 1 << 14;

/// A vector of `len` numbers in chunks of `chunk`. `fill(i, chunk)` writes the i-th chunk, on all
/// threads: the memory is not zeroed beforehand, and no single thread touches all of it first.
///
/// # Safety
/// `fill` writes every number of its chunk.
#[allow(unsafe_code)]
pub(crate) unsafe fn chunked(
    len: usize,
    chunk: usize,
    fill: impl Fn(usize, &mut [MaybeUninit<f32>]) + Sync,
) -> Vec<f32> {
    let mut out: Vec<f32> = Vec::with_capacity(len);
    let chunks = out.spare_capacity_mut()[..len].par_chunks_mut(chunk.max(1)).enumerate();
    chunks.with_min_len(FILL / chunk.max(1)).for_each(|(i, part)| fill(i, part));
    // SAFETY: the chunks cover `len` numbers, and the caller's `fill` has written them.
    unsafe { out.set_len(len) };
    out
}

struct MapPairs<'a, E> {
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut [f32],
    function: &'a E,
}

impl<E: Function> WithSimd for MapPairs<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (a, a_tail) = S::as_simd_f32s(self.a);
        let (b, b_tail) = S::as_simd_f32s(self.b);
        let (out, out_tail) = S::as_mut_simd_f32s(self.out);
        for (out, (a, b)) in out.iter_mut().zip(a.iter().zip(b)) {
            *out = self.function.apply(simd, *a, *b);
        }
        if !out_tail.is_empty() {
            let last =
                self.function.apply(simd, simd.partial_load_f32s(a_tail), simd.partial_load_f32s(b_tail));
            simd.partial_store_f32s(out_tail, last);
        }
    }
}

struct MapInPlace<'a, E> {
    x: &'a mut [f32],
    function: &'a E,
}

impl<E: Function> WithSimd for MapInPlace<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (vectors, tail) = S::as_mut_simd_f32s(self.x);
        for x in vectors {
            *x = self.function.apply(simd, *x, *x);
        }
        if !tail.is_empty() {
            let last = simd.partial_load_f32s(tail);
            simd.partial_store_f32s(tail, self.function.apply(simd, last, last));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;

    struct Exp2;

    impl Function for Exp2 {
        #[inline(always)]
        fn apply<S: Simd>(&self, simd: S, a: S::f32s, _: S::f32s) -> S::f32s {
            exp2(simd, a)
        }
    }

    #[test]
    fn exp2_is_what_it_says() {
        // Numbers on both sides of 0, the nearest of which are the most, all just below 1/2, and every exponent of a result.
        let near = (1f32.to_bits() - (24 << 23)..=1f32.to_bits()).step_by(97).map(f32::from_bits);
        let edge = (0.4999f32.to_bits()..0.5f32.to_bits()).map(f32::from_bits);
        let far = (-126 * 8..127 * 8).map(|i: i16| f32::from(i) / 8.0);
        let numbers: Vec<f32> = near.chain(edge).flat_map(|x| [x, -x]).chain(far).collect();
        let expected: Vec<f64> = numbers.iter().map(|x| f64::from(*x).exp2()).collect();
        for arch in Isa::available().into_iter().filter_map(Isa::arch) {
            let mut powers = numbers.clone();
            arch.dispatch(MapInPlace { x: &mut powers, function: &Exp2 });
            for (x, (power, y)) in numbers.iter().zip(powers.iter().zip(&expected)) {
                assert!((f64::from(*power) / y - 1.0).abs() < 1.2e-7, "{arch:?}: 2^{x} is not {power}");
            }
            let mut special =
                [0.0, -126.00001, -126.5, -127.5, -1e30, f32::NEG_INFINITY, f32::NAN, -f32::NAN];
            arch.dispatch(MapInPlace { x: &mut special, function: &Exp2 });
            assert_eq!(
                special[..6].iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
                [1f32.to_bits(), 0, 0, 0, 0, 0]
            );
            assert!(special[6].is_nan() && special[7].is_nan());
        }
    }
}
