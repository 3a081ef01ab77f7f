//! How the work is cut: sizes of tiles, and of the blocks that stay in registers.

use pulp::Simd;

/// Up to this many queries are read row by row: packing the keys would cost more than it saves.
pub(super) const FEW_QUERIES: usize = 4;

/// Queries of a tile: a multiple of every block height below; 24 rows of 192 scores stay in the first-level
/// cache beside the panels that they meet, and a sum of the context is loaded once for 192 keys.
pub(super) const QUERIES: usize = 24;
/// Keys of a step: a multiple of every panel width below.
pub(super) const KEYS: usize = 192;

/// A row's sums stay under the maximum that they began with while no score is this far above it: 2^8 is
/// little beside what an f32 holds, and rescaling becomes rare.
pub(super) const HEADROOM: f32 = 8.0;

/// A block of a matrix product.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) rows: usize,
    pub(super) vectors: usize,
}

/// A block of scores where there are 32 registers. M rows and N vectors need M·N accumulators, N vectors of the right side
/// and one scalar of the left: 8·3 + 4.
pub(super) const WIDE_SCORES: Block = Block { rows: 8, vectors: 3 };
/// Of 16 registers: 6·2 + 3.
pub(super) const NARROW_SCORES: Block = Block { rows: 6, vectors: 2 };
/// A block of sums of rows, such as the context, where there are 32 registers.
pub(super) const WIDE_SUMS: Block = Block { rows: 6, vectors: 4 };
/// Of 16 registers.
pub(super) const NARROW_SUMS: Block = Block { rows: 6, vectors: 2 };

/// Which of the blocks above fill the registers of an instruction set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Blocks {
    Wide,
    Narrow,
}

impl Blocks {
    pub(super) fn of<S: Simd>() -> Self {
        if S::REGISTER_COUNT >= 32 { Self::Wide } else { Self::Narrow }
    }

    fn scores(self) -> Block {
        match self {
            Self::Wide => WIDE_SCORES,
            Self::Narrow => NARROW_SCORES,
        }
    }

    /// Rows of a block of scores.
    pub(super) fn rows(self) -> usize {
        self.scores().rows
    }

    /// Keys of a packed panel.
    pub(super) fn panel<S: Simd>(self) -> usize {
        self.scores().vectors * S::F32_LANES
    }
}
