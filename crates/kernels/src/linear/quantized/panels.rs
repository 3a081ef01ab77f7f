//! The weights of a layer in panels of sixteen outputs: one layout for all instruction sets.
//!
//! A panel is its codes, block after block of 32 inputs, then its scales. Codes lie in groups of 64 bytes: 4 neighboring
//! inputs of each of the 16 outputs. A group of codes of 4 bits holds 8 inputs, the first 4 in the lower bits.

use super::format::{BlockFormat, six_bits};
use super::portable::{BLOCK, Portable, Vectors};
use crate::cpu::memory::{CacheLines, LINE};
use crate::linear::product::numbers::PANEL;
use candle_core::Result;
use half::f16;
use rayon::prelude::*;
use std::ops::Range;

/// The bytes of a group of codes.
pub(super) const GROUP: usize = 4 * PANEL;

/// The number of blocks of 32 in a block of 256.
const LARGE: usize = 8;

/// Calls `$body` with the [`PanelFormat`] that holds `$format`.
macro_rules! with_code {
    ($format:expr, $code:ident => $body:expr) => {
        match $format {
            BlockFormat::Q8_0 | BlockFormat::Q5_0 => {
                type $code = $crate::linear::quantized::panels::PlainBytes;
                $body
            }
            BlockFormat::Q4_0 => {
                type $code = $crate::linear::quantized::panels::Nibbles;
                $body
            }
            BlockFormat::Q6K => {
                type $code = $crate::linear::quantized::panels::ScaledBytes;
                $body
            }
            BlockFormat::Q4K => {
                type $code = $crate::linear::quantized::panels::WithMinima<true>;
                $body
            }
            BlockFormat::Q5K => {
                type $code = $crate::linear::quantized::panels::WithMinima<false>;
                $body
            }
        }
    };
}
pub(super) use with_code;

/// Quantized weights (depth, width) in panels of 16 outputs. Outputs that fill the last panel up are 0.
pub(crate) struct BlockPanels {
    lines: CacheLines<u8>,
    format: BlockFormat,
    depth: usize,
    width: usize,
}

impl BlockPanels {
    /// Packs rows of blocks on all threads: `read(outputs, room)` writes the rows of some outputs, one after the other.
    ///
    /// # Errors
    /// When `read` fails.
    pub(crate) fn pack(
        format: BlockFormat,
        (depth, width): (usize, usize),
        read: impl Fn(Range<usize>, &mut [u8]) -> Result<()> + Sync,
    ) -> Result<Self> {
        let bytes = panel_bytes(format, depth);
        let row = depth / format.block_len() * format.block_bytes();
        let mut lines = CacheLines::zeroed(width.div_ceil(PANEL) * bytes);
        lines.as_mut_slice().par_chunks_mut(bytes).enumerate().try_for_each(|(panel, out)| {
            let outputs = panel * PANEL..((panel + 1) * PANEL).min(width);
            let mut rows = vec![0; outputs.len() * row];
            let mut codes = vec![0; depth];
            read(outputs, &mut rows)?;
            for (output, row) in rows.chunks_exact(row).enumerate() {
                put_row(format, row, output, &mut codes, out);
            }
            Ok::<_, candle_core::Error>(())
        })?;
        Ok(Self { lines, format, depth, width })
    }

    pub(crate) fn format(&self) -> BlockFormat {
        self.format
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// The number of outputs, without those added.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// The blocks of 32 of each output.
    pub(super) fn blocks(&self) -> usize {
        self.depth / BLOCK
    }

    /// The bytes of a panel.
    pub(super) fn bytes(&self) -> usize {
        panel_bytes(self.format, self.depth)
    }

    /// Panel `i`.
    pub(super) fn panel(&self, i: usize) -> &[u8] {
        &self.lines.as_slice()[i * self.bytes()..][..self.bytes()]
    }

    /// Panel `i` and all after it, one every [`bytes`](Self::bytes).
    pub(super) fn panels_from(&self, i: usize) -> &[u8] {
        &self.lines.as_slice()[i * self.bytes()..]
    }

    /// Writes the weights of output `j`.
    pub(crate) fn output(&self, j: usize, out: &mut [f32]) {
        with_code!(self.format, C => self.output_of::<C>(j, out));
    }

    fn output_of<C: PanelFormat>(&self, j: usize, out: &mut [f32]) {
        assert!(j < self.width && out.len() <= self.depth);
        let panel = self.panel(j / PANEL);
        let output = j % PANEL;
        let blocks = self.blocks();
        let (codes, scales) = panel.split_at(blocks * C::CODES);
        for (i, part) in out.chunks_mut(BLOCK / C::PARTS).enumerate() {
            let block = i / C::PARTS;
            // SAFETY: the panel holds the scales of all blocks, and plain Rust needs nothing of the processor.
            let (scale, min) = unsafe {
                let scales = scales.as_ptr();
                (
                    C::scale::<Portable>(scales, block, i % C::PARTS, blocks)[output],
                    C::minimum::<Portable>(scales, block, blocks)[output],
                )
            };
            for (k, out) in (i * BLOCK / C::PARTS..).zip(part) {
                *out = scale * (i32::from(code_at::<C>(codes, k, output)) - C::OFFSET) as f32 - min;
            }
        }
    }
}

fn panel_bytes(format: BlockFormat, depth: usize) -> usize {
    let blocks = depth / BLOCK;
    with_code!(format, C => (blocks * C::CODES + C::scales_len(blocks)).next_multiple_of(LINE))
}

impl BlockFormat {
    /// The bits of a weight in memory, scales included.
    #[must_use]
    pub fn bits_in_memory(self) -> f64 {
        const DEPTH: usize = 1024; // whole blocks, and whole lines of each part
        8.0 * panel_bytes(self, DEPTH) as f64 / (DEPTH * PANEL) as f64
    }
}

/// Writes a row of blocks to its place in a panel. `codes` is working memory, as long as the row.
fn put_row(format: BlockFormat, row: &[u8], output: usize, codes: &mut [u8], panel: &mut [u8]) {
    let blocks = codes.len() / BLOCK;
    with_code!(format, C => {
        let (codes_out, scales_out) = panel.split_at_mut(blocks * C::CODES);
        let rows = row.chunks_exact(format.block_bytes()).zip(codes.chunks_exact_mut(format.block_len()));
        for (i, (block, codes)) in rows.enumerate() {
            format.codes(block, codes);
            C::put_scales(block, i, output, blocks, scales_out);
        }
        put_codes::<C>(codes, output, codes_out);
    });
}

/// The code format of a panel: by default, a block of 32 inputs has one scale in f16.
pub(super) trait PanelFormat: Copy + Send + Sync + 'static {
    /// Whether codes take 4 bits, and 8 otherwise.
    const NIBBLES: bool;
    /// Subtracted from each code before it is scaled.
    const OFFSET: i32;
    /// The scales of a block.
    const PARTS: usize = 1;
    /// Whether a minimum is subtracted from each weight.
    const MINIMA: bool = false;
    /// The bytes of the codes of a block.
    const CODES: usize = if Self::NIBBLES { BLOCK * PANEL / 2 } else { BLOCK * PANEL };

    /// The bytes of the scales of `blocks` blocks.
    fn scales_len(blocks: usize) -> usize {
        blocks * PANEL * size_of::<f16>()
    }

    /// Copies the scales of the file's block `from`, number `block` in the row of output `output`, to the scales of a panel of
    /// `blocks` blocks of 32.
    fn put_scales(from: &[u8], block: usize, output: usize, _blocks: usize, scales: &mut [u8]) {
        put_half(from, block, output, scales);
    }

    /// The scales of a part of a block.
    ///
    /// # Safety
    /// The conditions of [`Vectors`] hold; `scales` points to the scales of a panel of `blocks` blocks.
    #[inline(always)]
    unsafe fn scale<V: Vectors>(scales: *const u8, block: usize, _part: usize, _blocks: usize) -> V::Floats {
        // SAFETY: passed on.
        unsafe { V::load_f16(scales.add(block * PANEL * size_of::<f16>()).cast()) }
    }

    /// The minima of a block.
    ///
    /// # Safety
    /// The conditions of [`scale`](Self::scale) hold.
    #[inline(always)]
    unsafe fn minimum<V: Vectors>(_scales: *const u8, _block: usize, _blocks: usize) -> V::Floats {
        // SAFETY: passed on.
        unsafe { V::splat(0.0) }
    }
}

/// 8 bits, a scale in f16: `Q8_0` and `Q5_0`.
#[derive(Clone, Copy)]
pub(super) struct PlainBytes;

/// 4 bits, a scale in f16: `Q4_0`.
#[derive(Clone, Copy)]
pub(super) struct Nibbles;

/// 8 bits, two scales of 8 bits that share a factor in f16: `Q6_K`.
#[derive(Clone, Copy)]
pub(super) struct ScaledBytes;

/// 4 bits or 8, a scale and a minimum of 8 bits, each with a shared factor in f16: `Q4_K` and `Q5_K`.
#[derive(Clone, Copy)]
pub(super) struct WithMinima<const NIBBLES: bool>;

impl PanelFormat for PlainBytes {
    const NIBBLES: bool = false;
    const OFFSET: i32 = 128;
}

impl PanelFormat for Nibbles {
    const NIBBLES: bool = true;
    const OFFSET: i32 = 8;
}

/// The scale in f16 at the start of a block.
fn put_half(from: &[u8], block: usize, output: usize, scales: &mut [u8]) {
    let at = (block * PANEL + output) * size_of::<f16>();
    scales[at..at + 2].copy_from_slice(&from[..2]);
}

/// The scales of 16 outputs: the 8-bit scales at `small`, times the f16 scales that `block`'s block of 256 shares.
///
/// # Safety
/// The conditions of [`Vectors`] hold.
#[inline(always)]
unsafe fn scaled<V: Vectors>(small: *const u8, shared: *const u8, block: usize) -> V::Floats {
    // SAFETY: passed on.
    unsafe {
        let shared = V::load_f16(shared.add(block / LARGE * PANEL * size_of::<f16>()).cast());
        V::mul(shared, V::load_i8(small.cast()))
    }
}

impl PanelFormat for ScaledBytes {
    const NIBBLES: bool = false;
    const OFFSET: i32 = 128;
    const PARTS: usize = 2;

    fn scales_len(blocks: usize) -> usize {
        2 * blocks * PANEL + blocks / LARGE * PANEL * size_of::<f16>()
    }

    fn put_scales(from: &[u8], block: usize, output: usize, blocks: usize, scales: &mut [u8]) {
        let (small, shared) = scales.split_at_mut(2 * blocks * PANEL);
        for (i, scale) in from[192..208].iter().enumerate() {
            small[(2 * LARGE * block + i) * PANEL + output] = *scale;
        }
        put_half(&from[208..], block, output, shared);
    }

    #[inline(always)]
    unsafe fn scale<V: Vectors>(scales: *const u8, block: usize, part: usize, blocks: usize) -> V::Floats {
        // SAFETY: passed on.
        unsafe { scaled::<V>(scales.add((2 * block + part) * PANEL), scales.add(2 * blocks * PANEL), block) }
    }
}

impl<const NIBBLES: bool> PanelFormat for WithMinima<NIBBLES> {
    const NIBBLES: bool = NIBBLES;
    const OFFSET: i32 = if NIBBLES { 0 } else { 128 };
    const MINIMA: bool = true;

    fn scales_len(blocks: usize) -> usize {
        2 * blocks * PANEL + 2 * (blocks / LARGE) * PANEL * size_of::<f16>()
    }

    fn put_scales(from: &[u8], block: usize, output: usize, blocks: usize, scales: &mut [u8]) {
        let (small, shared) = scales.split_at_mut(2 * blocks * PANEL);
        for i in 0..LARGE {
            let (scale, min) = six_bits(from, i);
            let at = (LARGE * block + i) * PANEL + output;
            (small[at], small[blocks * PANEL + at]) = (scale, min);
        }
        let (scales, minima) = shared.split_at_mut(blocks / LARGE * PANEL * size_of::<f16>());
        put_half(from, block, output, scales);
        put_half(&from[2..], block, output, minima);
    }

    #[inline(always)]
    unsafe fn scale<V: Vectors>(scales: *const u8, block: usize, _: usize, blocks: usize) -> V::Floats {
        // SAFETY: passed on.
        unsafe { scaled::<V>(scales.add(block * PANEL), scales.add(2 * blocks * PANEL), block) }
    }

    #[inline(always)]
    unsafe fn minimum<V: Vectors>(scales: *const u8, block: usize, blocks: usize) -> V::Floats {
        let shared = 2 * blocks * PANEL + blocks / LARGE * PANEL * size_of::<f16>();
        // SAFETY: passed on.
        unsafe { scaled::<V>(scales.add((blocks + block) * PANEL), scales.add(shared), block) }
    }
}

/// Writes the codes of an output, 32 for each block, to the codes of a panel.
pub(super) fn put_codes<C: PanelFormat>(codes: &[u8], output: usize, panel: &mut [u8]) {
    if C::NIBBLES {
        for (eight, group) in codes.chunks_exact(8).zip(panel.chunks_exact_mut(GROUP)) {
            for (i, byte) in group[4 * output..][..4].iter_mut().enumerate() {
                *byte = eight[i] | eight[4 + i] << 4;
            }
        }
    } else {
        for (four, group) in codes.as_chunks::<4>().0.iter().zip(panel.as_chunks_mut::<GROUP>().0) {
            group.as_chunks_mut::<4>().0[output] = *four;
        }
    }
}

/// The code of input `k` of an output.
pub(super) fn code_at<C: PanelFormat>(panel: &[u8], k: usize, output: usize) -> u8 {
    if C::NIBBLES {
        panel[k / 8 * GROUP + 4 * output + k % 4] >> (k / 4 % 2 * 4) & 15
    } else {
        panel[k / 4 * GROUP + 4 * output + k % 4]
    }
}
