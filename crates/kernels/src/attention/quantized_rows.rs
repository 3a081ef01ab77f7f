//! Keys and values in 8 bits: a row of D numbers is D codes and one scale.
//!
//! `x[c] ≈ scale·code[c]` with codes from -127 to 127 and `scale = max |x| / 127`: absmax quantization (Dettmers et al.
//! 2022, §2.1) of each row. Attention reads such rows in place, and computes in f32 with the numbers that [`widen_rows`]
//! returns; with few queries, the scale of a row of values multiplies its weight first.

use crate::cpu::isa;
use crate::cpu::vector::with_slices;
use candle_core::{DType, Device, Layout, Result, Tensor};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

/// The bytes after the codes of a row: its scale, an f32, little-endian.
pub const SCALE_BYTES: usize = size_of::<f32>();
/// The largest code.
const MOST: f32 = 127.0;
/// The number of rows that a thread takes at a time. The few rows of a decoded token stay on the caller's thread.
const ROWS: usize = 256;

/// Quantizes rows to 8 bits: the codes of a row, one byte each in two's complement, then its scale. Each code is `x / scale`,
/// rounded to the nearest integer, and to the even one of two. A row of zeros has the scale 0. Where the scale is subnormal, below
/// 1e-38, it is coarse: codes stop at ±127, and numbers may be lost. Only the CPU has this.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::attention::{quantize_rows, widen_rows};
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[[127f32, -3.2, 0.0]], &Device::Cpu)?;
/// let codes = quantize_rows(&x)?;
/// assert_eq!(codes.to_vec2::<u8>()?, [[127, 253, 0, 0, 0, 128, 63]]); // the scale is 1
/// assert_eq!(widen_rows(&codes)?.to_vec2::<f32>()?, [[127.0, -3.0, 0.0]]);
/// # Ok(())
/// # }
/// ```
///
/// # Shapes
/// `x` (.., D) in f32, with any strides -> (.., D + 4) in u8
///
/// # Errors
/// When a number is not finite, `x` is not f32 on the CPU, has no dimension or rows without numbers, or needs a gradient, which
/// codes do not pass on.
pub fn quantize_rows(x: &Tensor) -> Result<Tensor> {
    let mut shape = x.dims().to_vec();
    let d = shape.last().copied().unwrap_or_default();
    if d == 0 || x.dtype() != DType::F32 || !x.device().is_cpu() {
        candle_core::bail!(
            "quantize_rows: expected rows of numbers in f32 on the CPU, got {shape:?} in {} on {:?}",
            x.dtype().as_str(),
            x.device().location()
        )
    }
    if x.track_op() {
        candle_core::bail!("quantize_rows: codes pass on no gradient; detach rows {shape:?} first")
    }
    let width = d + SCALE_BYTES;
    let (codes, finite) = with_slices([&x.contiguous()?], |[x]| {
        let mut codes = vec![0; x.len() / d * width];
        let chunks = codes.par_chunks_mut(ROWS * width).zip(x.par_chunks(ROWS * d));
        let finite = chunks.map(|(codes, x)| isa::arch().dispatch(Encode { x, d, codes }));
        let finite = finite.reduce(|| true, |a, b| a && b);
        (codes, finite)
    })?;
    if !finite {
        candle_core::bail!("quantize_rows: a number in rows {shape:?} is NaN or infinite")
    }
    *shape.last_mut().unwrap_or(&mut 0) = width;
    Tensor::from_vec(codes, shape, &Device::Cpu)
}

/// The numbers of quantized rows, `scale·code`, each rounded once to f32: what attention computes with.
///
/// # Shapes
/// `codes` (.., D + 4) in u8, with any strides -> (.., D) in f32
///
/// # Errors
/// When `codes` is not u8 on the CPU, or has no room for a scale.
pub fn widen_rows(codes: &Tensor) -> Result<Tensor> {
    let mut shape = codes.dims().to_vec();
    let width = shape.last().copied().unwrap_or_default();
    if width <= SCALE_BYTES || codes.dtype() != DType::U8 || !codes.device().is_cpu() {
        candle_core::bail!(
            "widen_rows: expected rows of D + {SCALE_BYTES} bytes on the CPU, got {shape:?} in {} on {:?}",
            codes.dtype().as_str(),
            codes.device().location()
        )
    }
    check_whole(codes.layout())?;
    let d = width - SCALE_BYTES;
    let rows = codes.flatten_all()?.to_vec1::<u8>()?;
    let mut out = vec![0.0; rows.len() / width * d];
    for (row, out) in rows.chunks_exact(width).zip(out.chunks_exact_mut(d)) {
        widen(row, out);
    }
    *shape.last_mut().unwrap_or(&mut 0) = d;
    Tensor::from_vec(out, shape, &Device::Cpu)
}

/// A row's codes and scale as f32. There is no branch in the loop, so it vectorizes in any instruction set.
#[inline(always)]
pub(super) fn widen(row: &[u8], out: &mut [f32]) {
    let Some((codes, scale)) = row.split_last_chunk() else { return };
    for (x, code) in out.iter_mut().zip(codes) {
        *x = number(*code, *scale);
    }
}

/// Decodes one code: `code·scale`, with the bytes of its row's scale.
#[inline(always)]
pub(super) fn number(code: u8, scale: [u8; SCALE_BYTES]) -> f32 {
    f32::from(code.cast_signed()) * f32::from_le_bytes(scale)
}

/// Fails if rows of codes seem to be cut: the last bytes of a part of a row would be taken for its scale. Rows that are whole start at
/// multiples of their width, unless other rows lie between them.
pub(super) fn check_whole(layout: &Layout) -> Result<()> {
    let dims = layout.dims();
    let strides = layout.stride();
    let ([.., width], [.., 1]) = (dims, strides) else { return Ok(()) };
    let starts = dims.iter().zip(strides).rev().skip(1).filter(|(n, _)| **n > 1).map(|(_, stride)| *stride);
    if starts.chain([layout.start_offset()]).any(|start| !start.is_multiple_of((*width).max(1))) {
        candle_core::bail!(
            "quantized rows {dims:?} with strides {strides:?} from {} on do not lie one after another: part of a row has no scale. \
             widen_rows gives numbers that can be cut; make rows that are whole contiguous",
            layout.start_offset()
        )
    }
    Ok(())
}

/// Converts `x` to `dtype`; rows of codes become the numbers that they encode.
pub(super) fn to_dtype(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype() == DType::U8 { widen_rows(x)?.to_dtype(dtype) } else { x.to_dtype(dtype) }
}

/// The number of elements that a row holds besides its numbers: the bytes of a scale after codes, otherwise none.
pub(super) fn extra(dtype: DType) -> usize {
    if dtype == DType::U8 { SCALE_BYTES } else { 0 }
}

/// Some rows to quantize; whether all their numbers are finite.
struct Encode<'a> {
    /// (rows, D)
    x: &'a [f32],
    d: usize,
    /// (rows, D + 4)
    codes: &'a mut [u8],
}

impl WithSimd for Encode<'_> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> bool {
        let Self { x, d, codes } = self;
        let mut finite = true;
        for (x, row) in x.chunks_exact(d).zip(codes.chunks_exact_mut(d + SCALE_BYTES)) {
            finite &= encode(x, row);
        }
        finite
    }
}

#[inline(always)]
fn encode(x: &[f32], row: &mut [u8]) -> bool {
    // Adding 1.5·2^23 leaves the nearest integer in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    // Magnitudes are ordered as their bits are, and a maximum of integers vectorizes.
    let mut largest = 0;
    for x in x {
        largest = largest.max(x.abs().to_bits());
    }
    let largest = f32::from_bits(largest);
    let scale = largest / MOST;
    // Rounded up, the scale of f32's largest number would overflow.
    let scale = if (scale * MOST).is_finite() { scale } else { scale.next_down() };
    let divisor = if scale > 0.0 { scale } else { 1.0 };
    let (codes, tail) = row.split_at_mut(x.len());
    for (code, x) in codes.iter_mut().zip(x) {
        // A subnormal scale is coarse, and x may lie beyond 127 of it.
        let [low, ..] = ((x / divisor).clamp(-MOST, MOST) + ROUND).to_bits().to_le_bytes();
        *code = low;
    }
    tail.copy_from_slice(&scale.to_le_bytes());
    largest.is_finite()
}
