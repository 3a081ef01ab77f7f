//! Products of activations with quantized weights.
//!
//! Both are codes with scales, see [`super::activations`] and [`super::panels`]. The sum over a block of 32 inputs, or half of
//! one, is exact in integers and in f32; the blocks' sums, times their scales, are added in order, each with one rounding. So
//! the result has the same bits on every instruction set and for any number of rows and threads. WebAssembly, which has no fused
//! multiply-add, rounds twice.

use super::activations::Activations;
use super::format::BlockFormat;
use super::panels::{BlockPanels, GROUP, PanelFormat, with_code};
use super::portable::{ActivationCode, VectorCode, Vectors};
use super::tile::{PanelParts, Strip, few, tile, wide_scales_len, widen, widen_scales};
use super::vectors::dispatch;
use crate::cpu::isa::Isa;
use crate::cpu::memory::{LINE, fetch, room};
use crate::cpu::spinning_threads;
use crate::linear::product::finish::{Destination, Finish};
use crate::linear::product::numbers::PANEL;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

/// The most rows that read the weights as they are; more of them share codes that are ready for products.
const FEW: usize = 4;

/// The bytes of the codes of a block of rows: half of a small second-level cache.
const ROWS: usize = 256 << 10;

/// The number of tasks for each thread, so that none waits long for another.
const TASKS_PER_THREAD: usize = 8;

/// The most panels of a task of a few rows, whose sums fit the first-level cache.
const MOST_PANELS: usize = 64;

/// `finish(x·W)` for the columns `columns` of W, which start at a whole panel: `x` (rows, depth) -> (rows,
/// `columns.len()`).
pub(crate) fn product(x: &[f32], w: &BlockPanels, columns: Range<usize>, finish: Finish<f32>) -> Vec<f32> {
    let count = x.len() / w.depth() * columns.len();
    let mut out: Vec<f32> = Vec::with_capacity(count);
    // SAFETY: there is room for the result, and the product writes all of it.
    unsafe {
        product_on(Isa::current(), x, w, columns, finish, out.as_mut_ptr());
        out.set_len(count);
    }
    out
}

/// [`product`] on an instruction set, written to `out`.
///
/// # Safety
/// `out` has room for the result.
pub(super) unsafe fn product_on(
    isa: Isa,
    x: &[f32],
    w: &BlockPanels,
    columns: Range<usize>,
    finish: Finish<f32>,
    out: *mut f32,
) {
    assert!(columns.start.is_multiple_of(PANEL) && columns.end <= w.width());
    let rows = x.len() / w.depth();
    assert_eq!(rows * w.depth(), x.len());
    if rows == 0 || columns.is_empty() {
        return;
    }
    let result = Destination::new(finish, rows, columns.len(), out);
    with_code!(w.format(), C => {
        let shared = Shared::<C> { isa, w, rows, columns: &columns, result: &result, code: PhantomData };
        dispatch(isa, ShareOut { shared, x });
    });
}

/// The state that all tasks of a product share, apart from the activations.
#[derive(Clone, Copy)]
struct Shared<'a, C> {
    isa: Isa,
    w: &'a BlockPanels,
    rows: usize,
    columns: &'a Range<usize>,
    result: &'a Destination<'a, f32>,
    code: PhantomData<C>,
}

impl<C: PanelFormat> Shared<'_, C> {
    /// Panel `i` of the result.
    fn panel(&self, i: usize) -> PanelParts<'_> {
        let panel = self.w.panel(self.columns.start / PANEL + i);
        let (codes, scales) = panel.split_at(self.w.blocks() * C::CODES);
        PanelParts { codes, scales }
    }

    /// The codes of panel `i` of the result, and what follows them in memory.
    fn codes_from(&self, i: usize) -> &[u8] {
        self.w.panels_from(self.columns.start / PANEL + i)
    }

    /// Writes the part of the result whose sums these are, in rows of `stride` numbers.
    ///
    /// # Safety
    /// No other task writes the same part.
    unsafe fn finish(&self, rows: Range<usize>, panels: Range<usize>, sums: &[f32], stride: usize) {
        let columns = panels.start * PANEL..(panels.end * PANEL).min(self.columns.len());
        // SAFETY: the caller of `product` guarantees the room, and this one's caller the rest.
        unsafe { self.result.part(rows, columns) }.write_on(self.isa, sums, stride);
    }
}

/// All of a product, in tasks for all threads.
struct ShareOut<'a, C> {
    shared: Shared<'a, C>,
    x: &'a [f32],
}

impl<C: PanelFormat> VectorCode for ShareOut<'_, C> {
    type Output = ();

    unsafe fn run<V: Vectors>(self) {
        let Self { shared, x } = self;
        let Shared { isa, w, rows, columns, .. } = shared;
        let panels = columns.len().div_ceil(PANEL);
        let threads = rayon::current_num_threads();
        if rows <= FEW {
            let x = Activations::<i8>::new(isa, x);
            let chunk = panels.div_ceil(threads * TASKS_PER_THREAD).min(MOST_PANELS);
            spinning_threads::for_each(panels.div_ceil(chunk), |i| {
                let panels = i * chunk..((i + 1) * chunk).min(panels);
                // SAFETY: this runs on the instruction set, so the processor has it.
                in_scratch(|scratch| unsafe { V::call(Few { shared, x: &x, panels, scratch }) });
            });
            return;
        }
        let x = Activations::<V::ActivationCode>::new(isa, x);
        let most = (ROWS / (w.depth() * size_of::<V::ActivationCode>()) / V::ROWS).max(4) * V::ROWS;
        let height = rows.div_ceil(rows.div_ceil(most)).next_multiple_of(V::ROWS);
        let blocks = rows.div_ceil(height);
        let strips = panels.div_ceil(V::PANELS);
        let parts = (threads * TASKS_PER_THREAD).div_ceil(blocks).clamp(1, strips);
        spinning_threads::for_each(blocks * parts, |i| {
            let (block, part) = (i / parts, i % parts);
            let rows = block * height..((block + 1) * height).min(rows);
            let strips = strips * part / parts..strips * (part + 1) / parts;
            let panels = strips.start * V::PANELS..(strips.end * V::PANELS).min(panels);
            // SAFETY: as above.
            in_scratch(|scratch| unsafe { V::call(Many { shared, x: &x, rows, panels, scratch }) });
        });
    }
}

thread_local! {
    static SCRATCH: RefCell<BlockScratch> = RefCell::default();
}

/// A thread's working memory, which stays for the next product.
#[derive(Default)]
struct BlockScratch {
    sums: Vec<f32>,
    codes: Vec<u8>,
    scales: Vec<f32>,
}

/// Runs `work` with this thread's working memory, outside of code for an instruction set: a closure within it would be
/// compiled for none.
fn in_scratch(work: impl FnOnce(&mut BlockScratch)) {
    SCRATCH.with_borrow_mut(work);
}

/// Some panels, for all of a few rows.
struct Few<'a, C> {
    shared: Shared<'a, C>,
    x: &'a Activations<i8>,
    panels: Range<usize>,
    scratch: &'a mut BlockScratch,
}

impl<C: PanelFormat> VectorCode for Few<'_, C> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vectors>(self) {
        let Self { shared, x, panels, scratch } = self;
        let rows = shared.rows;
        assert!(x.codes.len() >= rows * shared.w.depth() && rows <= FEW);
        let width = panels.len() * PANEL;
        let sums = room(&mut scratch.sums, rows * width);
        for (i, panel) in panels.clone().enumerate() {
            let panel = shared.panel(panel);
            let blocks = shared.w.blocks();
            let out = &mut sums[i * PANEL..];
            // SAFETY: as the caller of `run` guarantees; the rows and the sums are as long as needed.
            unsafe {
                match rows {
                    1 => few::<V, C, 1>(x, panel, blocks, out, width),
                    2 => few::<V, C, 2>(x, panel, blocks, out, width),
                    3 => few::<V, C, 3>(x, panel, blocks, out, width),
                    _ => few::<V, C, 4>(x, panel, blocks, out, width),
                }
            }
        }
        // SAFETY: each task has panels of its own.
        unsafe { shared.finish(0..rows, panels, sums, width) };
    }
}

/// Some panels, for some of many rows.
struct Many<'a, C, X> {
    shared: Shared<'a, C>,
    x: &'a Activations<X>,
    rows: Range<usize>,
    panels: Range<usize>,
    scratch: &'a mut BlockScratch,
}

impl<C: PanelFormat, X: ActivationCode> VectorCode for Many<'_, C, X> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vectors>(self) {
        let Self { shared, x, rows, panels, scratch } = self;
        let depth = shared.w.depth();
        let blocks = shared.w.blocks();
        assert!(size_of::<X>() == size_of::<V::ActivationCode>() && x.codes.len() >= rows.end * depth);
        let step = 4 / size_of::<X>();
        let wide_len = depth / step * GROUP;
        let width = V::PANELS * PANEL;
        let sums = room(&mut scratch.sums, rows.len() * width);
        // Bytes that need no widening are read where they lie.
        let stay = V::BYTES_STAY && !C::NIBBLES;
        let wide = room(&mut scratch.codes, if stay { 0 } else { V::PANELS * wide_len });
        let scales_len = wide_scales_len::<C>(blocks);
        let scales = room(&mut scratch.scales, V::PANELS * scales_len);
        for first in panels.clone().step_by(V::PANELS) {
            let strip = first..(first + V::PANELS).min(panels.end);
            if !V::SUMS_STAY {
                sums.fill(0.0);
            }
            // Panels beyond the last give sums that nobody reads.
            for (i, panel) in strip.clone().enumerate() {
                let panel = shared.panel(panel);
                // SAFETY: as the caller of `run` guarantees.
                unsafe {
                    if !stay {
                        widen::<V, C>(panel.codes, &mut wide[i * wide_len..][..wide_len]);
                    }
                    widen_scales::<V, C>(panel.scales, blocks, &mut scales[i * scales_len..][..scales_len]);
                }
            }
            // The last panel is also read in place of one that is not there.
            let (codes, distance) = match (stay, strip.len() == V::PANELS) {
                (false, _) => (&*wide, wide_len),
                (true, whole) => (shared.codes_from(first), if whole { shared.w.bytes() } else { 0 }),
            };
            let next =
                if first + V::PANELS < panels.end { shared.codes_from(first + V::PANELS) } else { &[] };
            let next = &next[..next.len().min(V::PANELS * shared.w.bytes())];
            // Tiles of nearly the same height: one of a row or two takes as long as one of four.
            let tiles = rows.len().div_ceil(V::ROWS);
            let at = |tile: usize| rows.len() * tile / tiles;
            for tile_rows in (0..tiles).map(|tile| at(tile)..at(tile + 1)) {
                if stay {
                    fetch_part(next, tile_rows.start..tile_rows.end, rows.len());
                }
                let strip = Strip { codes, distance, scales, blocks };
                let sums = &mut sums[tile_rows.start * width..];
                // SAFETY: as above.
                unsafe { tile::<V, C, X>(x, rows.start + tile_rows.start, tile_rows.len(), strip, sums) };
            }
            // SAFETY: each task has rows and panels of its own.
            unsafe { shared.finish(rows.clone(), strip, sums, width) };
        }
    }
}

/// Starts to read the part `of` of `all` equal parts of some codes, which the next tiles need.
#[inline(always)]
fn fetch_part(codes: &[u8], of: Range<usize>, all: usize) {
    let part = &codes[codes.len() * of.start / all..codes.len() * of.end / all];
    part.iter().step_by(LINE).for_each(|byte| fetch(byte));
}
