//! The sums of a strip of panels; [`PackedRows`] and [`PackedPairs`] compute them in vectors.

use super::finish::ResultPart;
use super::lanes::{Kernel, Lanes, TileFunction, dispatch};
use super::numbers::{Factor, PANEL, PanelNumber};
use super::panels::Panels;
use super::rows::{self, LeftFactor, Pairs};
use super::tile::{FETCHED, Prefetch, Tile};
use crate::cpu::memory::room;
use crate::cpu::spinning_threads;
use half::bf16;
use pulp::Arch;
use std::any::Any;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;

/// The number of rows of a panel, of numbers or of pairs, that a tile sums over before it adds to earlier sums: long chains
/// of additions lose digits, and 256 rows of a panel fit the first-level cache of every processor.
pub(super) const DEPTH: usize = 256;

/// A thread's working memory, which stays for the next product.
#[derive(Default)]
pub(super) struct Scratch {
    /// The sums of a strip.
    pub(super) sums: Vec<f32>,
    /// A strip of halves in f32.
    wide: Vec<f32>,
}

/// Two factors, ready for the sums of their products.
pub(super) trait Sums: Sync {
    /// The number of rows that share a tile.
    fn group(&self) -> usize;

    /// The bytes of a row of the left factor.
    fn row_bytes(&self) -> usize;

    /// The number of panels to take at a time with a block of `rows` rows: a divisor of [`STRIP`](super::numbers::STRIP).
    fn panels<S: Lanes>(&self, rows: usize) -> usize;

    /// Writes `Σ_k x[row][k]·w[k][c]` for the columns c of some panels to `out`. `rows` starts at a whole group; `scratch` is
    /// working memory.
    fn sum<S: Lanes, O: PanelNumber>(
        &self,
        simd: S,
        rows: Range<usize>,
        panels: Range<usize>,
        scratch: &mut Scratch,
        out: ResultPart<O>,
    );
}

/// The left factor packed, and the right one.
pub(super) struct PackedRows<'a, E> {
    x: Packed,
    w: &'a Panels<E>,
}

/// Two factors in bf16, whose numbers are multiplied in pairs.
pub(super) struct PackedPairs<'a> {
    x: Packed,
    w: &'a Panels<bf16>,
}

/// Packed rows.
struct Packed {
    data: Vec<f32>,
    /// The most rows of a tile.
    group: usize,
    /// The length of a row, in numbers or in pairs of them.
    depth: usize,
}

thread_local! {
    /// Memory for packed rows, from the last product of the thread.
    static MEMORY: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// The most packed numbers that are kept for the next product: new memory costs a system call and a fault for each page.
const KEPT: usize = 4 << 20;

impl Packed {
    /// Packs the rows of `x` on all threads.
    fn new<X: LeftFactor>(arch: Arch, x: &X, rows: usize, depth: usize) -> Self {
        let group = dispatch(arch, MostRows);
        let per_row = rows::packed_len(depth);
        // Another product of this thread may begin while this one waits for its tasks: it finds no memory, and makes its own.
        let mut memory = MEMORY.take();
        if memory.capacity() < rows * per_row {
            // Growing would copy what the last product left.
            drop(memory);
            memory = Vec::with_capacity(rows * per_row);
        }
        let out = PackedMemory(memory.as_mut_ptr());
        spinning_threads::for_each(rows.div_ceil(group), |i| {
            let out = &out;
            let rows = i * group..((i + 1) * group).min(rows);
            let len = rows.len() * per_row;
            // SAFETY: there is room for all rows, which may hold nothing yet, and each task writes its own.
            let out = unsafe { std::slice::from_raw_parts_mut(out.0.add(rows.start * per_row).cast(), len) };
            dispatch(arch, Pack { x, rows, depth, out });
        });
        // SAFETY: `pack` has written all numbers of all rows.
        unsafe { memory.set_len(rows * per_row) };
        Self { data: memory, group, depth }
    }

    /// The bytes of a row.
    fn row_bytes(&self) -> usize {
        rows::packed_len(self.depth) * size_of::<f32>()
    }

    /// The rows from number `row` on, the first of a group.
    fn starting_at(&self, row: usize) -> &[f32] {
        &self.data[row * rows::packed_len(self.depth)..]
    }
}

impl Drop for Packed {
    fn drop(&mut self) {
        if self.data.capacity() <= KEPT {
            self.data.clear();
            MEMORY.set(std::mem::take(&mut self.data));
        }
    }
}

/// The memory for packed rows. Each task writes its own part.
struct PackedMemory(*mut f32);

// SAFETY: the tasks' parts do not overlap.
unsafe impl Sync for PackedMemory {}

/// The most rows of a tile.
struct MostRows;

impl Kernel for MostRows {
    type Output = usize;

    fn with<S: Lanes>(self, _: S) -> usize {
        S::ROWS
    }
}

struct Pack<'a, X> {
    x: &'a X,
    rows: Range<usize>,
    depth: usize,
    out: &'a mut [MaybeUninit<f32>],
}

impl<X: LeftFactor> Kernel for Pack<'_, X> {
    type Output = ();

    #[inline(always)]
    fn with<S: Lanes>(self, _: S) {
        rows::pack(self.x, self.rows, self.depth, S::ROWS, self.out);
    }
}

impl<'a, E: PanelNumber> PackedRows<'a, E> {
    pub(super) fn new<X: LeftFactor>(arch: Arch, x: &X, rows: usize, w: &'a Panels<E>) -> Self {
        Self { x: Packed::new(arch, x, rows, w.depth()), w }
    }
}

impl<E: PanelNumber> Sums for PackedRows<'_, E> {
    fn group(&self) -> usize {
        self.x.group
    }

    fn row_bytes(&self) -> usize {
        self.x.row_bytes()
    }

    fn panels<S: Lanes>(&self, rows: usize) -> usize {
        S::panels(rows.min(S::ROWS))
    }

    #[inline(always)]
    fn sum<S: Lanes, O: PanelNumber>(
        &self,
        simd: S,
        rows: Range<usize>,
        panels: Range<usize>,
        scratch: &mut Scratch,
        mut out: ResultPart<O>,
    ) {
        let from = self.w.starting_at(panels.start);
        let depth = self.w.rows();
        let x = self.x.starting_at(rows.start);
        let count = panels.len();
        let sums = room(&mut scratch.sums, rows.len() * count * PANEL);
        if depth == 0 {
            sums.fill(0.0);
            return out.write(simd, 0, sums, count * PANEL);
        }
        let (panels, later) = from.split_at(count * depth * PANEL);
        let many = rows.len() > S::ROWS;
        // A few rows leave no time to fetch what comes after their panels.
        let next = Prefetch::new(later, if many { panels.len() } else { 0 });
        let strip = Strip { panels, count, depth, tile: S::tile };
        // Many rows share one conversion of the halves.
        if many && E::as_f32s(&[]).is_none() {
            let wide = room(&mut scratch.wide, panels.len());
            widen(simd, strip, wide);
            let strip = Strip { panels: &*wide, count, depth, tile: S::tile };
            sum(simd, x, rows.len(), strip, next, sums, out);
        } else {
            sum(simd, x, rows.len(), strip, next, sums, out);
        }
    }
}

impl<'a> PackedPairs<'a> {
    /// The factors, if they are bf16 and of a depth that suits.
    ///
    /// # Safety
    /// If `arch` is AVX-512, the processor has AVX512-BF16; if it is NEON, `bf16`.
    pub(super) unsafe fn new<E: PanelNumber>(
        arch: Arch,
        x: &impl LeftFactor,
        rows: usize,
        w: &'a Panels<E>,
    ) -> Option<Self> {
        let data = x.as_bf16s()?;
        let w = (w as &dyn Any).downcast_ref::<Panels<bf16>>()?;
        // A tile takes two pairs at a time.
        let depth = w.depth() / 2;
        let suits = depth > 0 && w.depth().is_multiple_of(4);
        suits.then(|| Self { x: Packed::new(arch, &Pairs { data, depth }, rows, depth), w })
    }
}

impl Sums for PackedPairs<'_> {
    fn group(&self) -> usize {
        self.x.group
    }

    fn row_bytes(&self) -> usize {
        self.x.row_bytes()
    }

    fn panels<S: Lanes>(&self, rows: usize) -> usize {
        S::panels(rows.min(S::ROWS))
    }

    #[inline(always)]
    fn sum<S: Lanes, O: PanelNumber>(
        &self,
        simd: S,
        rows: Range<usize>,
        panels: Range<usize>,
        scratch: &mut Scratch,
        out: ResultPart<O>,
    ) {
        let count = panels.len();
        let depth = self.x.depth;
        let sums = room(&mut scratch.sums, rows.len() * count * PANEL);
        let (panels, later) = self.w.pairs(panels.start).split_at(count * depth * PANEL);
        let next = Prefetch::new(later, if rows.len() > S::ROWS { panels.len() } else { 0 });
        let strip = Strip { panels, count, depth, tile: S::pair_tile };
        sum(simd, self.x.starting_at(rows.start), rows.len(), strip, next, sums, out);
    }
}

/// A strip of panels, one after the other.
#[derive(Clone, Copy)]
struct Strip<'a, S, E> {
    panels: &'a [E],
    count: usize,
    /// The rows of each panel: even.
    depth: usize,
    /// The function for a number of rows and of panels.
    tile: fn(usize, usize) -> TileFunction<S, E>,
}

/// `out = x·W` for packed rows and one strip. Meanwhile, `next` is read ahead.
#[inline(always)]
fn sum<S: Lanes, E: Factor, O: PanelNumber>(
    simd: S,
    x: &[f32],
    rows: usize,
    Strip { panels, count, depth, tile }: Strip<S, E>,
    mut next: Prefetch,
    sums: &mut [f32],
    mut out: ResultPart<O>,
) {
    let packed = rows::packed_len(depth);
    let stride = count * PANEL;
    let panel = depth * PANEL;
    assert!(x.len() >= rows * packed && sums.len() >= rows * stride && panels.len() >= count * depth * PANEL);
    // A row of two panels of f32 has four times FETCHED bytes: four groups of rows fetch it together. Two or three have to fetch
    // twice as much each.
    let fetched = if count > 1 && (2..4).contains(&rows.div_ceil(S::ROWS)) { 2 * FETCHED } else { FETCHED };
    let whole = tile(S::ROWS.min(rows), count);
    let last = tile((rows - 1) % S::ROWS + 1, count);
    for k in (0..depth).step_by(DEPTH) {
        let panels = panels[k * PANEL..].as_ptr();
        let steps = DEPTH.min(depth - k);
        for first in (0..rows).step_by(S::ROWS) {
            let count = S::ROWS.min(rows - first);
            let sums = &mut sums[first * stride..(first + count) * stride];
            let next = next.next(steps * fetched).unwrap_or(panels.cast());
            // SAFETY: the lengths above cover the group of `count` rows, each panel's rows from k on, and the sums. Pairs exist
            // only where the processor multiplies them, see `PackedPairs::new`.
            unsafe {
                let rows = x.as_ptr().add(first * packed + k * count);
                let out = sums.as_mut_ptr();
                let tile = Tile { rows, panels, panel, depth: steps, out, stride, add: k > 0, next, fetched };
                let function = if count == S::ROWS { whole } else { last };
                function(simd, tile);
            }
            if k + steps == depth {
                out.write(simd, first, sums, stride);
            }
        }
    }
}

/// Panels in f32.
#[inline(always)]
fn widen<S: Lanes, E: PanelNumber>(
    simd: S,
    Strip { panels, count, depth, .. }: Strip<S, E>,
    out: &mut [f32],
) {
    let per_panel = depth * PANEL;
    assert!(panels.len() >= count * per_panel && out.len() >= count * per_panel);
    for (from, out) in panels.chunks_exact(per_panel).zip(out.chunks_exact_mut(per_panel)).take(count) {
        for (k, out) in out.as_chunks_mut::<PANEL>().0.iter_mut().enumerate() {
            for (i, out) in S::as_mut_simd_f32s(out).0.iter_mut().enumerate() {
                // SAFETY: the panel has row k.
                *out = unsafe { E::vector(simd, from.as_ptr(), k, i) };
            }
        }
    }
}
