//! The gradient of what is added to the scores, which heads and rows of the batch may share.
//!
//! Heads that share numbers add to them in turn, tile by tile: head n follows head n - 1 at the distance of a tile, and every
//! sum has the same order for any number of threads, without memory for more than the sums.

use super::problem::HeadAt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The sums, and how far each head has come.
pub(super) struct AddedGradient {
    /// (B or 1, H or 1, T, S)
    numbers: Vec<f32>,
    dims: [usize; 4],
    /// H
    heads: usize,
    /// How many tiles each head has left behind it, (B·H).
    done: Vec<AtomicUsize>,
}

/// The sums as threads write to them.
pub(super) struct AddedSums<'a> {
    numbers: *mut f32,
    dims: [usize; 4],
    heads: usize,
    done: &'a [AtomicUsize],
}

// SAFETY: `Turn::add` is the only access, and turns do not overlap.
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
    pub(super) unsafe fn line_up(&'a self, HeadAt { b, h }: HeadAt) -> Turn<'a> {
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
        Turn { sums: self, first: slice * t * s, before, own: &self.done[n], tiles: 0 }
    }
}

/// A head's place in line.
pub(super) struct Turn<'a> {
    sums: &'a AddedSums<'a>,
    /// The head's first number.
    first: usize,
    before: Option<&'a AtomicUsize>,
    own: &'a AtomicUsize,
    tiles: usize,
}

impl Turn<'_> {
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

impl Drop for Turn<'_> {
    /// After the last tile nobody has to wait for this head. In a panic, the heads before it first have to leave the tiles that
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
