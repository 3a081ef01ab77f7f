//! The sizes of tiles, and of the blocks that stay in registers.

use pulp::Simd;

/// Up to this many queries are computed row by row: packing the keys would cost more than it saves.
pub(super) const FEW_QUERIES: usize = 4;

/// Queries per tile, a multiple of every block height below. 24 rows of 192 scores fit in the first-level
/// cache together with the key panels in use, and each context sum is loaded once per 192 keys.
pub(super) const QUERIES: usize = 24;
/// Keys per step, a multiple of every panel width below.
pub(super) const KEYS: usize = 192;

/// A row keeps the reference maximum of its sums until a score exceeds it by more than this. 2^8 is
/// small compared with the range of f32, and rescaling becomes rare.
pub(super) const HEADROOM: f32 = 8.0;

/// A block of a matrix product.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) rows: usize,
    pub(super) vectors: usize,
}

/// A block of scores for 32 registers. M rows and N vectors need M·N accumulators, N vectors of the right-hand matrix
/// and one scalar of the left: 8·3 + 4.
pub(super) const WIDE_SCORES: Block = Block { rows: 8, vectors: 3 };
/// The same for 16 registers: 6·2 + 3.
pub(super) const NARROW_SCORES: Block = Block { rows: 6, vectors: 2 };
/// A block of row sums, such as the context, for 32 registers.
pub(super) const WIDE_SUMS: Block = Block { rows: 6, vectors: 4 };
/// The same for 16 registers.
pub(super) const NARROW_SUMS: Block = Block { rows: 6, vectors: 2 };

/// Which of the blocks above fit the registers of an instruction set.
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

    /// The number of rows in a block of scores.
    pub(super) fn rows(self) -> usize {
        self.scores().rows
    }

    /// The number of columns in a packed block of values.
    pub(super) fn columns<S: Simd>(self) -> usize {
        let sums = match self {
            Self::Wide => WIDE_SUMS,
            Self::Narrow => NARROW_SUMS,
        };
        sums.vectors * S::F32_LANES
    }

    /// The number of keys in a packed panel.
    pub(super) fn panel<S: Simd>(self) -> usize {
        self.scores().vectors * S::F32_LANES
    }
}
