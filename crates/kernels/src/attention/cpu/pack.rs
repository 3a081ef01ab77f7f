//! Keys and values of one head, laid out for the tiles.

use super::heads::{Element, Heads};

/// One head's keys and values in f32.
pub(super) struct Packed {
    /// Panels of `panel` keys, depth-major: `keys[p][d][c]`; keys beyond S are 0.
    pub(super) keys: Vec<f32>,
    /// S rows of `width` floats; columns beyond D are 0.
    pub(super) values: Vec<f32>,
    /// Whether every value is small enough for a tile to sum S of them before it divides. Infinity and NaN
    /// are not: a hidden key has the weight 0, and 0 times infinity is NaN.
    pub(super) summable: bool,
}

impl Packed {
    pub(super) fn new<E: Element>(
        k: &Heads<E>,
        v: &Heads<E>,
        (b, h): (usize, usize),
        panel: usize,
        width: usize,
    ) -> Self {
        let [_, _, s, d] = k.dims;
        let mut scratch = vec![0.0; d];
        let mut keys = vec![0.0; s.div_ceil(panel) * d * panel];
        for (p, keys) in keys.chunks_exact_mut(d * panel).enumerate() {
            for c in 0..panel.min(s - p * panel) {
                let row = k.row(b, h, p * panel + c, &mut scratch);
                for (x, slot) in row.iter().zip(keys[c..].iter_mut().step_by(panel)) {
                    *slot = *x;
                }
            }
        }
        let mut values = vec![0.0; s * width];
        let (mut summable, largest) = (true, f32::MAX / (2 * s) as f32);
        for (j, out) in values.chunks_exact_mut(width).enumerate() {
            let row = v.row(b, h, j, &mut scratch);
            out[..d].copy_from_slice(row);
            summable &= row.iter().all(|x| x.abs() <= largest);
        }
        Self { keys, values, summable }
    }
}
