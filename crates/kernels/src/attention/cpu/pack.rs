//! Rows of one head, laid out in f32 for the micro-kernels.

use super::blocks::{HEADROOM, NARROW_SCORES};
use super::views::{HeadAt, Heads};
use pulp::Simd;
use std::ops::Range;

/// The number of rows transposed at a time, so that their columns are written in pieces of cache lines.
const GROUP: usize = 8;
/// The number of rows in a block of queries for 16 registers.
const NARROW_GROUP: usize = NARROW_SCORES.rows;

/// Panels of `panel` rows, depth-major and times `factor`: `out[p][d][r]`; rows beyond the last are 0.
pub(super) fn panels<S: Simd>(simd: S, x: &Heads, head: HeadAt, panel: usize, factor: f32) -> Vec<f32> {
    let mut out = vec![];
    panels_into(simd, &mut out, x, head, panel, factor);
    out
}

fn panels_into<S: Simd>(simd: S, out: &mut Vec<f32>, x: &Heads, head: HeadAt, panel: usize, factor: f32) {
    let [_, _, s, d] = x.dims;
    // Everything beyond the last row stays 0, even in memory that held another head before.
    out.resize(s.div_ceil(panel) * d * panel, 0.0);
    let mut scratch = vec![];
    for (p, out) in out.chunks_exact_mut(d * panel).enumerate() {
        let rows = p * panel..s.min((p + 1) * panel);
        transpose(simd, x, head, rows, factor, (out, panel), &mut scratch);
    }
}

/// Some rows of a head, depth-major and times `factor`: `out[d·stride + r]`. `scratch` is memory to reuse.
#[inline(always)]
pub(super) fn transpose<S: Simd>(
    simd: S,
    x: &Heads,
    head: HeadAt,
    rows: Range<usize>,
    factor: f32,
    (out, stride): (&mut [f32], usize),
    scratch: &mut Vec<f32>,
) {
    let d = x.dims[3];
    scratch.resize(GROUP * d, 0.0);
    for first in rows.clone().step_by(GROUP) {
        let count = GROUP.min(rows.end - first);
        let mut lines = scratch.chunks_exact_mut(d);
        let mut group: [&[f32]; GROUP] = [&[]; GROUP];
        for (i, row) in group.iter_mut().enumerate() {
            *row = &x.row(simd, head, first + i.min(count - 1), lines.next().unwrap_or_default())[..d];
        }
        let out = &mut out[first - rows.start..];
        match count {
            GROUP => put::<GROUP>(&group, GROUP, factor, out, stride),
            NARROW_GROUP => put::<NARROW_GROUP>(&group, NARROW_GROUP, factor, out, stride),
            count => put::<GROUP>(&group, count, factor, out, stride),
        }
    }
}

/// `out[d·stride + r] = rows[r][d]·factor` for the first `count` rows; N bounds `count` at compile time.
#[inline(always)]
fn put<const N: usize>(rows: &[&[f32]; GROUP], count: usize, factor: f32, out: &mut [f32], stride: usize) {
    for c in 0..rows[0].len() {
        let line = &mut out[c * stride..c * stride + count];
        for i in 0..count.min(N) {
            line[i] = rows[i][c] * factor;
        }
    }
}

/// Rows of `width` floats; columns beyond D are 0.
pub(super) fn rows<S: Simd>(simd: S, x: &Heads, head: HeadAt, width: usize) -> Vec<f32> {
    let mut out = vec![];
    blocks_into(simd, &mut out, x, head, width, width);
    out
}

/// Rows of `width` floats in blocks of `columns`, the last one perhaps narrower. Columns beyond D are 0.
fn blocks_into<S: Simd>(simd: S, out: &mut Vec<f32>, x: &Heads, head: HeadAt, width: usize, columns: usize) {
    let [_, _, s, d] = x.dims;
    let mut scratch = vec![0.0; d];
    // Everything beyond column D stays 0, as above.
    out.resize(s * width, 0.0);
    for j in 0..s {
        let row = x.row(simd, head, j, &mut scratch);
        for (first, part) in (0..d).step_by(columns).zip(row.chunks(columns)) {
            let at = first * s + j * columns.min(width - first);
            out[at..at + part.len()].copy_from_slice(part);
        }
    }
}

/// The layout of a packed head in the forward pass.
#[derive(Clone, Copy)]
pub(super) struct PackSizes {
    /// The keys of a panel.
    pub(super) panel: usize,
    /// Dv, padded to whole vectors.
    pub(super) width: usize,
    /// The columns of a block of values.
    pub(super) columns: usize,
}

/// One head's keys and values for the forward pass.
#[derive(Default)]
pub(super) struct PackedHead {
    /// [`panels`] of keys.
    pub(super) keys: Vec<f32>,
    /// Values in blocks of columns: a block's rows lie side by side, so that the part of a block for a tile's keys fits the
    /// first-level cache.
    pub(super) values: Vec<f32>,
    /// Whether every value is small enough for a tile to sum S of them, each with a weight of up to
    /// `2^HEADROOM`, before it divides. Infinity and NaN never are: a hidden key has the weight 0, and 0
    /// times infinity is NaN.
    pub(super) summable: bool,
}

impl PackedHead {
    /// Reuses the memory of the previous head, which has the same shape.
    pub(super) fn pack<S: Simd>(
        &mut self,
        simd: S,
        [k, v]: [&Heads; 2],
        head: HeadAt,
        sizes: PackSizes,
        largest_weight: f32,
    ) {
        panels_into(simd, &mut self.keys, k, head, sizes.panel, 1.0);
        blocks_into(simd, &mut self.values, v, head, sizes.width, sizes.columns);
        let largest = f32::MAX / (2 * k.dims[2]) as f32 / HEADROOM.exp2() / largest_weight;
        // NaN compares as false.
        let small = |row: &[f32]| row.iter().fold(true, |all, x| all & (x.abs() <= largest));
        self.summable = self.values.chunks(1024).all(small);
    }
}
