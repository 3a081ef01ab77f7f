//! A product whose result goes into a vector.

use super::block::product;
use super::finish::Finish;
use super::panels::{Panels, Stored};
use super::rows::Rows;
use crate::isa::Isa;
use std::ops::Range;

/// Appends `finish(x·W)` to `out`: `x` (rows, depth), `w` (depth, N) or its columns `columns` -> (rows, `columns.len()`). The
/// columns start at a multiple of a strip of panels.
pub(crate) fn append_product<X: Stored, E: Stored>(
    out: &mut Vec<X>,
    x: &[X],
    w: &Panels<E>,
    columns: Range<usize>,
    finish: Finish<X>,
) {
    let (depth, before) = (w.depth(), out.len());
    assert!(x.len().is_multiple_of(depth) && !finish.onto, "a product of whole rows onto nothing");
    let (rows, count) = (x.len() / depth, x.len() / depth * columns.len());
    out.reserve(count);
    // SAFETY: there is room for `count` more numbers, and the product writes all of them.
    unsafe {
        let end = out.as_mut_ptr().add(before);
        product(Isa::current(), &Rows { data: x, depth }, rows, w, columns, finish, end);
        out.set_len(before + count);
    }
}
