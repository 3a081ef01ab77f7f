//! The dtypes that the kernels read and write; they compute in f32.

use candle_core::DType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use pulp::{Simd, WithSimd};

/// The dtype for sums over `dtype` values: f32 for f16 and bf16, otherwise the dtype itself.
#[must_use]
pub fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        wide => wide,
    }
}

/// A dtype that the kernels read and write.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    fn to_f32(self) -> f32;
    fn from_f32(x: f32) -> Self;
    /// The slice as f32, if its elements are f32.
    fn as_f32s(slice: &[Self]) -> Option<&[f32]>;
    /// The slice as bf16, if its elements are bf16.
    fn as_bf16s(_: &[Self]) -> Option<&[bf16]> {
        None
    }
    /// `out[i] = slice[i]`; both have the same length.
    fn widen(slice: &[Self], out: &mut [f32]);
    /// `out[i] = slice[i]`, rounded; both have the same length.
    fn narrow(slice: &[f32], out: &mut [Self]);
}

impl Element for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    fn from_f32(x: f32) -> Self {
        x
    }
    fn as_f32s(slice: &[Self]) -> Option<&[f32]> {
        Some(slice)
    }
    #[inline(always)]
    fn widen(slice: &[Self], out: &mut [f32]) {
        out.copy_from_slice(slice);
    }
    #[inline(always)]
    fn narrow(slice: &[f32], out: &mut [Self]) {
        out.copy_from_slice(slice);
    }
}

macro_rules! half_element {
    ($half:ty, $widen:ident, $narrow:expr $(, $as_bf16s:expr)?) => {
        impl Element for $half {
            #[inline(always)]
            fn to_f32(self) -> f32 {
                $widen(self.to_bits())
            }
            fn from_f32(x: f32) -> Self {
                Self::from_f32(x)
            }
            fn as_f32s(_: &[Self]) -> Option<&[f32]> {
                None
            }
            $(
                fn as_bf16s(slice: &[Self]) -> Option<&[bf16]> {
                    $as_bf16s(slice)
                }
            )?
            #[inline(always)]
            fn widen(slice: &[Self], out: &mut [f32]) {
                for (out, x) in out.iter_mut().zip(slice) {
                    *out = $widen(x.to_bits());
                }
            }
            #[inline(always)]
            fn narrow(slice: &[f32], out: &mut [Self]) {
                ($narrow)(slice, out);
            }
        }
    };
}
half_element!(f16, f16_to_f32, |slice, out: &mut [f16]| out.convert_from_f32_slice(slice));
half_element!(bf16, bf16_to_f32, f32s_to_bf16s, Some);

/// The upper halves of f32 numbers, rounded to even. There is no branch, so the loop vectorizes in any instruction set.
#[allow(clippy::cast_possible_truncation)] // of 16 bits
#[inline(always)]
fn f32s_to_bf16s(from: &[f32], to: &mut [bf16]) {
    for (to, x) in to.iter_mut().zip(from) {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let quiet = bits >> 16 | 0x40;
        *to = bf16::from_bits(if x.is_nan() { quiet } else { rounded } as u16);
    }
}

/// A bf16 is the upper half of an f32.
#[inline(always)]
fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Moved to their place in an f32, an f16's exponent and mantissa give the number times 2^-112, whether it is
/// normal or subnormal; infinity and NaN need an f32's own exponent. There is no branch, so a loop over this
/// vectorizes in any instruction set.
#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    const SCALE: f32 = f32::from_bits((127 + 112) << 23); // 2^112
    let bits = u32::from(bits);
    let shifted = (bits & 0x7fff) << 13;
    let finite = (f32::from_bits(shifted) * SCALE).to_bits();
    let magnitude = if bits & 0x7c00 == 0x7c00 { shifted | 0x7f80_0000 } else { finite };
    f32::from_bits(magnitude | (bits & 0x8000) << 16)
}

/// [`Element::widen`] compiled for the instruction set.
pub(crate) struct Widen<'a, E> {
    pub(crate) from: &'a [E],
    pub(crate) to: &'a mut [f32],
}

impl<E: Element> WithSimd for Widen<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        E::widen(self.from, self.to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_f32_is_rounded_to_bf16_as_by_the_crate_half() {
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(u32::from(high) << 16 | low);
                let mut got = [bf16::ZERO];
                bf16::narrow(&[x], &mut got);
                assert_eq!(got[0].to_bits(), bf16::from_f32(x).to_bits(), "{x}");
            }
        }
    }

    #[test]
    fn every_half_becomes_its_f32() {
        for bits in 0..=u16::MAX {
            let f = f16::from_bits(bits);
            let b = bf16::from_bits(bits);
            for (got, expected) in [(f16_to_f32(bits), f.to_f32()), (bf16_to_f32(bits), b.to_f32())] {
                let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
                assert!(same, "{bits:#06x}: {got}, not {expected}");
            }
        }
    }
}
