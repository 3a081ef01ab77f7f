//! The weights of a layer in panels.

use super::activations::BLOCK;
use super::codes::{Code, PANEL, code_at, put_codes, with_code};
use super::format::BlockFormat;
use super::vectors::Portable;
use crate::product::memory::Lines;
use candle_core::Result;
use rayon::prelude::*;
use std::ops::Range;

/// Quantized weights (depth, width) in panels of 16 outputs. Outputs that fill the last panel up are 0.
pub(crate) struct Panels {
    lines: Lines<u8>,
    format: BlockFormat,
    depth: usize,
    width: usize,
}

/// The bytes of a cache line.
const LINE: usize = 64;

impl Panels {
    /// Packs rows of blocks on all threads: `read(outputs, room)` writes those of some outputs, one after the other.
    ///
    /// # Errors
    /// One of those of `read`.
    pub(crate) fn pack(
        format: BlockFormat,
        (depth, width): (usize, usize),
        read: impl Fn(Range<usize>, &mut [u8]) -> Result<()> + Sync,
    ) -> Result<Self> {
        let (bytes, row) = (panel_bytes(format, depth), depth / format.block_len() * format.block_bytes());
        let mut lines = Lines::zeroed(width.div_ceil(PANEL) * bytes);
        lines.as_mut_slice().par_chunks_mut(bytes).enumerate().try_for_each(|(panel, out)| {
            let outputs = panel * PANEL..((panel + 1) * PANEL).min(width);
            let (mut rows, mut codes) = (vec![0; outputs.len() * row], vec![0; depth]);
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

    /// Writes the weights of output `j`.
    pub(crate) fn output(&self, j: usize, out: &mut [f32]) {
        with_code!(self.format, C => self.output_of::<C>(j, out));
    }

    fn output_of<C: Code>(&self, j: usize, out: &mut [f32]) {
        assert!(j < self.width && out.len() <= self.depth);
        let (panel, output, blocks) = (self.panel(j / PANEL), j % PANEL, self.blocks());
        let (codes, scales) = panel.split_at(blocks * C::CODES);
        for (i, part) in out.chunks_mut(BLOCK / C::PARTS).enumerate() {
            let block = i / C::PARTS;
            #[allow(unsafe_code)]
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
