//! The weights of a layer in panels.

use super::activations::BLOCK;
use super::codes::{Code, PANEL, code_at, put_codes, with_code};
use super::format::BlockFormat;
use super::vectors::Portable;
use crate::product::memory::Lines;
use std::mem::MaybeUninit;

/// Quantised weights (depth, width) in panels of 16 outputs. Outputs that fill the last panel up are 0.
pub(super) struct Panels {
    lines: Lines<u8>,
    format: BlockFormat,
    depth: usize,
    width: usize,
}

/// The bytes of a cache line.
const LINE: usize = 64;

impl Panels {
    /// Packs the rows of blocks that `row(j, room)` gives for each output j: in `room`, or elsewhere.
    pub(super) fn pack<'a>(
        format: BlockFormat,
        (depth, width): (usize, usize),
        row: impl Fn(usize, &mut Vec<u8>) -> Option<&'a [u8]> + Sync,
    ) -> Self {
        let bytes = panel_bytes(format, depth);
        let fill = |panel: usize, out: &mut [MaybeUninit<u8>]| {
            out.fill(MaybeUninit::new(0));
            #[allow(unsafe_code)]
            // SAFETY: every byte was written.
            let out = unsafe { out.assume_init_mut() };
            let (mut room, mut codes) = (vec![], vec![0; depth]);
            for output in 0..PANEL.min(width - panel * PANEL) {
                let elsewhere = row(panel * PANEL + output, &mut room);
                put_row(format, elsewhere.unwrap_or(&room), output, &mut codes, out);
            }
        };
        #[allow(unsafe_code)]
        // SAFETY: `fill` writes every byte, and any byte is a u8.
        let lines = unsafe { Lines::filled(width.div_ceil(PANEL), bytes, fill) };
        Self { lines, format, depth, width }
    }

    pub(super) fn format(&self) -> BlockFormat {
        self.format
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// The number of outputs, without those added.
    pub(super) fn width(&self) -> usize {
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
    pub(super) fn output(&self, j: usize, out: &mut [f32]) {
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
