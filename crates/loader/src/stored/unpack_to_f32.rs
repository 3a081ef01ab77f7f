//! [`Packed`]: quantized blocks of ggml that become f32 when they are read, because there are no products for them.

use super::bytes::Bytes;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{Device, Result, bail};
use half::f16;
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

/// A type of blocks, under ggml's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Packed {
    /// 4 bits, a scale and a smallest number for 32.
    Q4_1,
    /// 5 bits, a scale and a smallest number for 32.
    Q5_1,
    /// 2.6 bits in 16 parts of 256.
    Q2K,
    /// 3.4 bits in 16 parts of 256.
    Q3K,
    /// 8 bits and a scale in f32 for 256.
    Q8K,
    /// 4 bits that stand for 16 uneven steps, and a scale for 32.
    Iq4Nl,
    /// 4 bits that stand for 16 uneven steps, and a scale for each 32 of 256.
    Iq4Xs,
    /// 4 bits that are small floats, and a power of 2 for 32.
    Mxfp4,
}

/// The steps of `IQ4_NL` and `IQ4_XS`.
const UNEVEN: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];
/// The floats of `MXFP4`: a sign, two bits of exponent and one of mantissa.
const FLOATS: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

impl Packed {
    /// The numbers of a block.
    #[must_use]
    pub fn block_len(self) -> usize {
        match self {
            Self::Q4_1 | Self::Q5_1 | Self::Iq4Nl | Self::Mxfp4 => 32,
            Self::Q2K | Self::Q3K | Self::Q8K | Self::Iq4Xs => 256,
        }
    }

    /// The bytes of a block.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        match self {
            Self::Q4_1 => 20,
            Self::Q5_1 => 24,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q8K => 292,
            Self::Iq4Nl => 18,
            Self::Iq4Xs => 136,
            Self::Mxfp4 => 17,
        }
    }

    /// The bytes of this many numbers, if they are whole blocks.
    pub(super) fn bytes_of(self, numbers: usize) -> Option<usize> {
        let blocks = numbers / self.block_len();
        numbers.is_multiple_of(self.block_len()).then(|| blocks.checked_mul(self.block_bytes())).flatten()
    }

    /// The numbers of the blocks in a part of a file.
    pub(super) fn unpack(self, bytes: &Bytes, range: Range<usize>) -> Result<Vec<f32>> {
        // Candle asks for the alignment of its blocks, which hold f32 at the most.
        let mut words = vec![0u64; range.len().div_ceil(8)];
        let blocks = &mut bytemuck::cast_slice_mut(&mut words)[..range.len()];
        bytes.read_at(range.start, blocks)?;
        let kind = match self {
            Self::Q4_1 => GgmlDType::Q4_1,
            Self::Q5_1 => GgmlDType::Q5_1,
            Self::Q2K => GgmlDType::Q2K,
            Self::Q3K => GgmlDType::Q3K,
            Self::Q8K => GgmlDType::Q8K,
            Self::Iq4Nl => return self.each(blocks, iq4_nl),
            Self::Iq4Xs => return self.each(blocks, iq4_xs),
            Self::Mxfp4 => return self.each(blocks, mxfp4),
        };
        let numbers = range.len() / self.block_bytes() * self.block_len();
        let storage = QStorage::from_data(Cow::Borrowed(blocks), &Device::Cpu, kind)?;
        QTensor::new(storage, numbers)?.dequantize(&Device::Cpu)?.to_vec1()
    }

    /// The numbers of each block in turn.
    fn each(self, blocks: &[u8], unpack: impl Fn(&[u8], &mut Vec<f32>)) -> Result<Vec<f32>> {
        if !blocks.len().is_multiple_of(self.block_bytes()) {
            bail!("{} bytes are no whole blocks of {self}", blocks.len());
        }
        let mut out = Vec::with_capacity(blocks.len() / self.block_bytes() * self.block_len());
        blocks.chunks_exact(self.block_bytes()).for_each(|block| unpack(block, &mut out));
        Ok(out)
    }
}

/// The numbers of 16 bytes: those of the low halves, then those of the high halves.
fn halves(bytes: &[u8], table: &[f32; 16], scale: f32, out: &mut Vec<f32>) {
    out.extend(bytes.iter().map(|byte| scale * table[usize::from(byte & 15)]));
    out.extend(bytes.iter().map(|byte| scale * table[usize::from(byte >> 4)]));
}

fn iq4_nl(block: &[u8], out: &mut Vec<f32>) {
    let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
    halves(&block[2..], &UNEVEN, scale, out);
}

/// A scale, the high 2 bits of eight 6-bit scales, their low 4 bits, and the numbers.
fn iq4_xs(block: &[u8], out: &mut Vec<f32>) {
    let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
    let high = u16::from_le_bytes([block[2], block[3]]);
    for (part, bytes) in block[8..].chunks_exact(16).enumerate() {
        let low = block[4 + part / 2] >> (4 * (part % 2)) & 15;
        let six_bits = u16::from(low) | (high >> (2 * part) & 3) << 4;
        halves(bytes, &UNEVEN, scale * (f32::from(six_bits) - 32.0), out);
    }
}

fn mxfp4(block: &[u8], out: &mut Vec<f32>) {
    let scale = 2f32.powi(i32::from(block[0]) - 127);
    halves(&block[1..], &FLOATS, scale, out);
}

impl fmt::Display for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Q4_1 => "Q4_1",
            Self::Q5_1 => "Q5_1",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q8K => "Q8_K",
            Self::Iq4Nl => "IQ4_NL",
            Self::Iq4Xs => "IQ4_XS",
            Self::Mxfp4 => "MXFP4",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Random blocks as the Python package gguf unpacks them.
    #[test]
    fn blocks_are_unpacked_as_llama_cpps_package_does() -> anyhow::Result<()> {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/brought/packed.safetensors");
        let file = std::fs::read(file)?;
        let reference = safetensors::SafeTensors::deserialize(&file)?;
        for kind in [
            Packed::Q4_1,
            Packed::Q5_1,
            Packed::Q2K,
            Packed::Q3K,
            Packed::Iq4Nl,
            Packed::Iq4Xs,
            Packed::Mxfp4,
        ] {
            let blocks = reference.tensor(&format!("{kind}.blocks"))?.data().to_vec();
            let expected = reference.tensor(&format!("{kind}.values"))?.data().to_vec();
            let (expected, _) = expected.as_chunks::<4>();
            let whole = 0..blocks.len();
            let found = kind.unpack(&Bytes::InMemory(Arc::new(blocks)), whole)?;
            assert_eq!(found.len(), expected.len(), "{kind}");
            for (found, expected) in found.iter().zip(expected) {
                let expected = f32::from_le_bytes(*expected);
                assert!((found - expected).abs() <= 1e-6 * expected.abs(), "{kind}: {found} {expected}");
            }
            let numbers = 4 * kind.block_len();
            assert_eq!(kind.bytes_of(numbers), Some(4 * kind.block_bytes()));
            assert_eq!(kind.bytes_of(numbers + 1), None);
        }
        Ok(())
    }
}
