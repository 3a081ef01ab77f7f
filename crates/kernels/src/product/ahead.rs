//! Which memory to fetch while the tiles of a strip are computed.

use std::ops::Range;

/// The numbers of the panels that come next, piece by piece.
pub(super) struct Ahead(Range<*const u8>);

impl Ahead {
    pub(super) fn of<E>(panels: &[E]) -> Self {
        let Range { start, end } = panels.as_ptr_range();
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
