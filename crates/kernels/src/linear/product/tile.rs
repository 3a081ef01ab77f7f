//! The innermost loop of a matrix product: a tile of the result whose sums stay in registers.

use super::numbers::{Factor, Halves, PANEL};
use super::rows::STEP;
use crate::cpu::memory::{LINE, fetch};
use std::ops::Range;

/// `out[r][c] = Σ_k rows[r][k]·panels[k][c]` for `depth` values of k, or `out += ` that.
///
/// For a tile of M rows and P panels, `rows` holds the group of M rows from some k on, see
/// [`rows`](super::rows); `panels` points to the same row k of the first panel, the others are `panel` numbers apart; each
/// has `depth` rows from there on; `depth` is even. Where the panels hold [`Bf16Pair`](super::numbers::Bf16Pair)s, so do the rows, and k
/// counts them. `out` has M rows of P·[`PANEL`] numbers, `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct Tile<E> {
    pub(crate) rows: *const f32,
    pub(crate) panels: *const E,
    pub(crate) panel: usize,
    pub(crate) depth: usize,
    pub(crate) out: *mut f32,
    pub(crate) stride: usize,
    /// Whether to add to what `out` holds.
    pub(crate) add: bool,
    /// Memory that a later tile needs: meanwhile, `fetched` bytes for each row of the panels are fetched from there. A
    /// single row fetches its own panels instead.
    pub(crate) next: *const u8,
    /// The bytes to fetch for each row of the panels: [`FETCHED`] or twice that.
    pub(crate) fetched: usize,
}

/// The distance, in bytes, at which a single row fetches its panels ahead: it reads them at the speed of memory.
const AHEAD: usize = 2048;

/// The bytes that a tile fetches while it reads one row of its panels: a cache line for every other row. Where few groups share
/// a strip, each fetches twice that.
pub(crate) const FETCHED: usize = 32;

/// Computes a tile of M rows and N vectors.
///
/// # Safety
/// `tile` meets the conditions of [`Tile`] for M rows and N vectors. For pairs, the code is compiled for what
/// [`Halves::dot_pairs`] needs.
#[inline(always)]
pub(super) unsafe fn compute<S: Halves, E: Factor, const M: usize, const N: usize>(simd: S, tile: Tile<E>) {
    let Tile { rows, panels, panel, depth, out, stride, add, next, fetched } = tile;
    let per_panel = PANEL / S::F32_LANES;
    let mut sums = [[simd.splat_f32s(0.0); N]; M];
    let mut first = 0;
    while first < depth {
        let steps = STEP.min(depth - first);
        let mut k = 0;
        while k < steps {
            // Two rows at a time, so that the compiler knows which is even.
            for k in [k, k + 1] {
                let mut weights = [simd.splat_f32s(0.0); N];
                for (n, weights) in weights.iter_mut().enumerate() {
                    // SAFETY: the caller guarantees the panels.
                    *weights = unsafe {
                        let panel = panels.add(n / per_panel * panel + first * PANEL);
                        E::vector(simd, panel, k, n % per_panel)
                    };
                }
                for (m, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: the caller guarantees the group of rows.
                    let x = simd.splat_f32s(unsafe { *rows.add(first * M + m * STEP + k) });
                    for (sum, weights) in sums.iter_mut().zip(weights) {
                        // SAFETY: the caller is compiled for pairs, if these are pairs.
                        *sum = unsafe { E::mul_add(simd, x, weights, *sum) };
                    }
                }
            }
            if M == 1 {
                let pair = 2 * PANEL * size_of::<E>();
                for n in 0..N / per_panel {
                    let rows = panels.wrapping_add(n * panel + (first + k) * PANEL).cast::<u8>();
                    (0..pair).step_by(LINE).for_each(|i| fetch(rows.wrapping_add(AHEAD + i)));
                }
            } else {
                let next = next.wrapping_add((first + k) * fetched);
                fetch(next);
                if fetched > FETCHED {
                    fetch(next.wrapping_add(LINE));
                }
            }
            k += 2;
        }
        first += STEP;
    }
    for (m, sums) in sums.into_iter().enumerate() {
        for (n, sum) in sums.into_iter().enumerate() {
            // SAFETY: the caller guarantees M rows of N vectors.
            unsafe {
                let out = out.add(m * stride + n * S::F32_LANES).cast::<S::f32s>();
                let sum = if add { simd.add_f32s(out.read_unaligned(), sum) } else { sum };
                out.write_unaligned(sum);
            }
        }
    }
}

/// The panels that come next, which are fetched piece by piece while the tiles of a strip are computed.
pub(super) struct Prefetch(Range<*const u8>);

impl Prefetch {
    /// The first `count` of `later`, or all if there are fewer.
    pub(super) fn new<E>(later: &[E], count: usize) -> Self {
        let Range { start, end } = later[..count.min(later.len())].as_ptr_range();
        Self(start.cast()..end.cast())
    }

    /// The start of the next piece of `bytes` bytes, if there is one.
    #[inline(always)]
    pub(super) fn next(&mut self, bytes: usize) -> Option<*const u8> {
        let at = self.0.start;
        self.0.start = at.wrapping_add(bytes);
        (at < self.0.end).then_some(at)
    }
}
