//! Weights into blocks.

use super::format::BlockFormat;
use half::f16;

impl BlockFormat {
    /// Quantizes weights in whole blocks. `Q8_0` gives the same bytes as the Python package `gguf`; the scales of `Q4_K`, `Q5_K`
    /// and `Q6_K` have the least squared error that a search finds.
    ///
    /// # Panics
    /// When the weights do not fill whole blocks.
    #[must_use]
    pub fn quantize(self, weights: &[f32]) -> Vec<u8> {
        let len = self
            .bytes_of(weights.len())
            .unwrap_or_else(|| panic!("{} weights do not fill whole blocks", weights.len()));
        let mut out = vec![0; len];
        for (x, block) in weights.chunks_exact(self.block_len()).zip(out.chunks_exact_mut(self.block_bytes()))
        {
            encode(self, x, block);
        }
        out
    }
}

/// Writes the weights `x` as a block.
fn encode(format: BlockFormat, x: &[f32], out: &mut [u8]) {
    match format {
        BlockFormat::Q8_0 => q8_0(x, out),
        BlockFormat::Q4_0 => {
            let mut codes = [0; 32];
            put_half(out, 0, symmetric(x, 8.0, &mut codes));
            put_nibbles(&codes, &mut out[2..18]);
        }
        BlockFormat::Q5_0 => {
            let mut codes = [0; 32];
            put_half(out, 0, symmetric(x, 16.0, &mut codes));
            put_nibbles(&codes, &mut out[6..22]);
            let fifth = (0..32).fold(0, |bits, i| bits | u32::from(codes[i] >> 4) << i);
            out[2..6].copy_from_slice(&fifth.to_le_bytes());
        }
        BlockFormat::Q4K => {
            let codes = with_minima(x, 15.0, out);
            for (codes, out) in codes.chunks_exact(64).zip(out[16..].chunks_exact_mut(32)) {
                put_nibbles(codes, out);
            }
        }
        BlockFormat::Q5K => {
            let codes = with_minima(x, 31.0, out);
            let (fifth, low) = out[16..].split_at_mut(32);
            for (codes, out) in codes.chunks_exact(64).zip(low.chunks_exact_mut(32)) {
                put_nibbles(codes, out);
            }
            for (part, codes) in codes.chunks_exact(32).enumerate() {
                for (bits, code) in fifth.iter_mut().zip(codes) {
                    *bits |= (code >> 4) << part;
                }
            }
        }
        BlockFormat::Q6K => q6_k(x, out),
    }
}

fn put_half(out: &mut [u8], at: usize, x: f32) {
    out[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
}

/// Packs the lower four bits of codes: the first half of the codes in the lower bits, the second half in the upper ones.
fn put_nibbles(codes: &[u8], out: &mut [u8]) {
    let (low, high) = codes.split_at(out.len());
    for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
        *out = low & 15 | high << 4;
    }
}

/// The largest magnitude is 127 codes. A tie is rounded away from 0, with the scale before it is rounded to f16.
#[allow(clippy::cast_possible_truncation)] // -127 to 127
fn q8_0(x: &[f32], out: &mut [u8]) {
    let largest = x.iter().fold(0f32, |most, x| most.max(x.abs()));
    let scale = largest / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    put_half(out, 0, scale);
    for (out, x) in out[2..].iter_mut().zip(x) {
        *out = ((x * inverse).round() as i8).cast_unsigned();
    }
}

/// The number of the largest magnitude.
fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0f32, |most, x| if x.abs() > most.abs() { *x } else { most })
}

/// Codes 0 to `2·half − 1` whose weights are `scale·(code − half)`; returns the scale. The weight of the largest magnitude has
/// code 0, so one sign has a code more than the other.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // limited to the codes
fn symmetric(x: &[f32], half: f32, codes: &mut [u8]) -> f32 {
    let scale = largest(x) / -half;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    for (code, x) in codes.iter_mut().zip(x) {
        *code = (x * inverse + (half + 0.5)).clamp(0.0, 2.0 * half - 1.0) as u8;
    }
    scale
}

/// A search for scales takes `STEPS` steps of `STEP` codes to either side.
const STEPS: i16 = 20;
const STEP: f32 = 0.1;

/// The scale and the minimum of `scale·code − minimum`, with codes 0 to `most`, that a search around the range of the weights
/// finds to have the least squared error. The minimum is not negative.
fn affine(x: &[f32], most: f32) -> (f32, f32) {
    let low = x.iter().fold(0f32, |low, x| low.min(*x));
    let high = x.iter().fold(low, |high, x| high.max(*x));
    if high <= low {
        return (0.0, -low);
    }
    let mut best = ((high - low) / most, -low);
    let mut least = affine_error(x, best, most);
    for step in -STEPS..=STEPS {
        let inverse = (most + STEP * f32::from(step)) / (high - low);
        // The line through the points (code, weight) with the least squared error.
        let (mut n, mut sc, mut scc, mut sx, mut scx) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for x in x {
            let code = ((x - low) * inverse).round_ties_even().clamp(0.0, most);
            n += 1.0;
            sc += code;
            scc += code * code;
            sx += x;
            scx += code * x;
        }
        let spread = n * scc - sc * sc;
        if spread <= 0.0 {
            continue;
        }
        let mut scale = (n * scx - sc * sx) / spread;
        let mut min = (sc * scx - scc * sx) / spread;
        if min < 0.0 {
            (scale, min) = (scx / scc, 0.0);
        }
        let error = affine_error(x, (scale, min), most);
        if scale > 0.0 && error < least {
            (best, least) = ((scale, min), error);
        }
    }
    best
}

fn affine_code(x: f32, (scale, min): (f32, f32), most: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { ((x + min) / scale).round_ties_even().clamp(0.0, most) }
}

fn affine_error(x: &[f32], line: (f32, f32), most: f32) -> f32 {
    x.iter().map(|x| (line.0 * affine_code(*x, line, most) - line.1 - x).powi(2)).sum()
}

/// Writes the scales and minima of a block of `Q4_K` or `Q5_K`, and returns its codes, 0 to `most`.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // limited to 63 and to `most`
fn with_minima(x: &[f32], most: f32, out: &mut [u8]) -> [u8; 256] {
    let mut lines = [(0.0, 0.0); 8];
    for (line, x) in lines.iter_mut().zip(x.chunks_exact(32)) {
        *line = affine(x, most);
    }
    let sixth = |most: f32| f16::from_f32(most / 63.0).to_f32();
    let scale = sixth(lines.iter().fold(0.0, |most, line| line.0.max(most)));
    let min = sixth(lines.iter().fold(0.0, |most, line| line.1.max(most)));
    put_half(out, 0, scale);
    put_half(out, 2, min);
    let part =
        |x: f32, unit: f32| if unit == 0.0 { 0.0 } else { (x / unit).round_ties_even().clamp(0.0, 63.0) };
    let mut codes = [0; 256];
    for (i, (line, x)) in lines.iter().zip(x.chunks_exact(32)).enumerate() {
        let s = part(line.0, scale);
        let m = part(line.1, min);
        for (code, x) in codes[i * 32..].iter_mut().zip(x) {
            *code = affine_code(*x, (s * scale, m * min), most) as u8;
        }
        put_six_bits(&mut out[4..16], i, s as u8, m as u8);
    }
    codes
}

/// The inverse of [`six_bits`](super::format::six_bits); the parts come in order.
fn put_six_bits(packed: &mut [u8], i: usize, scale: u8, min: u8) {
    if i < 4 {
        (packed[i], packed[i + 4]) = (scale, min);
    } else {
        packed[i + 4] = (scale & 15) | (min & 15) << 4;
        packed[i - 4] |= scale >> 4 << 6;
        packed[i] |= min >> 4 << 6;
    }
}

/// The scale of `scale·code`, with codes −32 to 31, that a search around the largest weight finds to have the least squared
/// error.
fn centered(x: &[f32]) -> f32 {
    let largest = largest(x);
    if largest == 0.0 {
        return 0.0;
    }
    let error =
        |scale: f32| -> f32 { x.iter().map(|x| (scale * centered_code(*x, scale) - x).powi(2)).sum() };
    let mut best = largest / -32.0;
    let mut least = error(best);
    for step in -STEPS..=STEPS {
        let inverse = (-32.0 + STEP * f32::from(step)) / largest;
        let (mut cc, mut cx) = (0.0, 0.0);
        for x in x {
            let code = (x * inverse).round_ties_even().clamp(-32.0, 31.0);
            cc += code * code;
            cx += code * x;
        }
        let scale = cx / cc;
        let found = error(scale);
        if found < least {
            (best, least) = (scale, found);
        }
    }
    best
}

fn centered_code(x: f32, scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { (x / scale).round_ties_even().clamp(-32.0, 31.0) }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // limited to a byte and to 6 bits
fn q6_k(x: &[f32], out: &mut [u8]) {
    let mut scales = [0.0; 16];
    for (scale, x) in scales.iter_mut().zip(x.chunks_exact(16)) {
        *scale = centered(x);
    }
    let unit = f16::from_f32(largest(&scales) / -128.0).to_f32();
    put_half(out, 208, unit);
    let mut codes = [0u8; 256];
    for (i, (scale, x)) in scales.iter().zip(x.chunks_exact(16)).enumerate() {
        let part = if unit == 0.0 { 0.0 } else { (scale / unit).round_ties_even().clamp(-128.0, 127.0) };
        out[192 + i] = (part as i8).cast_unsigned();
        for (code, x) in codes[i * 16..].iter_mut().zip(x) {
            *code = (centered_code(*x, part * unit) + 32.0) as u8;
        }
    }
    for (half, codes) in codes.chunks_exact(128).enumerate() {
        let (low, high) = out[..192].split_at_mut(128);
        put_nibbles(codes, &mut low[half * 64..][..64]);
        for (l, high) in high[half * 32..][..32].iter_mut().enumerate() {
            *high = (0..4).fold(0, |bits, quarter| bits | codes[quarter * 32 + l] >> 4 << (2 * quarter));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::test_numbers::values;

    /// A line through the extremes is where the search begins; the least squares of some of its steps are clearly better.
    #[test]
    fn the_search_finds_better_lines_than_those_through_the_extremes() {
        let (mut found, mut plain) = (0.0, 0.0);
        for salt in 0..64 {
            // Few large numbers among many small ones, as in trained weights.
            let x: Vec<f32> = values(32, 1 + 97 * salt).iter().map(|x| x.powi(3)).collect();
            let low = x.iter().fold(0f32, |low, x| low.min(*x));
            let high = x.iter().fold(low, |high, x| high.max(*x));
            found += affine_error(&x, affine(&x, 15.0), 15.0);
            plain += affine_error(&x, ((high - low) / 15.0, -low), 15.0);
            let centered_error = |scale: f32| -> f32 {
                x.iter().map(|x| (scale * centered_code(*x, scale) - x).powi(2)).sum()
            };
            assert!(centered_error(centered(&x)) <= centered_error(largest(&x) / -32.0));
            for sign in [1.0, -1.0] {
                check_all_steps(&x.iter().map(|x| sign * x).collect::<Vec<_>>());
                check_all_steps(&x.iter().map(|x| sign * (1.0 + x / 2.0)).collect::<Vec<_>>());
            }
        }
        assert!(found < 0.93 * plain, "{found} of {plain}");
    }

    /// Asserts that the search ends no worse than any of its steps before their least squares, and that the minimum is not
    /// negative.
    fn check_all_steps(x: &[f32]) {
        let low = x.iter().fold(0f32, |low, x| low.min(*x));
        let high = x.iter().fold(low, |high, x| high.max(*x));
        let centered_error =
            |scale: f32| -> f32 { x.iter().map(|x| (scale * centered_code(*x, scale) - x).powi(2)).sum() };
        let lines = [15.0, 31.0].map(|most| (affine(x, most), most));
        let scale = centered(x);
        for step in (-20i16..=20).map(|step| f32::from(step) / 10.0) {
            for (line, most) in lines {
                let error = affine_error(x, ((high - low) / (most + step), -low), most);
                assert!(affine_error(x, line, most) <= 1.0001 * error, "step {step}: {line:?}");
                assert!(line.1 >= 0.0, "{line:?}");
            }
            let error = centered_error(largest(x) / (-32.0 + step));
            assert!(centered_error(scale) <= 1.0001 * error, "step {step}: {scale}");
        }
    }

    /// The weight of the largest magnitude has code 0; of two, the first.
    #[test]
    fn of_two_largest_magnitudes_the_first_counts() {
        assert_eq!((largest(&[0.5, -2.0, 2.0, 1.0]), largest(&[2.0, -2.0])), (-2.0, 2.0));
        let mut codes = [9; 4];
        assert!((symmetric(&[-2.0, 2.0, 0.0, 1.0], 8.0, &mut codes) - 0.25).abs() < 1e-7);
        assert_eq!(codes, [0, 15, 8, 12]);
    }
}
