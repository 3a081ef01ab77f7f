//! A matrix product in blocks of rows, shared out over threads.

use super::finish::Finish;
use super::lanes::{Kernel, Lanes, dispatch};
use super::panels::{PANEL, Panels, STRIP, Stored};
use super::rows::Source;
use super::sums::{self, Sums};
use crate::isa::Isa;
use crate::team;
use pulp::Arch;
use std::cell::RefCell;
use std::ops::Range;

/// The bytes of a block of rows, as the tiles read them: half of a small second-level cache.
const BLOCK: usize = 256 << 10;

/// A block has at least so many groups of rows, even if they do not fit: each reads the whole right factor again.
const GROUPS: usize = 4;

/// The number of tasks into which the last blocks are divided for each thread, so that none waits long for another.
const TASKS_PER_THREAD: usize = 4;

/// `out = finish(x·W)`, or `+=` if `finish` says so: `x` (rows, depth), `w` (depth, N) or its columns `columns`, a multiple
/// of [`PANEL`]·[`STRIP`] to start from, and `out` (rows, `columns.len()`). Where `isa` is not available, the portable code
/// runs.
///
/// # Safety
/// `out` has room for the result, and holds numbers if `finish.onto` is set.
pub(crate) unsafe fn product<X: Source, E: Stored, O: Stored>(
    isa: Isa,
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
    // With `is_none_or`, the compiler may compare the length of a bias that is not there, which valgrind reports.
    assert_eq!(finish.bias.map_or(count, <[f32]>::len), count);
    assert_eq!(finish.residual.map_or(rows * count, <[O]>::len), rows * count);
    let arch = isa.arch().unwrap_or(Arch::Scalar);
    let result = Output { rows, columns, finish, out };
    #[cfg(amx)]
    if let Some(sums) = super::amx::Tiles::of(isa, x, rows, w) {
        // SAFETY: passed on.
        return unsafe { result.compute(arch, &sums) };
    }
    sums::with_packed_rows(arch, x, rows, w, |sums| {
        // SAFETY: passed on.
        unsafe { result.compute(arch, sums) };
    });
}

/// What a product writes.
struct Output<'a, O> {
    rows: usize,
    columns: Range<usize>,
    finish: Finish<'a, O>,
    out: *mut O,
}

// SAFETY: tasks write through `out` only, and their parts do not overlap.
unsafe impl<O: Send + Sync> Sync for Output<'_, O> {}

impl<O: Stored> Output<'_, O> {
    /// # Safety
    /// As for [`product`].
    unsafe fn compute(&self, arch: Arch, sums: &impl Sums) {
        let strips = self.columns.len().div_ceil(PANEL * STRIP);
        let group = sums.group();
        let most = (BLOCK / sums.row_bytes().max(1) / group).max(GROUPS) * group;
        // Blocks of about the same height.
        let height = self.rows.div_ceil(self.rows.div_ceil(most)).next_multiple_of(group);
        let tasks = tasks(self.rows, strips, height, rayon::current_num_threads());
        team::for_each(tasks.len(), |i| {
            let (rows, strips) = tasks[i].clone();
            SCRATCH.with_borrow_mut(|scratch| {
                dispatch(arch, Block { sums, rows, strips, result: self, scratch });
            });
        });
    }
}

/// Which rows and strips each task computes. Blocks of rows stay in a cache for all their strips, but the last blocks are
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

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// A thread's working memory, which stays for the next product: the sums of a strip, and what they need besides.
#[derive(Default)]
struct Scratch {
    sums: Vec<f32>,
    other: Vec<f32>,
}

/// Some rows of the product, for some strips of [`STRIP`] panels.
struct Block<'a, T, O> {
    sums: &'a T,
    rows: Range<usize>,
    strips: Range<usize>,
    result: &'a Output<'a, O>,
    scratch: &'a mut Scratch,
}

impl<T: Sums, O: Stored> Kernel for Block<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn with<S: Lanes>(self, simd: S) {
        let Self { sums, rows, strips, result: Output { columns, finish, out, .. }, scratch } = self;
        let count = columns.len();
        let panels = sums.panels::<S>(rows.len());
        let width = panels * PANEL;
        let strip_sums = sums::room(&mut scratch.sums, rows.len() * width);
        for start in (strips.start * STRIP..strips.end * STRIP).step_by(panels) {
            let part = start * PANEL..((start + panels) * PANEL).min(count);
            if part.is_empty() {
                break;
            }
            let first = columns.start / PANEL + start;
            sums.sum(simd, rows.clone(), first..first + panels, &mut scratch.other, strip_sums);
            for (row, row_sums) in rows.clone().zip(strip_sums.chunks_exact_mut(width)) {
                // SAFETY: the caller of `product` guarantees the room; no other task writes these columns of this row.
                unsafe {
                    finish.run(simd, row_sums, row, (part.clone(), count), out.add(row * count + part.start));
                }
            }
        }
    }
}
