//! The gradient of the added scores, which heads and rows of the batch may share.
//!
//! Heads that share numbers add to them in turn, tile by tile: head n follows head n - 1 at the distance of a tile, and every
//! sum has the same order for any number of threads, without memory for more than the sums.

use super::views::HeadAt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The sums, and how far each head has come.
pub(super) struct AddedGradient {
    /// (B or 1, H or 1, T, S)
    numbers: Vec<f32>,
    dims: [usize; 4],
    /// H
    heads: usize,
    /// The number of tiles that each head has finished, (B·H).
    done: Vec<AtomicUsize>,
}

/// The sums as threads write to them.
pub(super) struct AddedSums<'a> {
    numbers: *mut f32,
    dims: [usize; 4],
    heads: usize,
    done: &'a [AtomicUsize],
}

// SAFETY: `PlaceInLine::add` is the only access, and turns do not overlap.
unsafe impl Sync for AddedSums<'_> {}

impl AddedGradient {
    /// Zeros of `dims` (B or 1, H or 1, T, S), for B rows of H heads.
    pub(super) fn new(dims: [usize; 4], batch: usize, heads: usize) -> Self {
        let done = (0..batch * heads).map(|_| AtomicUsize::new(0)).collect();
        Self { numbers: vec![0.0; dims.iter().product()], dims, heads, done }
    }

    pub(super) fn sums(&mut self) -> AddedSums<'_> {
        let Self { numbers, dims, heads, done } = self;
        AddedSums { numbers: numbers.as_mut_ptr(), dims: *dims, heads: *heads, done }
    }

    pub(super) fn into_numbers(self) -> Vec<f32> {
        self.numbers
    }
}

impl<'a> AddedSums<'a> {
    /// A head's place in line. A thread must start heads in order: then each waits for heads that run.
    ///
    /// # Safety
    /// No two calls name the same head, and all heads go through the same tiles in the same order, none of which overlap.
    pub(super) unsafe fn line_up(&'a self, HeadAt { b, h }: HeadAt) -> PlaceInLine<'a> {
        let [of_b, of_h, t, s] = self.dims;
        let n = b * self.heads + h;
        let [own_row, own_head] = [of_b > 1, of_h > 1];
        // The nearest earlier head with the same numbers.
        let before = match (own_row, own_head) {
            (false, false) => n.checked_sub(1),
            (false, true) => n.checked_sub(self.heads),
            (true, false) => (h > 0).then(|| n - 1),
            (true, true) => None,
        };
        let slice = if own_row { b * of_h } else { 0 } + if own_head { h } else { 0 };
        let before = before.map(|before| &self.done[before]);
        PlaceInLine { sums: self, first: slice * t * s, before, own: &self.done[n], tiles: 0 }
    }
}

/// A head's place in line.
pub(super) struct PlaceInLine<'a> {
    sums: &'a AddedSums<'a>,
    /// The head's first number.
    first: usize,
    before: Option<&'a AtomicUsize>,
    own: &'a AtomicUsize,
    tiles: usize,
}

impl PlaceInLine<'_> {
    /// Waits until the head before this one has left the next tile.
    pub(super) fn wait(&self) {
        let Some(before) = self.before else { return };
        while before.load(Ordering::Acquire) <= self.tiles {
            thread::yield_now();
        }
    }

    /// Adds to the numbers of query `i` from key `start` on.
    ///
    /// # Safety
    /// The numbers belong to the tile that the head has waited for and not left.
    #[inline(always)]
    pub(super) unsafe fn add(&mut self, i: usize, start: usize, d_scores: &[f32]) {
        let [_, _, t, s] = self.sums.dims;
        assert!(i < t && start + d_scores.len() <= s);
        // SAFETY: the row is inside the head's numbers, and nobody else reads or writes this part of it before the head
        // leaves the tile.
        let row = unsafe {
            let first = self.sums.numbers.add(self.first + i * s + start);
            std::slice::from_raw_parts_mut(first, d_scores.len())
        };
        for (sum, x) in row.iter_mut().zip(d_scores) {
            *sum += x;
        }
    }

    /// Lets the next head into the tile.
    pub(super) fn leave(&mut self) {
        self.tiles += 1;
        self.own.store(self.tiles, Ordering::Release);
    }
}

impl Drop for PlaceInLine<'_> {
    /// After the last tile no head has to wait for this one. In a panic, the heads before it first have to leave the tiles that
    /// the next head would enter.
    fn drop(&mut self) {
        if thread::panicking()
            && let Some(before) = self.before
        {
            while before.load(Ordering::Acquire) != usize::MAX {
                thread::yield_now();
            }
        }
        self.own.store(usize::MAX, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::atomic::AtomicBool;

    /// A head adds to its own part of the numbers, and follows the nearest earlier head that shares this part.
    #[test]
    fn a_head_follows_the_nearest_one_with_the_same_numbers() {
        let (batch, heads, t, s) = (2, 3, 4, 5);
        for (of_b, of_h) in [(1, 1), (1, heads), (batch, 1), (batch, heads)] {
            let mut gradient = AddedGradient::new([of_b, of_h, t, s], batch, heads);
            let sums = gradient.sums();
            let places: Vec<HeadAt> =
                (0..batch).flat_map(|b| (0..heads).map(move |h| HeadAt { b, h })).collect();
            let slice = |at: &HeadAt| (at.b.min(of_b - 1), at.h.min(of_h - 1));
            for (n, place) in places.iter().enumerate() {
                // SAFETY: each head once, and none goes through a tile.
                let turn = unsafe { sums.line_up(*place) };
                let (b, h) = slice(place);
                assert_eq!(turn.first, (b * of_h + h) * t * s);
                let expected = places[..n].iter().rposition(|earlier| slice(earlier) == (b, h));
                let found = turn.before.map(|before| sums.done.iter().position(|x| std::ptr::eq(x, before)));
                assert_eq!(found, expected.map(Some), "{of_b}, {of_h}, head {n}");
            }
        }
    }

    /// Three heads go through many tiles on threads of their own.
    #[test]
    fn a_head_enters_a_tile_after_the_one_before_it_has_left() {
        let tiles = 2000;
        let mut gradient = AddedGradient::new([1, 1, tiles, 1], 1, 3);
        let sums = &gradient.sums();
        let left: Vec<Vec<AtomicBool>> =
            (0..3).map(|_| (0..tiles).map(|_| AtomicBool::new(false)).collect()).collect();
        let left = &left;
        thread::scope(|scope| {
            for h in 0..3 {
                scope.spawn(move || {
                    // SAFETY: each head once, through the same tiles.
                    let mut turn = unsafe { sums.line_up(HeadAt { b: 0, h }) };
                    for (tile, own) in left[h].iter().enumerate() {
                        turn.wait();
                        assert!(h == 0 || left[h - 1][tile].load(Ordering::Relaxed), "head {h}, tile {tile}");
                        // SAFETY: the head has waited for the tile and not left it.
                        unsafe { turn.add(tile, 0, &[1.0]) };
                        own.store(true, Ordering::Relaxed);
                        turn.leave();
                    }
                });
            }
        });
        assert_eq!(gradient.into_numbers(), vec![3.0; tiles]);
    }

    #[test]
    fn a_head_that_panics_lets_the_next_one_in_after_those_before_it() {
        let mut gradient = AddedGradient::new([1, 1, 1, 1], 1, 3);
        let sums = &gradient.sums();
        let first_is_through = &AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(move || {
                // SAFETY: each head once, through one tile.
                let mut turn = unsafe { sums.line_up(HeadAt { b: 0, h: 0 }) };
                turn.wait();
                first_is_through.store(true, Ordering::Relaxed);
                turn.leave();
            });
            scope.spawn(move || {
                let panics = || {
                    // SAFETY: as above.
                    let _turn = unsafe { sums.line_up(HeadAt { b: 0, h: 1 }) };
                    resume_unwind(Box::new(()));
                };
                assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
            });
            scope.spawn(move || {
                // SAFETY: as above.
                let turn = unsafe { sums.line_up(HeadAt { b: 0, h: 2 }) };
                turn.wait();
                assert!(first_is_through.load(Ordering::Relaxed));
            });
        });
    }
}
