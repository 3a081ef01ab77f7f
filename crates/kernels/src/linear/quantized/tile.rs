//! The sums of a few rows and a panel, and of a tile of rows and panels.

use super::activations::Activations;
use super::panels::{GROUP, PanelFormat};
use super::portable::{ActivationCode, BLOCK, SUMS, TilePointers, VectorCode, Vectors};
use crate::cpu::memory::fetch;
use crate::linear::product::numbers::PANEL;
use std::marker::PhantomData;

/// The distance, in bytes, at which a few rows fetch weights ahead from memory into the second-level cache: on AMD's Zen 4, a
/// token in `q4_0` takes 0.8 times as long as with 2048 bytes into the first. Not measured on Intel.
const AHEAD: usize = 8192;

/// A panel of weights.
#[derive(Clone, Copy)]
pub(super) struct PanelParts<'a> {
    pub(super) codes: &'a [u8],
    pub(super) scales: &'a [u8],
}

/// The sums of R rows and a panel.
///
/// # Safety
/// The processor has the instruction set, and there are R rows and sums of R rows, `stride` apart.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // several arrays have the index
pub(super) unsafe fn few<V: Vectors, C: PanelFormat, const R: usize>(
    x: &Activations<i8>,
    PanelParts { codes, scales }: PanelParts,
    blocks: usize,
    out: &mut [f32],
    stride: usize,
) {
    const { assert!(C::NIBBLES || C::OFFSET == 128, "the offset that `start` takes off bytes") };
    let depth = blocks * BLOCK;
    assert!(x.codes.len() >= R * depth && x.scales.len() >= R * blocks && x.sums.len() >= R * blocks * SUMS);
    assert!(codes.len() >= blocks * C::CODES && scales.len() >= C::scales_len(blocks));
    assert!(out.len() >= (R - 1) * stride + PANEL);
    // SAFETY: the lengths above cover what is read and written; the rest is the caller's promise.
    unsafe {
        let mut sums = [V::splat(0.0); R];
        let mut group = codes.as_ptr();
        for block in 0..blocks {
            for p in 0..C::PARTS {
                let dots = part_dots::<V, C, R>(x, (block, blocks), p, &mut group);
                let scale = C::scale::<V>(scales.as_ptr(), block, p, blocks);
                for r in 0..R {
                    let scale = V::mul(scale, V::splat(scale_of(x, r * blocks + block)));
                    sums[r] = V::mul_add(V::floats(dots[r]), scale, sums[r]);
                }
            }
            if C::MINIMA {
                let min = C::minimum::<V>(scales.as_ptr(), block, blocks);
                for r in 0..R {
                    sums[r] = V::mul_add(min, V::splat(minus_total(x, r * blocks + block)), sums[r]);
                }
            }
        }
        for r in 0..R {
            V::store(sums[r], out.as_mut_ptr().add(r * stride));
        }
    }
}

/// The products of R rows with part `part` of block `block` of `blocks`, summed. `group` points to the codes of the part, and
/// moves on to the next part.
///
/// # Safety
/// The processor has the instruction set, there are R rows of `blocks` blocks, and the codes of the part are readable.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // several arrays have the index
unsafe fn part_dots<V: Vectors, C: PanelFormat, const R: usize>(
    x: &Activations<i8>,
    (block, blocks): (usize, usize),
    part: usize,
    group: &mut *const u8,
) -> [V::Ints; R] {
    const STEP: usize = 4;
    let depth = blocks * BLOCK;
    let count = BLOCK / C::PARTS;
    // SAFETY: passed on.
    unsafe {
        // A single row has two chains of sums, since each addition waits for the one before. More rows have enough.
        let mut dots = [V::ints(0); R];
        let mut others = [V::ints(0); R];
        for r in 0..R {
            let sum = part_sum::<C>(&x.sums, r * blocks + block, part);
            dots[r] = if C::NIBBLES { V::ints(-C::OFFSET * sum) } else { V::start(sum) };
        }
        let from = x.codes.as_ptr().add(block * BLOCK + part * count);
        let mut k = 0;
        while k < count {
            fetch(group.wrapping_add(AHEAD));
            let bytes = V::bytes(*group);
            *group = group.add(GROUP);
            if C::NIBBLES {
                let (low, high) = V::nibbles(bytes);
                for r in 0..R {
                    dots[r] = V::dot_nibbles(dots[r], low, four::<V>(from.add(r * depth + k)));
                    let high_sums = if R == 1 { &mut others[r] } else { &mut dots[r] };
                    *high_sums = V::dot_nibbles(*high_sums, high, four::<V>(from.add(r * depth + k + STEP)));
                }
                k += 2 * STEP;
            } else {
                for r in 0..R {
                    let sums = if R == 1 && k / STEP % 2 == 1 { &mut others[r] } else { &mut dots[r] };
                    *sums = V::dot(*sums, bytes, four::<V>(from.add(r * depth + k)));
                }
                k += STEP;
            }
        }
        if R == 1 {
            dots[0] = V::add(dots[0], others[0]);
        }
        dots
    }
}

/// The 4 bytes at `from`, for each output.
#[inline(always)]
unsafe fn four<V: Vectors>(from: *const i8) -> V::Ints {
    // SAFETY: passed on.
    unsafe { V::ints(from.cast::<i32>().read_unaligned()) }
}

/// The sum of the codes of part `part` of block `block`, which share a scale of the weights.
///
/// # Safety
/// There is such a block.
#[inline(always)]
unsafe fn part_sum<C: PanelFormat>(sums: &[i32], block: usize, part: usize) -> i32 {
    // SAFETY: passed on.
    unsafe {
        let sums = sums.as_ptr().add(block * SUMS);
        if C::PARTS == SUMS { *sums.add(part) } else { *sums + *sums.add(1) }
    }
}

/// The first sum of part `part` of block `block`: what takes the offset of the weights' codes off.
///
/// # Safety
/// There is such a block.
#[inline(always)]
unsafe fn start<C: PanelFormat, X>(x: &Activations<X>, block: usize, part: usize) -> i32 {
    // SAFETY: passed on.
    unsafe {
        if C::PARTS == 1 {
            let start = *x.starts.as_ptr().add(block);
            if C::OFFSET == 128 { start } else { start / 128 * C::OFFSET }
        } else {
            -C::OFFSET * part_sum::<C>(&x.sums, block, part)
        }
    }
}

/// The scale of a block of activations.
///
/// # Safety
/// There is such a block.
#[inline(always)]
unsafe fn scale_of<X>(x: &Activations<X>, block: usize) -> f32 {
    // SAFETY: passed on.
    unsafe { *x.scales.as_ptr().add(block) }
}

/// Minus the sum of a block of activations.
///
/// # Safety
/// There is such a block.
#[inline(always)]
unsafe fn minus_total<X>(x: &Activations<X>, block: usize) -> f32 {
    // SAFETY: passed on.
    unsafe {
        let sums = x.sums.as_ptr().add(block * SUMS);
        -(scale_of(x, block) * (*sums + *sums.add(1)) as f32)
    }
}

/// Writes codes as products of many rows read them.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
pub(super) unsafe fn widen<V: Vectors, C: PanelFormat>(codes: &[u8], out: &mut [u8]) {
    let per_pair = if C::NIBBLES { GROUP } else { 2 * GROUP };
    let wide_pair = 2 * GROUP * size_of::<V::ActivationCode>();
    for (codes, out) in codes.chunks_exact(per_pair).zip(out.chunks_exact_mut(wide_pair)) {
        let codes = codes.as_ptr();
        let out = out.as_mut_ptr();
        // SAFETY: a group has 64 codes, and there is room for two groups.
        unsafe {
            let pair = if C::NIBBLES {
                V::nibbles(V::bytes(codes)).into()
            } else {
                [V::bytes(codes), V::bytes(codes.add(GROUP))]
            };
            V::widen_pair(pair, C::NIBBLES, out);
        }
    }
}

/// The length in f32 numbers of the scales and minima of a panel of `blocks` blocks.
pub(super) const fn wide_scales_len<C: PanelFormat>(blocks: usize) -> usize {
    blocks * (C::PARTS + C::MINIMA as usize) * PANEL
}

/// Writes the scales of a panel in f32, the parts of each block, then its minima: every tile of the panel reads them.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
pub(super) unsafe fn widen_scales<V: Vectors, C: PanelFormat>(scales: &[u8], blocks: usize, out: &mut [f32]) {
    assert!(scales.len() >= C::scales_len(blocks) && out.len() >= wide_scales_len::<C>(blocks));
    let mut out = out.as_mut_ptr();
    for block in 0..blocks {
        // SAFETY: the lengths above cover what is read and written; the rest is the caller's promise.
        unsafe {
            for p in 0..C::PARTS {
                V::store(C::scale::<V>(scales.as_ptr(), block, p, blocks), out);
                out = out.add(PANEL);
            }
            if C::MINIMA {
                V::store(C::minimum::<V>(scales.as_ptr(), block, blocks), out);
                out = out.add(PANEL);
            }
        }
    }
}

/// The panels of a tile.
#[derive(Clone, Copy)]
pub(super) struct Strip<'a> {
    /// Their codes, widened or as they lie.
    pub(super) codes: &'a [u8],
    /// The bytes from the codes of a panel to those of the next.
    pub(super) distance: usize,
    /// Their scales, each panel's in [`wide_scales_len`] numbers.
    pub(super) scales: &'a [f32],
    pub(super) blocks: usize,
}

/// The sums of `rows` rows, from `first` on, and a strip: added to `sums`, or written if they stay in registers.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
pub(super) unsafe fn tile<V: Vectors, C: PanelFormat, X: ActivationCode>(
    x: &Activations<X>,
    first: usize,
    rows: usize,
    strip: Strip,
    sums: &mut [f32],
) {
    macro_rules! of_rows {
        ($panels:literal: $($rows:literal)*) => {
            match rows {
                $($rows => V::call(TileWork::<C, X, $rows, $panels> { x, first, strip, sums, code: PhantomData }),)*
                _ => unreachable!("no tile of {rows} rows"),
            }
        };
    }
    const { assert!(V::ROWS <= 6 && (V::PANELS == 1 || V::PANELS == 2)) };
    // Only the tiles of the instruction set are compiled.
    // SAFETY: passed on.
    unsafe { if const { V::PANELS == 1 } { of_rows!(1: 1 2 3 4 5 6) } else { of_rows!(2: 1 2 3 4 5 6) } }
}

/// The sums of R rows, from `first` on, and P panels. Runs in a function of its own, because the compiler keeps all sums
/// in registers only if nothing else is around them.
struct TileWork<'a, C, X, const R: usize, const P: usize> {
    x: &'a Activations<X>,
    first: usize,
    strip: Strip<'a>,
    sums: &'a mut [f32],
    code: PhantomData<C>,
}

impl<C: PanelFormat, X: ActivationCode, const R: usize, const P: usize> VectorCode
    for TileWork<'_, C, X, R, P>
{
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // several arrays have the index
    unsafe fn run<V: Vectors>(self) {
        const { assert!(C::NIBBLES || C::OFFSET == 128, "the offset that `start_wide` takes off bytes") };
        const { assert!((BLOCK / C::PARTS / X::STEP).is_multiple_of(2), "`dot_steps` may take two at a time") };
        let Self { x, first, strip: Strip { codes: all_codes, distance, scales, blocks }, sums, .. } = self;
        let depth = blocks * BLOCK;
        let part = BLOCK / C::PARTS;
        let count = part / X::STEP;
        assert!(x.codes.len() >= (first + R) * depth && x.scales.len() >= (first + R) * blocks);
        assert!(x.starts.len() >= (first + R) * blocks && x.sums.len() >= (first + R) * blocks * SUMS);
        assert!(sums.len() >= R * P * PANEL);
        assert!(all_codes.len() >= (P - 1) * distance + depth / X::STEP * GROUP);
        let scales_len = wide_scales_len::<C>(blocks);
        assert!(scales.len() >= P * scales_len);
        // SAFETY: the lengths above cover what is read and written; the rest is the caller's promise.
        unsafe {
            let mut codes = all_codes.as_ptr();
            let mut from = x.codes.as_ptr().add(first * depth);
            let mut scales = scales.as_ptr();
            let sums = sums.as_mut_ptr();
            let mut totals = [[V::splat(0.0); P]; R];
            // Adds to the sums of a row and a panel, in registers or in memory.
            macro_rules! add {
                ($r:ident, $i:ident, $a:expr, $b:expr) => {
                    if V::SUMS_STAY {
                        totals[$r][$i] = V::mul_add($a, $b, totals[$r][$i]);
                    } else {
                        let sum = sums.add(($r * P + $i) * PANEL);
                        V::store(V::mul_add($a, $b, V::load(sum)), sum);
                    }
                };
            }
            for block in 0..blocks {
                for p in 0..C::PARTS {
                    let mut dots = [[V::ints(0); P]; R];
                    for r in 0..R {
                        let start = start::<C, X>(x, (first + r) * blocks + block, p);
                        dots[r] = [if C::NIBBLES { V::ints(start) } else { V::start_wide(start) }; P];
                    }
                    let steps =
                        TilePointers { codes, panel: distance, x: from.cast(), row: depth * size_of::<X>() };
                    dots = V::dot_steps(dots, steps, count);
                    codes = codes.add(count * GROUP);
                    from = from.add(part);
                    for i in 0..P {
                        let scale = V::load(scales.add(i * scales_len));
                        for r in 0..R {
                            let scale = V::mul(scale, V::splat(scale_of(x, (first + r) * blocks + block)));
                            add!(r, i, V::floats(dots[r][i]), scale);
                        }
                    }
                    scales = scales.add(PANEL);
                }
                if C::MINIMA {
                    for i in 0..P {
                        let min = V::load(scales.add(i * scales_len));
                        for r in 0..R {
                            let total = V::splat(minus_total(x, (first + r) * blocks + block));
                            add!(r, i, min, total);
                        }
                    }
                    scales = scales.add(PANEL);
                }
            }
            if V::SUMS_STAY {
                for r in 0..R {
                    for i in 0..P {
                        V::store(totals[r][i], sums.add((r * P + i) * PANEL));
                    }
                }
            }
        }
    }
}
