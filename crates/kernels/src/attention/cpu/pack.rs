//! Rows of one head, laid out in f32 for the micro-kernels.

use super::heads::{Element, Heads};

/// Panels of `panel` rows, depth-major and times `factor`: `out[p][d][r]`; rows beyond the last are 0.
pub(super) fn panels<E: Element>(
    x: &Heads<E>,
    (b, h): (usize, usize),
    panel: usize,
    factor: f32,
) -> Vec<f32> {
    let [_, _, s, d] = x.dims;
    let mut scratch = vec![0.0; d];
    let mut out = vec![0.0; s.div_ceil(panel) * d * panel];
    for (p, out) in out.chunks_exact_mut(d * panel).enumerate() {
        for r in 0..panel.min(s - p * panel) {
            let row = x.row(b, h, p * panel + r, &mut scratch);
            for (x, slot) in row.iter().zip(out[r..].iter_mut().step_by(panel)) {
                *slot = x * factor;
            }
        }
    }
    out
}

/// Rows of `width` floats; columns beyond D are 0.
pub(super) fn rows<E: Element>(x: &Heads<E>, (b, h): (usize, usize), width: usize) -> Vec<f32> {
    let [_, _, s, d] = x.dims;
    let mut scratch = vec![0.0; d];
    let mut out = vec![0.0; s * width];
    for (j, out) in out.chunks_exact_mut(width).enumerate() {
        out[..d].copy_from_slice(x.row(b, h, j, &mut scratch));
    }
    out
}

/// One head's keys and values for the forward pass.
pub(super) struct Packed {
    /// [`panels`] of keys.
    pub(super) keys: Vec<f32>,
    /// [`rows`] of values.
    pub(super) values: Vec<f32>,
    /// Whether every value is small enough for a tile to sum S of them before it divides. Infinity and NaN
    /// are not: a hidden key has the weight 0, and 0 times infinity is NaN.
    pub(super) summable: bool,
}

impl Packed {
    pub(super) fn new<E: Element>(
        k: &Heads<E>,
        v: &Heads<E>,
        head: (usize, usize),
        panel: usize,
        width: usize,
    ) -> Self {
        let values = rows(v, head, width);
        let largest = f32::MAX / (2 * k.dims[2]) as f32;
        let summable = values.iter().all(|x| x.abs() <= largest);
        Self { keys: panels(k, head, panel, 1.0), values, summable }
    }
}
