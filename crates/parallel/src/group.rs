//! The interface to the other processes, and what any group of them can do with it: exchange numbers and texts, by
//! exchanges of bytes, and find out whether all ranks do the same work.

use crate::error::{Error, Result};
use std::fmt::Debug;

/// Values summed at a time: 25 MB of f32.
const BUCKET: usize = 25_000_000 / size_of::<f32>();

/// A group of processes, each with a rank from 0. Every rank calls the same methods in the same order.
///
/// The required methods move bytes. [`dyn Group`](#impl-dyn+Group) has methods for numbers on top of them.
pub trait Group: Debug + Send + Sync {
    /// This process, from 0.
    fn rank(&self) -> usize;

    /// The number of processes.
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

impl dyn Group + '_ {
    /// Adds the values of all ranks, in rank order: the bits depend neither on the library nor on the network.
    ///
    /// # Shapes
    /// `values`: the same length on every rank
    ///
    /// # Errors
    /// When a rank does not answer.
    pub fn all_reduce(&self, values: &mut [f32]) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        values.chunks_mut(BUCKET).try_for_each(|bucket| self.reduce_bucket(bucket))
    }

    /// Each rank adds one part of the bucket, and all collect the sums.
    fn reduce_bucket(&self, bucket: &mut [f32]) -> Result<()> {
        let size = self.size();
        let lengths: Vec<usize> =
            (0..size).map(|r| bucket.len() * (r + 1) / size - bucket.len() * r / size).collect();
        let sum = self.sum_own_part(bucket, &lengths)?;
        let bytes: Vec<usize> = lengths.iter().map(|length| 4 * length).collect();
        self.all_gather(bytemuck::cast_slice(&sum), bytemuck::cast_slice_mut(bucket), &bytes)
    }

    /// The sum, in rank order, of what all ranks have for this one. `parts` are one after the other: `lengths[r]` numbers for
    /// rank r, the same number on every rank.
    pub(crate) fn sum_own_part(&self, parts: &[f32], lengths: &[usize]) -> Result<Vec<f32>> {
        let length = lengths[self.rank()];
        let size = self.size();
        let bytes: Vec<usize> = lengths.iter().map(|length| 4 * length).collect();
        let mut received = vec![0f32; length * size];
        let place = bytemuck::cast_slice_mut(&mut received);
        self.all_to_all(bytemuck::cast_slice(parts), &bytes, place, &vec![4 * length; size])?;
        let (sum, others) = received.split_at_mut(length);
        for other in others.chunks_exact(length.max(1)) {
            sum.iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
        }
        received.truncate(length);
        Ok(received)
    }

    /// Collects the bytes of every rank, in rank order. The lengths may differ.
    ///
    /// # Errors
    /// When a rank does not answer.
    pub fn gather_bytes(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lengths = self.gather_one(mine.len())?;
        let mut all = vec![0; lengths.iter().sum()];
        self.all_gather(mine, &mut all, &lengths)?;
        let mut rest = &all[..];
        let part = |length: &usize| {
            let (part, after) = rest.split_at(*length);
            rest = after;
            part.to_vec()
        };
        Ok(lengths.iter().map(part).collect())
    }

    /// One number of every rank, in rank order.
    ///
    /// # Errors
    /// When a rank does not answer.
    pub fn gather_one<T: bytemuck::Pod>(&self, mine: T) -> Result<Vec<T>> {
        let mut all = vec![T::zeroed(); self.size()];
        let lengths = vec![size_of::<T>(); self.size()];
        self.all_gather(bytemuck::bytes_of(&mine), bytemuck::cast_slice_mut(&mut all), &lengths)?;
        Ok(all)
    }

    /// Whether any rank says yes.
    ///
    /// # Errors
    /// When a rank does not answer.
    pub fn any(&self, mine: bool) -> Result<bool> {
        Ok(self.gather_one(u8::from(mine))?.contains(&1))
    }

    /// Gives every rank the bytes that rank 0 has; those of the others do not matter.
    ///
    /// # Errors
    /// When a rank does not answer.
    pub fn broadcast_bytes(&self, mut data: Vec<u8>) -> Result<Vec<u8>> {
        let mut length = data.len();
        self.broadcast(0, bytemuck::bytes_of_mut(&mut length))?;
        data.resize(length, 0);
        self.broadcast(0, &mut data)?;
        Ok(data)
    }

    /// Compares facts with those of rank 0. Every rank learns of the first difference. A process alone agrees with itself
    /// and collects no facts, which may cost time.
    ///
    /// # Errors
    /// When `facts` fails, or a rank differs; the error names the rank, the fact and both values.
    pub fn agree<E: From<Error>>(
        &self,
        facts: impl FnOnce() -> std::result::Result<Vec<Fact>, E>,
    ) -> std::result::Result<(), E> {
        if self.size() == 1 {
            return Ok(());
        }
        let facts = facts()?;
        let named =
            facts.iter().flat_map(|fact| [fact.what.as_str(), SEPARATOR, fact.value.as_str(), SEPARATOR]);
        let all = self.gather_bytes(named.collect::<String>().as_bytes())?;
        let all: Vec<String> = all.iter().map(|facts| String::from_utf8_lossy(facts).into_owned()).collect();
        let Some(rank) = (1..all.len()).find(|rank| all[*rank] != all[0]) else { return Ok(()) };
        let parts = |rank: usize| all[rank].split(SEPARATOR).collect::<Vec<_>>();
        let first = parts(0);
        let theirs = parts(rank);
        let differs = first.iter().zip(&theirs).position(|(a, b)| a != b);
        // Names stand at even places, values at odd ones. Without a differing value, one list is longer.
        let value = differs.filter(|at| at % 2 == 1);
        let of = |parts: &[&str]| {
            value.map_or_else(|| format!("{} facts", parts.len() / 2), |at| parts[at].to_owned())
        };
        let fact = value.and_then(|at| facts.iter().find(|fact| fact.what == first[at - 1]));
        Err(Error::Differs {
            rank,
            what: fact.map_or_else(|| "list of settings".into(), |fact| fact.what.clone()),
            expected: of(&first),
            theirs: of(&theirs),
            remedy: fact.map_or("run the same program on every rank", |fact| fact.remedy).into(),
        }
        .into())
    }
}

/// Something that must be the same on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Its name, such as "version of gpt2".
    pub what: String,
    /// Its value on this rank.
    pub value: String,
    /// The advice where ranks differ.
    pub remedy: &'static str,
}

/// Parts the names and values of facts in a message; both are text without control characters.
const SEPARATOR: &str = "\u{1e}";

/// A group of one process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

/// Copies what this process sends to itself.
fn copy(function: &'static str, from: &[u8], to: &mut [u8]) -> Result<()> {
    if from.len() != to.len() {
        return Err(Error::Size { function, found: from.len(), expected: to.len() });
    }
    to.copy_from_slice(from);
    Ok(())
}

impl Group for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn broadcast(&self, _: usize, _: &mut [u8]) -> Result<()> {
        Ok(())
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8], _: &[usize]) -> Result<()> {
        copy("all_gather", mine, all)
    }

    fn all_to_all(&self, parts: &[u8], _: &[usize], received: &mut [u8], _: &[usize]) -> Result<()> {
        copy("all_to_all", parts, received)
    }

    fn barrier(&self) -> Result<()> {
        Ok(())
    }

    fn abort(&self, exit_code: i32) -> ! {
        std::process::exit(exit_code)
    }

    fn describe(&self) -> Option<String> {
        None
    }
}
