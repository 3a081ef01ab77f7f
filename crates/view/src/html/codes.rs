//! Weights as small whole numbers, compressed, as text: the page's form of a head.
//!
//! A weight `w` becomes the code `c = round(L · w^(2/3))`, and the page reads it as `(c / L)^(3/2)`. The
//! power spends the codes where people look: at 8 bits, an even scale rounds everything below 1/510 to 0, and
//! that is where all of a long text's diffuse heads lie; a square root spends more codes there, and their noise
//! makes the page half as large again.
//!
//! The page's value differs from the weight by at most half a step of the codes times the slope at the step's end:
//! `|w' - w| <= 1.5 · h · √(w^(2/3) + h)` with `h = 1 / (2L)`.

use base64::{Engine, prelude::BASE64_STANDARD};
use candle_core::{DType, Device, Error, Result, Tensor};
use miniz_oxide::DataFormat;
use miniz_oxide::deflate::core::{
    CompressionStrategy, CompressorOxide, TDEFLFlush, TDEFLStatus, compress_to_output,
};

/// The highest level of 16-bit codes; one more code stands for NaN.
pub(super) const FINE: u16 = u16::MAX - 1;
/// The highest levels of 8-bit codes. A head that is too large with one takes the next.
pub(super) const COARSE: [u16; 3] = [254, 126, 62];

/// One head, ready to write.
#[derive(Debug, Clone)]
pub(super) struct Codes {
    /// The code of weight 1.
    pub(super) levels: u16,
    /// The number of keys that the first query sees; each query sees one more than the one before.
    first: usize,
    /// Whether the bytes of the codes are compressed: by deflate, with zlib's header and checksum.
    packed: bool,
    /// Base64 of the codes, row after row: one byte each, or all high bytes and then all low ones.
    pub(super) text: String,
}

/// A weight as the page reads it from its code, and the most by which it can be wrong.
#[derive(Debug, Clone, Copy)]
pub(super) struct Number {
    pub(super) value: f64,
    pub(super) error: f64,
}

impl Number {
    fn of(code: u16, levels: u16) -> Self {
        if code > levels {
            return Self { value: f64::NAN, error: f64::NAN };
        }
        let part = f64::from(code) / f64::from(levels);
        let half = 0.5 / f64::from(levels);
        Self { value: part.powf(1.5), error: 1.5 * half * (part + half).sqrt() }
    }
}

/// The codes of a query's weights.
pub(super) struct CodeRow {
    codes: Vec<u16>,
    levels: u16,
}

impl CodeRow {
    pub(super) fn numbers(&self) -> impl Iterator<Item = Number> {
        self.codes.iter().map(|&code| Number::of(code, self.levels))
    }

    /// The most that a weight with the code 0 can be, if the codes hold only the `top` largest of the row: the smallest
    /// that they hold.
    pub(super) fn most_left_out(&self, top: Option<usize>) -> f64 {
        if top.is_none_or(|top| self.codes.len() <= top) {
            return Number::of(0, self.levels).error;
        }
        let held = self.codes.iter().copied().filter(|&code| code > 0);
        let least = Number::of(held.min().unwrap_or(self.levels).min(self.levels), self.levels);
        least.value + least.error
    }
}

impl Codes {
    /// The codes again, one row a query.
    pub(super) fn rows(&self) -> Result<Vec<CodeRow>> {
        let mut bytes = BASE64_STANDARD.decode(&self.text).map_err(Error::wrap)?;
        if self.packed {
            bytes = miniz_oxide::inflate::decompress_to_vec_zlib(&bytes).map_err(Error::wrap)?;
        }
        let codes: Vec<u16> = if self.levels == FINE {
            let (high, low) = bytes.split_at(bytes.len() / 2);
            high.iter().zip(low).map(|(&high, &low)| u16::from_be_bytes([high, low])).collect()
        } else {
            bytes.into_iter().map(u16::from).collect()
        };
        let mut rest = &codes[..];
        let mut keys = self.first;
        let mut rows = vec![];
        while let Some((row, later)) = rest.split_at_checked(keys).filter(|_| !rest.is_empty()) {
            rows.push(CodeRow { codes: row.to_vec(), levels: self.levels });
            (rest, keys) = (later, keys + 1);
        }
        Ok(rows)
    }
}

/// The codes of a head, with the first of `levels` whose text has at most `room` bytes, otherwise with the last; compressed, if
/// `packed`.
///
/// # Shapes
/// `weights` (T, S), T at most S; query i has the keys 0 to S - T + i
///
/// # Errors
/// When a weight is negative or above 1, and so cannot be a share of a query's attention. NaN is allowed.
pub(super) fn encode(weights: &Tensor, levels: &[u16], room: usize, packed: bool) -> Result<Codes> {
    let (t, s) = weights.dims2()?;
    let weights = weights.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    let first = s - t + 1;
    let mut codes = Codes { levels: FINE, first, packed, text: String::new() };
    for &levels in levels {
        let bytes = bytes(&weights, t, s, levels)?;
        let text = BASE64_STANDARD.encode(if packed { deflate(&bytes)? } else { bytes });
        codes = Codes { levels, first, packed, text };
        if codes.text.len() <= room {
            break;
        }
    }
    Ok(codes)
}

fn bytes(weights: &[f32], t: usize, s: usize, levels: u16) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(t * s);
    let mut low = vec![];
    for (i, row) in weights.chunks_exact(s).enumerate() {
        for &weight in &row[..=s - t + i] {
            let [high_byte, low_byte] = code(weight, levels)?.to_be_bytes();
            if levels == FINE {
                bytes.push(high_byte);
                low.push(low_byte);
            } else {
                bytes.push(low_byte);
            }
        }
    }
    bytes.append(&mut low);
    Ok(bytes)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // not negative, at most `levels`
fn code(weight: f32, levels: u16) -> Result<u16> {
    if weight == 0.0 {
        return Ok(0);
    }
    if weight.is_nan() {
        return Ok(levels + 1);
    }
    let code = (f64::from(weight).cbrt().powi(2) * f64::from(levels)).round();
    // Rounding may lift a softmax a little above 1.
    if weight < 0.0 || code > f64::from(levels) {
        candle_core::bail!("page: {weight} is not an attention weight: those lie between 0 and 1")
    }
    Ok(code as u16)
}

/// Run lengths and Huffman codes alone are the fastest strategy here and among the smallest: apart from runs
/// of zeros, a weight's neighbors say little about it, and longer matches cost more than they save.
fn deflate(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len() / 2);
    let mut compressor = CompressorOxide::with_params(DataFormat::Zlib, 6, CompressionStrategy::RLE, 15);
    let (status, _) = compress_to_output(&mut compressor, bytes, TDEFLFlush::Finish, |part| {
        out.extend_from_slice(part);
        true
    });
    match status {
        TDEFLStatus::Done => Ok(out),
        status => Err(Error::Msg(format!("page: compressing the weights ended with {status:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bound in this file's first lines.
    fn error_bound(weight: f64, levels: u16) -> f64 {
        let half = 0.5 / f64::from(levels);
        1.5 * half * (weight.cbrt().powi(2) + half).sqrt()
    }

    /// Decodes as the page's script does.
    fn decode(codes: &Codes) -> Vec<f64> {
        let rows = codes.rows().expect("codes");
        rows.iter().flat_map(|row| row.numbers().map(|number| number.value).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn every_weight_comes_back_within_its_bound() -> Result<()> {
        // Evenly spaced weights, and powers of two down to 0.
        let mut weights: Vec<f32> = (0..=5000u16).map(|i| f32::from(i) / 5000.0).collect();
        weights.extend((1..60).map(|i| 0.5f32.powi(i)));
        let row = Tensor::new(weights.clone(), &Device::Cpu)?.unsqueeze(0)?; // (1, S)
        for levels in [FINE, 254, 126, 62] {
            let codes = encode(&row, &[levels], usize::MAX, true)?;
            assert_eq!(decode(&codes), decode(&encode(&row, &[levels], usize::MAX, false)?));
            let mut worst = 0f64;
            for (&weight, got) in weights.iter().zip(decode(&codes)) {
                let error = (got - f64::from(weight)).abs();
                let bound = error_bound(weight.into(), levels);
                assert!(error <= bound * (1.0 + 1e-9), "{levels}: {weight} came back as {got}");
                worst = worst.max(error / bound);
            }
            assert!(worst > 0.9, "{levels}: the bound is too wide to say anything, {worst}");
        }
        assert!(error_bound(1.0, 254) < 0.003 && error_bound(0.001, 254) < 0.0004);
        assert!(error_bound(1.0, FINE) < 1.2e-5 && error_bound(0.001, FINE) < 1.2e-6);
        Ok(())
    }

    #[test]
    fn only_what_a_query_sees_is_kept() -> Result<()> {
        let weights = Tensor::new(&[[0.25f32, 0.75, 7.], [0.5, f32::NAN, 0.]], &Device::Cpu)?; // (2, 3)
        for levels in [FINE, 254] {
            let back = decode(&encode(&weights, &[levels], usize::MAX, true)?);
            assert_eq!(back.len(), 5);
            assert!((back[1] - 0.75).abs() < 0.003 && back[3].is_nan() && back[4] == 0.0, "{back:?}");
        }
        Ok(())
    }

    #[test]
    fn a_head_too_large_has_fewer_levels() -> Result<()> {
        let weights: Vec<f32> = (0..4096u16).map(|i| f32::from(i % 97) / 97.0).collect();
        let weights = Tensor::new(weights, &Device::Cpu)?.unsqueeze(0)?;
        let levels = |room| -> Result<u16> { Ok(encode(&weights, &COARSE, room, true)?.levels) };
        assert_eq!([levels(usize::MAX)?, levels(0)?], [254, 62]);
        let full = encode(&weights, &COARSE, usize::MAX, true)?.text.len();
        assert_eq!([levels(full)?, levels(full - 1)?], [254, 126]);
        Ok(())
    }

    #[test]
    fn what_is_not_a_weight_is_refused() {
        for wrong in [-0.1f32, 1.1, f32::INFINITY] {
            let weights = Tensor::new(&[[wrong]], &Device::Cpu).expect("a tensor");
            let err = encode(&weights, &[FINE], usize::MAX, true).expect_err("refused").to_string();
            assert!(err.contains("between 0 and 1"), "{err}");
        }
        assert_eq!(code(1.0 + f32::EPSILON, FINE).expect("one"), FINE);
    }
}
