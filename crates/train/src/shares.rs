//! Which rank keeps the optimizer's state of which numbers (`ZeRO` stage 1, Rajbhandari et al. 2020).
//!
//! The variables lie one after the other in name order, and each rank has as long a stretch as any other. A stretch begins
//! at a variable, or at a multiple of the chunks over which squares are summed, so that the bits of the norm of all gradients
//! do not depend on the number of ranks.

use std::ops::Range;

/// The shares of all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Where each rank's share begins, and the end of the last.
    bounds: Vec<usize>,
    /// Where each variable begins, and the end of the last.
    starts: Vec<usize>,
    chunk: usize,
}

/// Part of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) variable: usize,
    /// The part, in numbers of the variable.
    pub(crate) part: Range<usize>,
}

impl Shares {
    /// Shares out variables with these numbers of elements, cut at multiples of `chunk`.
    pub(crate) fn new(lengths: &[usize], ranks: usize, chunk: usize) -> Self {
        let mut starts = vec![0];
        for length in lengths {
            starts.push(starts[starts.len() - 1] + length);
        }
        let total = starts[lengths.len()];
        let bound = |rank: usize| {
            let even = total * rank / ranks;
            let variable = starts.partition_point(|start| *start <= even) - 1;
            // At the end, there is no variable left to cut.
            if variable == lengths.len() { total } else { even - (even - starts[variable]) % chunk }
        };
        Self { bounds: (0..=ranks).map(bound).collect(), starts, chunk }
    }

    /// The pieces of a rank's share.
    pub(crate) fn of(&self, rank: usize) -> Vec<Piece> {
        self.pieces(rank, &(0..self.length(rank)))
    }

    /// How many numbers a rank has.
    pub(crate) fn length(&self, rank: usize) -> usize {
        self.bounds[rank + 1] - self.bounds[rank]
    }

    /// How many numbers the largest share has.
    pub(crate) fn largest(&self) -> usize {
        (0..self.bounds.len() - 1).map(|rank| self.length(rank)).max().unwrap_or(0)
    }

    /// The pieces of a stretch of a rank's share.
    pub(crate) fn pieces(&self, rank: usize, stretch: &Range<usize>) -> Vec<Piece> {
        let (from, to) = (self.bounds[rank] + stretch.start, self.bounds[rank] + stretch.end);
        let first = self.starts.partition_point(|start| *start <= from).saturating_sub(1);
        let variables = (first..self.starts.len() - 1).take_while(|variable| self.starts[*variable] < to);
        let piece = |variable: usize| {
            let (start, end) = (self.starts[variable], self.starts[variable + 1]);
            Piece { variable, part: from.max(start) - start..to.min(end) - start }
        };
        variables.map(piece).filter(|piece| !piece.part.is_empty()).collect()
    }

    /// The sums over whole variables of what was summed over each chunk, one rank after the other.
    pub(crate) fn over_variables(&self, chunks: &[f64]) -> Vec<f64> {
        let mut rest = chunks;
        let sum = |pair: &[usize]| {
            let (of_variable, after) = rest.split_at((pair[1] - pair[0]).div_ceil(self.chunk));
            rest = after;
            of_variable.iter().sum()
        };
        self.starts.windows(2).map(sum).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: [usize; 8] = [3, 1, 4, 1, 5, 9, 2, 6];

    #[test]
    fn the_shares_are_even_but_for_a_chunk_and_hold_everything_once() {
        for (ranks, chunk) in [(1, 4), (2, 4), (3, 2), (4, 1), (8, 3), (40, 1), (5, 100)] {
            let shares = Shares::new(&LENGTHS, ranks, chunk);
            assert!(chunk == 100 || shares.largest() < 31_usize.div_ceil(ranks) + chunk, "{ranks} {chunk}");
            let mut found = vec![];
            for rank in 0..ranks {
                for Piece { variable, part } in shares.of(rank) {
                    assert!(part.start % chunk == 0, "{ranks} ranks: {part:?} does not begin with a chunk");
                    found.extend(part.map(|i| (variable, i)));
                }
            }
            let all: Vec<_> = (0..8).flat_map(|v| (0..LENGTHS[v]).map(move |i| (v, i))).collect();
            assert_eq!(found, all, "{ranks} ranks, chunks of {chunk}");
        }
        assert_eq!(Shares::new(&[], 2, 4).largest(), 0);
    }

    #[test]
    fn the_pieces_of_all_stretches_are_the_share() {
        let shares = Shares::new(&LENGTHS, 3, 2);
        for rank in 0..3 {
            let whole: Vec<_> =
                shares.of(rank).into_iter().flat_map(|p| p.part.map(move |i| (p.variable, i))).collect();
            for size in [1, 2, 5, 100] {
                let mut found = vec![];
                for start in (0..shares.length(rank)).step_by(size) {
                    let end = (start + size).min(shares.length(rank));
                    for Piece { variable, part } in shares.pieces(rank, &(start..end)) {
                        found.extend(part.map(|i| (variable, i)));
                    }
                }
                assert_eq!(found, whole, "rank {rank}, stretches of {size}");
            }
        }
    }

    #[test]
    fn sums_over_chunks_become_sums_over_variables() {
        let shares = Shares::new(&[3, 1, 5], 2, 2);
        // Chunks of 2 and 1, 1, and 2, 2 and 1 numbers.
        assert_eq!(shares.over_variables(&[1., 2., 3., 4., 5., 6.]), [3., 3., 15.]);
    }
}
