//! Products of matrices in blocks of rows, shared out over threads.

use super::finish::{Destination, Finish};
use super::lanes::{Kernel, Lanes, dispatch};
use super::numbers::{PANEL, PanelNumber, STRIP};
use super::panels::Panels;
use super::rounded;
use super::rows::{LeftFactor, Matrix, Rows};
use super::sums::{PackedPairs, PackedRows, Scratch, Sums};
use crate::cpu::dispatch::Factors;
use crate::cpu::isa::Isa;
use crate::cpu::spinning_threads;
use pulp::Arch;
use std::cell::RefCell;
use std::ops::Range;

/// The bytes of a block of rows, as the tiles read them: half of a small second-level cache.
const BLOCK: usize = 256 << 10;

/// The fewest groups of rows in a block, even if they do not fit: each block reads the whole right factor again.
const GROUPS: usize = 4;

/// The number of tasks into which the last blocks are divided for each thread, so that none waits long for another.
const TASKS_PER_THREAD: usize = 4;

/// `finish(x·W)`: `x` (rows, depth), `w` (depth, N) or its columns `columns` -> (rows, `columns.len()`). The columns start at a
/// multiple of a strip of panels.
pub(crate) fn new_product<X: PanelNumber, E: PanelNumber>(
    x: &[X],
    w: &Panels<E>,
    columns: Range<usize>,
    finish: Finish<X>,
) -> Vec<X> {
    let depth = w.depth();
    assert!(x.len().is_multiple_of(depth) && !finish.onto, "a product of whole rows onto nothing");
    let rows = x.len() / depth;
    let count = x.len() / depth * columns.len();
    let mut out = Vec::with_capacity(count);
    // SAFETY: there is room for `count` numbers, and the product writes all of them.
    unsafe {
        product(Isa::current(), &Rows { data: x, depth }, rows, w, columns, finish, out.as_mut_ptr());
        out.set_len(count);
    }
    out
}

/// Products of two matrices that both change; results are row-major.
impl Factors {
    /// `a·b`
    pub(crate) fn product(self, a: Matrix, b: Matrix) -> Vec<f32> {
        self.product_on(Isa::current(), a, b)
    }

    /// `out += a·b`
    pub(crate) fn add_product(self, out: &mut [f32], a: Matrix, b: Matrix) {
        self.add_product_on(Isa::current(), out, a, b);
    }

    /// [`product`](Self::product) on an instruction set; where `gemm` computes it, that takes the fastest.
    pub(super) fn product_on(self, isa: Isa, a: Matrix, b: Matrix) -> Vec<f32> {
        let count = result_len(a, b);
        // The crate `gemm` makes a slice of a result of one row or column, which must hold numbers.
        if a.shape[1] == 0 || a.shape[0] == 1 || b.shape[1] == 1 {
            let mut out = vec![0.0; count];
            self.add_product_on(isa, &mut out, a, b);
            return out;
        }
        let mut out = Vec::with_capacity(count);
        // SAFETY: the memory is new and has room for `count` numbers, which are all written, and not read before.
        unsafe {
            self.write(isa, out.as_mut_ptr(), false, a, b);
            out.set_len(count);
        }
        out
    }

    /// [`add_product`](Self::add_product) likewise.
    pub(super) fn add_product_on(self, isa: Isa, out: &mut [f32], a: Matrix, b: Matrix) {
        assert_eq!(out.len(), result_len(a, b));
        if a.shape[1] > 0 {
            // SAFETY: `out` holds as many numbers as the result; it is borrowed mutably, so that it overlaps neither factor and
            // nobody else uses it.
            unsafe { self.write(isa, out.as_mut_ptr(), true, a, b) };
        }
    }

    /// `out = a·b`, or `out += a·b` if `onto` is set, of a depth that is not 0.
    ///
    /// # Safety
    /// `out` has room for the result, holds numbers if `onto` is set, and overlaps neither factor; nobody else uses it.
    pub(super) unsafe fn write(self, isa: Isa, out: *mut f32, onto: bool, a: Matrix, b: Matrix) {
        let [m, k] = a.shape;
        let n = b.shape[1];
        assert!(a.is_whole() && b.is_whole() && k == b.shape[0] && k > 0);
        let finish = Finish { onto, ..Finish::NOTHING };
        // SAFETY: the caller guarantees the result. The slices hold the matrices, as asserted above.
        unsafe {
            match self {
                Self::Bf16 => {
                    let depth = rounded::depth(k);
                    let data = rounded::rows(a, depth);
                    let panels = rounded::panels(b, depth);
                    product(isa, &Rows { data: &data, depth }, m, &panels, 0..n, finish, out);
                }
                Self::AsStored if isa.gemm_is_as_fast() => write_with_gemm(out, onto, a, b),
                Self::AsStored => {
                    let panels = Panels::pack(b.data, (k, n), b.strides.into());
                    product(isa, &a, m, &panels, 0..n, finish, out);
                }
            }
        }
    }
}

/// The number of elements of `a·b`.
///
/// # Panics
/// When the shapes do not fit.
fn result_len(a: Matrix, b: Matrix) -> usize {
    assert_eq!(a.shape[1], b.shape[0], "the depth of both factors");
    a.shape[0].checked_mul(b.shape[1]).expect("the result's size is a usize")
}

/// `out = a·b`, or `out += a·b` if `onto` is set, by the crate `gemm`.
///
/// # Safety
/// The slices hold the matrices, whose shapes fit; `out` has room for the result, holds numbers if `onto` is set, and overlaps
/// neither factor; nobody else uses it.
unsafe fn write_with_gemm(out: *mut f32, onto: bool, a: Matrix, b: Matrix) {
    let [m, k] = a.shape;
    let n = b.shape[1];
    let stride = |n: usize| isize::try_from(n).unwrap_or(isize::MAX);
    // SAFETY: the caller's; the strides of slices fit an isize.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out,
            1,
            stride(n),
            onto,
            a.data.as_ptr(),
            stride(a.strides[1]),
            stride(a.strides[0]),
            b.data.as_ptr(),
            stride(b.strides[1]),
            stride(b.strides[0]),
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::Rayon(rayon::current_num_threads()),
        );
    }
}

/// `out = finish(x·W)`, or `+=` if `finish` says so: `x` (rows, depth), `w` (depth, N) or its columns `columns`, a multiple
/// of [`PANEL`]·[`STRIP`] to start from, and `out` (rows, `columns.len()`). Where `isa` is not available, the portable code
/// runs.
///
/// # Safety
/// `out` has room for the result, and holds numbers if `finish.onto` is set.
pub(super) unsafe fn product<X: LeftFactor, E: PanelNumber, O: PanelNumber>(
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
    let arch = isa.arch().unwrap_or(Arch::Scalar);
    let result = Destination::new(finish, rows, columns.len(), out);
    // SAFETY: the caller guarantees the result, and `has_pairs` has looked for the instruction.
    unsafe {
        #[cfg(amx)]
        if let Some(tiles) = super::amx::Tiles::new(isa, x, rows, w) {
            return share_out(arch, rows, &columns, &tiles, &result);
        }
        if isa.has_pairs()
            && let Some(pairs) = PackedPairs::new(arch, x, rows, w)
        {
            return share_out(arch, rows, &columns, &pairs, &result);
        }
        share_out(arch, rows, &columns, &PackedRows::new(arch, x, rows, w), &result);
    }
}

/// Computes all rows of some columns on all threads.
///
/// # Safety
/// The result has room for these rows and columns, and holds numbers there if it is added to.
pub(super) unsafe fn share_out<O: PanelNumber>(
    arch: Arch,
    rows: usize,
    columns: &Range<usize>,
    sums: &impl Sums,
    result: &Destination<O>,
) {
    let strips = columns.len().div_ceil(PANEL * STRIP);
    let group = sums.group();
    let most = (BLOCK / sums.row_bytes().max(1) / group).max(GROUPS) * group;
    // Blocks of about the same height.
    let height = rows.div_ceil(rows.div_ceil(most)).next_multiple_of(group);
    let tasks = tasks(rows, strips, height, rayon::current_num_threads());
    spinning_threads::for_each(tasks.len(), |i| {
        let (rows, strips) = tasks[i].clone();
        SCRATCH.with_borrow_mut(|scratch| {
            dispatch(arch, StripTask { sums, rows, strips, columns, result, scratch });
        });
    });
}

/// Divides a product into tasks of rows and strips. Blocks of rows stay in a cache for all their strips, but the last blocks
/// are divided, so that all threads end at about the same time.
fn tasks(rows: usize, strips: usize, height: usize, threads: usize) -> Vec<(Range<usize>, Range<usize>)> {
    let blocks = rows.div_ceil(height);
    let divided = if threads == 1 { 0 } else { blocks.min(2 * threads) };
    let parts = (TASKS_PER_THREAD * threads).div_ceil(divided.max(1)).min(strips);
    let mut tasks = vec![];
    for block in 0..blocks {
        let rows = block * height..((block + 1) * height).min(rows);
        let parts = if block + divided < blocks { 1 } else { parts };
        tasks.extend((0..parts).map(|i| (rows.clone(), strips * i / parts..strips * (i + 1) / parts)));
    }
    tasks
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Some rows of a product, for some strips of [`STRIP`] panels.
struct StripTask<'a, T, O> {
    sums: &'a T,
    rows: Range<usize>,
    strips: Range<usize>,
    /// The columns of the whole product.
    columns: &'a Range<usize>,
    result: &'a Destination<'a, O>,
    scratch: &'a mut Scratch,
}

impl<T: Sums, O: PanelNumber> Kernel for StripTask<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn with<S: Lanes>(self, simd: S) {
        let Self { sums, rows, strips, columns, result, scratch } = self;
        let panels = sums.panels::<S>(rows.len());
        for start in (strips.start * STRIP..strips.end * STRIP).step_by(panels) {
            let part = start * PANEL..((start + panels) * PANEL).min(columns.len());
            if part.is_empty() {
                break;
            }
            let first = columns.start / PANEL + start;
            // SAFETY: the caller of `share_out` guarantees the room; no other task writes these columns of these rows.
            let out = unsafe { result.part(rows.clone(), part) };
            sums.sum(simd, rows.clone(), first..first + panels, scratch, out);
        }
    }
}
