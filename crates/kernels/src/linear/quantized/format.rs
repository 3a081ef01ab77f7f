//! [`BlockFormat`]: how GGUF files hold quantized weights, in blocks that share a scale.
//!
//! The layouts are those of ggml's `block_q8_0`, `block_q4_0`, `block_q5_0`, `block_q4_K`, `block_q5_K` and `block_q6_K`.

use candle_core::Result;
use half::f16;
use std::fmt;
use std::str::FromStr;

/// A format of quantized weights. Each weight is `scale·(code − offset)`, or `scale·code − minimum` in [`Q4K`](Self::Q4K) and
/// [`Q5K`](Self::Q5K).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockFormat {
    /// 4 bits, blocks of 32 with a scale in f16: 4.5 bits a weight.
    Q4_0,
    /// 5 bits, blocks of 32 with a scale in f16: 5.5 bits a weight.
    Q5_0,
    /// 8 bits, blocks of 32 with a scale in f16: 8.5 bits a weight.
    Q8_0,
    /// 4 bits, blocks of 256 in eight parts, each with a scale and a minimum of 6 bits: 4.5 bits a weight.
    Q4K,
    /// 5 bits, blocks of 256 in eight parts, each with a scale and a minimum of 6 bits: 5.5 bits a weight.
    Q5K,
    /// 6 bits, blocks of 256 in sixteen parts, each with a scale of 8 bits: 6.5625 bits a weight.
    Q6K,
}

impl BlockFormat {
    /// Every format.
    pub const ALL: &[Self] = &[Self::Q4_0, Self::Q5_0, Self::Q8_0, Self::Q4K, Self::Q5K, Self::Q6K];

    /// The name in lower case, as llama.cpp writes it: `q8_0`, `q4_K`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Q4_0 => "q4_0",
            Self::Q5_0 => "q5_0",
            Self::Q8_0 => "q8_0",
            Self::Q4K => "q4_K",
            Self::Q5K => "q5_K",
            Self::Q6K => "q6_K",
        }
    }

    /// The number of weights in a block: 32 or 256. It divides the inputs of a layer.
    #[must_use]
    pub fn block_len(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// The bytes of a block.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        match self {
            Self::Q4_0 => 18,
            Self::Q5_0 => 22,
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Refuses a number of inputs that blocks do not divide.
    ///
    /// # Errors
    /// Names the format and the length of its blocks.
    pub fn check_inputs(self, n_in: usize) -> Result<()> {
        let len = self.block_len();
        if n_in > 0 && n_in.is_multiple_of(len) {
            return Ok(());
        }
        candle_core::bail!(
            "{self} has blocks of {len} weights, which do not divide the {n_in} inputs of the layer"
        )
    }

    /// The bytes of `weights` weights; `None` if they do not fill whole blocks, or are too many.
    #[must_use]
    pub fn bytes_of(self, weights: usize) -> Option<usize> {
        let whole = weights.is_multiple_of(self.block_len());
        whole.then(|| (weights / self.block_len()).checked_mul(self.block_bytes())).flatten()
    }

    /// The weights that whole blocks hold.
    ///
    /// # Panics
    /// When `bytes` are not the blocks of `out.len()` weights.
    pub fn dequantize(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(self.bytes_of(out.len()), Some(bytes.len()), "whole blocks");
        let mut codes = [0; 256];
        for (block, out) in bytes.chunks_exact(self.block_bytes()).zip(out.chunks_exact_mut(self.block_len()))
        {
            self.codes(block, &mut codes[..self.block_len()]);
            let parts = out.chunks_exact_mut(self.part()).zip(codes.chunks_exact(self.part()));
            for (i, (out, codes)) in parts.enumerate() {
                let scale = self.scale(block, i);
                let min = self.minimum(block, i);
                for (out, code) in out.iter_mut().zip(codes) {
                    *out = scale * (f32::from(*code) - self.offset()) - min;
                }
            }
        }
    }

    /// The number of weights that share a scale.
    pub(super) fn part(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 | Self::Q4K | Self::Q5K => 32,
            Self::Q6K => 16,
        }
    }

    /// Subtracted from a code before it is scaled.
    pub(super) fn offset(self) -> f32 {
        match self {
            Self::Q4_0 => 8.0,
            Self::Q5_0 | Self::Q8_0 | Self::Q5K | Self::Q6K => 128.0,
            Self::Q4K => 0.0,
        }
    }

    /// The scale of part `i` of a block: exact, because the product of the numbers that make it has at most 19 bits.
    fn scale(self, block: &[u8], i: usize) -> f32 {
        match self {
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 => half_at(block, 0),
            Self::Q4K | Self::Q5K => half_at(block, 0) * f32::from(six_bits(block, i).0),
            Self::Q6K => half_at(block, 208) * f32::from(block[192 + i].cast_signed()),
        }
    }

    /// Subtracted from every weight of part `i`.
    fn minimum(self, block: &[u8], i: usize) -> f32 {
        match self {
            Self::Q4K | Self::Q5K => half_at(block, 2) * f32::from(six_bits(block, i).1),
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 | Self::Q6K => 0.0,
        }
    }

    /// The codes of a block, in the order of its weights.
    pub(super) fn codes(self, block: &[u8], out: &mut [u8]) {
        match self {
            Self::Q8_0 => {
                for (out, code) in out.iter_mut().zip(&block[2..34]) {
                    *out = code ^ 0x80; // as a number with a sign, plus 128
                }
            }
            Self::Q4_0 => nibbles(&block[2..18], out),
            Self::Q5_0 => {
                nibbles(&block[6..22], out);
                let fifth = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
                for (i, out) in out.iter_mut().enumerate() {
                    let bit = u8::from(fifth >> i & 1 == 1);
                    *out = *out + (bit << 4) + (128 - 16);
                }
            }
            Self::Q4K => {
                for (out, codes) in out.chunks_exact_mut(64).zip(block[16..144].chunks_exact(32)) {
                    nibbles(codes, out);
                }
            }
            Self::Q5K => {
                let fifth = &block[16..48];
                let low = &block[48..176];
                for (out, codes) in out.chunks_exact_mut(64).zip(low.chunks_exact(32)) {
                    nibbles(codes, out);
                }
                for (part, out) in out.chunks_exact_mut(32).enumerate() {
                    for (out, bits) in out.iter_mut().zip(fifth) {
                        *out = (*out | (bits >> part & 1) << 4) + 128;
                    }
                }
            }
            Self::Q6K => {
                for (half, out) in out.chunks_exact_mut(128).enumerate() {
                    let low = &block[half * 64..][..64];
                    let high = &block[128 + half * 32..][..32];
                    for (quarter, out) in out.chunks_exact_mut(32).enumerate() {
                        for (l, out) in out.iter_mut().enumerate() {
                            let low = low[quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
                            let high = high[l] >> (2 * quarter) & 3;
                            *out = (low | high << 4) + (128 - 32);
                        }
                    }
                }
            }
        }
    }
}

/// The lower four bits of each byte, then the upper ones.
fn nibbles(bytes: &[u8], out: &mut [u8]) {
    let (low, high) = out.split_at_mut(bytes.len());
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
}

/// The scale and the minimum of part `i` of a block of `Q4_K` or `Q5_K`, before they are scaled themselves.
pub(super) fn six_bits(block: &[u8], i: usize) -> (u8, u8) {
    let packed = &block[4..16];
    if i < 4 {
        (packed[i] & 63, packed[i + 4] & 63)
    } else {
        let both = packed[i + 4];
        let scale = packed[i - 4];
        let min = packed[i];
        ((both & 15) | (scale >> 6) << 4, (both >> 4) | (min >> 6) << 4)
    }
}

/// The half at byte `at` of a block.
pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for BlockFormat {
    type Err = candle_core::Error;

    fn from_str(name: &str) -> candle_core::Result<Self> {
        let found = Self::ALL.iter().copied().find(|format| format.as_str().eq_ignore_ascii_case(name));
        let names = || Self::ALL.iter().map(|format| format.as_str()).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| candle_core::Error::msg(format!("format {name:?}: expected one of {}", names())))
    }
}
