//! Products of f32 matrices in slices, for factors that both change.

use super::block::product;
use super::finish::Finish;
use super::matrix::Matrix;
use super::panels::Panels;
use crate::isa::Isa;

/// `out += a·b`, or `out = a·b` if `onto` is false: `out` (m, n) is row-major, `a` is (m, k) and `b` is (k, n).
pub(crate) fn multiply(out: &mut [f32], onto: bool, (m, k, n): (usize, usize, usize), a: Matrix, b: Matrix) {
    assert!(m.checked_mul(n) == Some(out.len()) && a.holds(m, k) && b.holds(k, n));
    if gemm_is_as_fast() {
        return by_gemm(out, onto, (m, k, n), a, b);
    }
    let b = Panels::pack(b.data, (k, n), (b.row, b.column));
    let finish = Finish { onto, ..Finish::NOTHING };
    // SAFETY: `out` holds the m·n numbers of the result.
    unsafe { product(Isa::current(), &a, m, &b, 0..n, finish, out.as_mut_ptr()) };
}

/// Whether the crate `gemm`, which packs both factors, takes no longer than our tiles. On AVX2 it takes longer: it reaches
/// half of what the processor can do, see docs/benchmarks.md. NEON has not been measured. `gemm` always uses the fastest
/// instruction set.
fn gemm_is_as_fast() -> bool {
    matches!(Isa::current(), Isa::Avx512 | Isa::Amx | Isa::Neon)
}

fn by_gemm(out: &mut [f32], onto: bool, (m, k, n): (usize, usize, usize), a: Matrix, b: Matrix) {
    let stride = |n: usize| isize::try_from(n).unwrap_or(isize::MAX);
    // SAFETY: the slices hold the matrices, as `multiply` asserts, and the strides of slices fit an isize. `out` is
    // borrowed mutably, so it overlaps neither.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            stride(n),
            onto,
            a.data.as_ptr(),
            stride(a.column),
            stride(a.row),
            b.data.as_ptr(),
            stride(b.column),
            stride(b.row),
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::Rayon(rayon::current_num_threads()),
        );
    }
}
