//! Which rank keeps the optimiser's state of which variables (`ZeRO` stage 1, Rajbhandari et al. 2020).
//!
//! Each rank has a run of whole variables in name order, about as many numbers as any other. Whole variables keep the
//! sums over one on one rank, so that their bits do not depend on the number of ranks.

use std::ops::Range;

/// The shares of all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shares {
    /// The variables of each rank.
    ranges: Vec<Range<usize>>,
    /// How many numbers each variable has.
    lengths: Vec<usize>,
}

/// Part of a variable that lies in a stretch of a share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) variable: usize,
    /// The part, in numbers of the variable.
    pub(crate) part: Range<usize>,
}

impl Shares {
    /// Shares out variables with these numbers of elements.
    pub(crate) fn new(lengths: Vec<usize>, ranks: usize) -> Self {
        // The smallest largest share, by bisection.
        let (mut low, mut high) = (lengths.iter().copied().max().unwrap_or(0), lengths.iter().sum::<usize>());
        while low < high {
            let most = usize::midpoint(low, high);
            if cut(&lengths, most).len() <= ranks { high = most } else { low = most + 1 }
        }
        let mut ranges = cut(&lengths, low);
        ranges.resize(ranks, lengths.len()..lengths.len());
        Self { ranges, lengths }
    }

    /// The variables of a rank.
    pub(crate) fn of(&self, rank: usize) -> Range<usize> {
        self.ranges[rank].clone()
    }

    /// The rank that has a variable.
    pub(crate) fn owner(&self, variable: usize) -> usize {
        self.ranges.iter().position(|range| range.contains(&variable)).unwrap_or(0)
    }

    /// How many numbers a rank has.
    pub(crate) fn length(&self, rank: usize) -> usize {
        self.lengths[self.of(rank)].iter().sum()
    }

    /// How many numbers the largest share has.
    pub(crate) fn largest(&self) -> usize {
        (0..self.ranges.len()).map(|rank| self.length(rank)).max().unwrap_or(0)
    }

    /// The pieces of a stretch of a rank's share, whose variables lie one after the other.
    pub(crate) fn pieces(&self, rank: usize, stretch: &Range<usize>) -> Vec<Piece> {
        let (mut pieces, mut start) = (vec![], 0);
        for variable in self.of(rank) {
            let end = start + self.lengths[variable];
            let (from, to) = (stretch.start.max(start), stretch.end.min(end));
            if from < to {
                pieces.push(Piece { variable, part: from - start..to - start });
            }
            start = end;
        }
        pieces
    }
}

/// The fewest runs of at most `most` numbers each; none is empty.
fn cut(lengths: &[usize], most: usize) -> Vec<Range<usize>> {
    let (mut ranges, mut start, mut sum) = (vec![], 0, 0);
    for (i, length) in lengths.iter().enumerate() {
        if sum + length > most && i > start {
            ranges.push(start..i);
            (start, sum) = (i, 0);
        }
        sum += length;
    }
    ranges.push(start..lengths.len());
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_has_one_owner_and_the_largest_share_is_as_small_as_it_can_be() {
        let lengths = vec![3, 1, 4, 1, 5, 9, 2, 6];
        for (ranks, largest) in [(1, 31), (2, 17), (3, 14), (4, 9), (8, 9), (20, 9)] {
            let shares = Shares::new(lengths.clone(), ranks);
            assert_eq!(shares.largest(), largest, "{ranks} ranks");
            let all: Vec<usize> = (0..ranks).flat_map(|rank| shares.of(rank)).collect();
            assert_eq!(all, (0..8).collect::<Vec<_>>(), "{ranks} ranks: in name order");
            assert!((0..8).all(|v| shares.of(shares.owner(v)).contains(&v)));
        }
        assert_eq!(Shares::new(vec![], 2).largest(), 0);
    }

    #[test]
    fn the_pieces_of_all_stretches_are_the_share() {
        let shares = Shares::new(vec![3, 1, 4, 1, 5, 9, 2, 6], 2);
        for rank in 0..2 {
            for size in [1, 2, 5, 100] {
                let mut found = vec![];
                for start in (0..shares.length(rank)).step_by(size) {
                    let end = (start + size).min(shares.length(rank));
                    for Piece { variable, part } in shares.pieces(rank, &(start..end)) {
                        found.extend(part.map(|i| (variable, i)));
                    }
                }
                let lengths = [3, 1, 4, 1, 5, 9, 2, 6];
                let all: Vec<_> =
                    shares.of(rank).flat_map(|v| (0..lengths[v]).map(move |i| (v, i))).collect();
                assert_eq!(found, all, "rank {rank}, stretches of {size}");
            }
        }
    }
}
