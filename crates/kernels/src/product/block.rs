//! A matrix product in blocks of rows, shared out over threads.

use super::finish::Finish;
use super::lanes::{Kernel, Lanes, dispatch};
use super::panels::{PANEL, Panels, STRIP, Stored};
use super::rows::{self, Source};
use super::tile::Tile;
use crate::element::Element;
use crate::team;
use pulp::Arch;
use std::cell::RefCell;
use std::ops::Range;

/// A tile sums over so many rows of a panel, then adds to earlier sums: long chains of additions lose digits, and 256 rows
/// of a panel fit the first-level cache of every processor.
const DEPTH: usize = 256;

/// The bytes of a block of rows in f32: half of a small second-level cache.
const BLOCK: usize = 256 << 10;

/// A block has at least so many groups of rows, even if they do not fit: each reads the whole right factor again.
const GROUPS: usize = 4;

/// The number of tasks into which the last blocks are divided for each thread, so that none waits long for another.
const TASKS_PER_THREAD: usize = 4;

/// `out = finish(x·W)`, or `+=` if `finish` says so: `x` (rows, depth), `w` (depth, N) or its columns `columns`, a multiple
/// of [`PANEL`]·[`STRIP`] to start from, and `out` (rows, `columns.len()`). `arch` is the instruction set.
///
/// # Safety
/// `out` has room for the result, and holds numbers if `finish.onto` is set.
pub(crate) unsafe fn product<X: Source, E: Stored, O: Element>(
    arch: Arch,
    x: &X,
    rows: usize,
    w: &Panels<E>,
    columns: Range<usize>,
    finish: Finish<O>,
    out: *mut O,
) {
    if rows == 0 || columns.is_empty() {
        return;
    }
    assert!(columns.start.is_multiple_of(PANEL * STRIP) && columns.end <= w.width());
    let count = columns.len();
    assert!(finish.bias.is_none_or(|bias| bias.len() == count));
    assert!(finish.residual.is_none_or(|residual| residual.len() == rows * count));
    let threads = rayon::current_num_threads();
    let tasks =
        tasks(rows, columns.len().div_ceil(PANEL * STRIP), dispatch(arch, Height(w.depth())), threads);
    let out = Shared(out);
    team::for_each(tasks.len(), |i| {
        let (out, (rows, strips)) = (&out, tasks[i].clone());
        SCRATCH.with_borrow_mut(|scratch| {
            dispatch(
                arch,
                Block { x, w, first: columns.start, count, rows, strips, finish, out: out.0, scratch },
            );
        });
    });
}

/// Which rows and strips each task computes. Blocks of rows are copied once for all their strips, but the last blocks are
/// divided, so that all threads end at about the same time.
fn tasks(rows: usize, strips: usize, height: usize, threads: usize) -> Vec<(Range<usize>, Range<usize>)> {
    let blocks = rows.div_ceil(height);
    let divided = if threads == 1 { 0 } else { blocks.min(2 * threads) };
    let parts = (TASKS_PER_THREAD * threads).div_ceil(divided.max(1)).min(strips);
    let mut tasks = vec![];
    for block in 0..blocks {
        let rows = block * height..((block + 1) * height).min(rows);
        let parts = if block + divided < blocks { 1 } else { parts.max(1) };
        tasks.extend((0..parts).map(|i| (rows.clone(), strips * i / parts..strips * (i + 1) / parts)));
    }
    tasks
}

/// The number of rows in a block, for rows of this depth.
struct Height(usize);

impl Kernel for Height {
    type Output = usize;

    fn with<S: Lanes>(self, _: S) -> usize {
        let fits = BLOCK / (rows::packed_len(self.0).max(1) * size_of::<f32>());
        (fits / S::ROWS).max(GROUPS) * S::ROWS
    }
}

/// A pointer to the result, of which each task writes a part of its own.
struct Shared<E>(*mut E);

// SAFETY: the tasks' parts do not overlap.
unsafe impl<E: Send> Sync for Shared<E> {}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// `len` numbers of a thread's working memory, which keep what an earlier block left in them.
fn room(memory: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if memory.len() < len {
        memory.resize(len, 0.0);
    }
    &mut memory[..len]
}

/// A thread's working memory: a block of rows, the sums of a strip, and a strip in f32. It stays for the next product.
#[derive(Default)]
struct Scratch {
    rows: Vec<f32>,
    sums: Vec<f32>,
    wide: Vec<f32>,
}

/// Some rows of the product, for some strips of [`STRIP`] panels.
struct Block<'a, X, E, O> {
    x: &'a X,
    w: &'a Panels<E>,
    /// The first column of the result.
    first: usize,
    /// The number of columns of the result.
    count: usize,
    rows: Range<usize>,
    strips: Range<usize>,
    finish: Finish<'a, O>,
    out: *mut O,
    scratch: &'a mut Scratch,
}

impl<X: Source, E: Stored, O: Element> Kernel for Block<'_, X, E, O> {
    type Output = ();

    #[inline(always)]
    fn with<S: Lanes>(self, simd: S) {
        let Self { x, w, first, count, rows, strips, finish, out, scratch } = self;
        let depth = w.depth();
        let x_rows = room(&mut scratch.rows, rows.len() * rows::packed_len(depth));
        rows::pack(x, rows.clone(), depth, S::ROWS, x_rows);
        let panels = S::panels(rows.len().min(S::ROWS));
        let (strip, width) = (Strip { panels, rows: w.rows() }, panels * PANEL);
        let sums = room(&mut scratch.sums, rows.len() * width);
        let wide = rows.len() > S::ROWS && E::as_f32s(&[]).is_none();
        let wide_panels = room(&mut scratch.wide, if wide { panels * PANEL * w.rows() } else { 0 });
        for start in (strips.start * STRIP..strips.end * STRIP).step_by(panels) {
            let columns = start * PANEL..((start + panels) * PANEL).min(count);
            if columns.is_empty() {
                break;
            }
            let from = w.starting_at(first / PANEL + start);
            if depth == 0 {
                sums.fill(0.0);
            }
            if wide {
                widen(simd, from, strip, wide_panels);
                sum::<S, f32>(simd, x_rows, rows.len(), wide_panels, strip, sums);
            } else {
                sum::<S, E>(simd, x_rows, rows.len(), from, strip, sums);
            }
            for (row, sums) in rows.clone().zip(sums.chunks_exact_mut(width)) {
                // SAFETY: the caller of `product` guarantees the room; no other task writes these columns of this row.
                unsafe {
                    let out = out.add(row * count + columns.start);
                    finish.run(simd, sums, row, (columns.clone(), count), out);
                }
            }
        }
    }
}

/// `sums = x·W` for packed rows and one strip.
#[inline(always)]
fn sum<S: Lanes, E: Stored>(
    simd: S,
    x: &[f32],
    rows: usize,
    strip: &[E],
    Strip { panels, rows: depth }: Strip,
    sums: &mut [f32],
) {
    let packed = rows::packed_len(depth);
    let stride = panels * PANEL;
    assert!(x.len() >= rows * packed && sums.len() >= rows * stride && strip.len() >= panels * depth * PANEL);
    let (whole, last) =
        (S::tile::<E>(S::ROWS.min(rows), panels), S::tile::<E>((rows - 1) % S::ROWS + 1, panels));
    for k in (0..depth).step_by(DEPTH) {
        for first in (0..rows).step_by(S::ROWS) {
            let count = S::ROWS.min(rows - first);
            // SAFETY: the lengths above cover the group of `count` rows, each panel's rows from k on, and the sums.
            unsafe {
                let tile = Tile {
                    rows: x.as_ptr().add(first * packed + k * count),
                    panels: strip.as_ptr().add(k * PANEL),
                    panel: depth * PANEL,
                    depth: DEPTH.min(depth - k),
                    out: sums.as_mut_ptr().add(first * stride),
                    stride,
                    add: k > 0,
                };
                let function = if count == S::ROWS { whole } else { last };
                function(simd, tile);
            }
        }
    }
}

/// The size of a strip.
#[derive(Clone, Copy)]
struct Strip {
    panels: usize,
    /// Even.
    rows: usize,
}

/// Panels in f32.
#[inline(always)]
fn widen<S: Lanes, E: Stored>(simd: S, strip: &[E], Strip { panels, rows }: Strip, out: &mut [f32]) {
    let per_panel = rows * PANEL;
    assert!(strip.len() >= panels * per_panel && out.len() >= panels * per_panel);
    for (from, out) in strip.chunks_exact(per_panel).zip(out.chunks_exact_mut(per_panel)).take(panels) {
        for (k, out) in out.as_chunks_mut::<PANEL>().0.iter_mut().enumerate() {
            for (i, out) in S::as_mut_simd_f32s(out).0.iter_mut().enumerate() {
                // SAFETY: the panel has row k.
                *out = unsafe { E::vector(simd, from.as_ptr(), k, i) };
            }
        }
    }
}
