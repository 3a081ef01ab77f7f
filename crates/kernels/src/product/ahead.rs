//! Which memory to fetch while the tiles of a strip are computed.

use std::ops::Range;

/// The numbers of the panels that come next, piece by piece.
pub(super) struct Ahead(Range<*const u8>);

impl Ahead {
    /// The first `count` of `later`, or all if there are fewer.
    pub(super) fn of<E>(later: &[E], count: usize) -> Self {
        let Range { start, end } = later[..count.min(later.len())].as_ptr_range();
        Self(start.cast()..end.cast())
    }

    /// Where the next piece of so many bytes begins, if there is one.
    #[inline(always)]
    pub(super) fn next(&mut self, bytes: usize) -> Option<*const u8> {
        let at = self.0.start;
        self.0.start = at.wrapping_add(bytes);
        (at < self.0.end).then_some(at)
    }
}
