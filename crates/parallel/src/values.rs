//! Exchanges of numbers and of texts, made of exchanges of bytes.

use crate::error::Result;
use crate::group::Group;

/// Values summed at a time: 25 MB of f32.
const BUCKET: usize = 25_000_000 / size_of::<f32>();

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
    /// rank r, as many on every rank.
    pub(crate) fn sum_own_part(&self, parts: &[f32], lengths: &[usize]) -> Result<Vec<f32>> {
        let (length, size) = (lengths[self.rank()], self.size());
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

    /// What every rank has to say, in rank order. The lengths may differ.
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
}
