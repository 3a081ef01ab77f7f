//! What a program knows of the other processes.

use crate::error::Result;
use std::fmt::Debug;

/// A group of processes, each with a rank from 0. Every rank calls the same methods in the same order.
///
/// The required methods move bytes. [`dyn Group`](#impl-dyn+Group) has methods for numbers on top of them.
pub trait Group: Debug + Send + Sync {
    /// This process, from 0.
    fn rank(&self) -> usize;

    /// How many processes there are.
    fn size(&self) -> usize;

    /// Copies `data` from rank `root` to all others.
    ///
    /// # Shapes
    /// `data`: the same length on every rank
    ///
    /// # Errors
    /// When a rank does not answer.
    fn broadcast(&self, root: usize, data: &mut [u8]) -> Result<()>;

    /// Collects `mine` of every rank in `all`, one after the other in rank order.
    ///
    /// # Shapes
    /// `mine`: `lengths[rank]` bytes; `all`: the sum of `lengths`, which are the same on every rank
    ///
    /// # Errors
    /// When a length does not fit, or a rank does not answer.
    fn all_gather(&self, mine: &[u8], all: &mut [u8], lengths: &[usize]) -> Result<()>;

    /// Sends each rank its part of `parts`, and collects in `received` what the others send to this one, both in rank
    /// order.
    ///
    /// # Shapes
    /// `parts`: the sum of `lengths` bytes; `received`: the sum of `from`, where `from[r]` is what rank r has as
    /// `lengths[rank]`
    ///
    /// # Errors
    /// When a length does not fit, or a rank does not answer.
    fn all_to_all(&self, parts: &[u8], lengths: &[usize], received: &mut [u8], from: &[usize]) -> Result<()>;

    /// Waits until every rank is here.
    ///
    /// # Errors
    /// When a rank does not answer.
    fn barrier(&self) -> Result<()>;

    /// Ends this process, and with it the whole job, at once.
    fn abort(&self, exit_code: i32) -> !;

    /// The group in words, such as "2 ranks over Open MPI 4.1.4"; `None` for a process alone.
    fn describe(&self) -> Option<String>;
}
