//! What the ranks of a training run send each other: gradients to the rank that sums them, and the new weights back.
//!
//! The sum of a step's gradients is that of one process: gradients are added in the order of their batches, however
//! many ranks computed them.

use crate::error::Result;
use crate::shares::{Piece, Shares};
use candle_core::{CpuStorage, DType, Device, Storage, Tensor};
use gpt2_parallel::Group;
use std::ops::Range;

/// Numbers that a rank sends or receives at a time: 25 MB of f32.
const BUCKET: usize = 25_000_000 / size_of::<f32>();

/// Adds up gradients over the ranks: each rank has the sums of its share.
#[derive(Debug)]
pub(crate) struct Sums<'a> {
    group: &'a dyn Group,
    shares: &'a Shares,
    /// The sums so far, variable after variable; empty before the first batch.
    so_far: Vec<f32>,
}

impl<'a> Sums<'a> {
    pub(crate) fn new(group: &'a dyn Group, shares: &'a Shares) -> Self {
        Self { group, shares, so_far: vec![] }
    }

    /// Adds the gradients that the first `senders` ranks have for all variables, in rank order. The others give none.
    pub(crate) fn add(&mut self, gradients: Option<&[Tensor]>, senders: usize) -> Result<()> {
        let (rank, ranks) = (self.group.rank(), self.group.size());
        let gradients = gradients.map(flat).transpose()?;
        let length = self.shares.length(rank);
        let is_first = self.so_far.is_empty();
        self.so_far.reserve_exact(if is_first { length } else { 0 });
        let (mut out, mut received) = (vec![], vec![]);
        for start in (0..self.shares.largest()).step_by(BUCKET / ranks) {
            let stretch = |to: usize| stretch(start, BUCKET / ranks, self.shares.length(to));
            out.clear();
            let mut lengths = vec![0; ranks];
            for (to, bytes) in lengths.iter_mut().enumerate() {
                let Some(gradients) = &gradients else { break };
                for Piece { variable, part } in self.shares.pieces(to, &stretch(to)) {
                    *bytes += 4 * part.len();
                    append(&gradients[variable], part, &mut out)?;
                }
            }
            let mine = stretch(rank);
            let mut from = vec![0; ranks];
            from[..senders].fill(4 * mine.len());
            received.resize(senders * mine.len(), 0f32);
            let (parts, place) = (bytemuck::cast_slice(&out), bytemuck::cast_slice_mut(&mut received));
            self.group.all_to_all(parts, &lengths, place, &from)?;
            for (sender, values) in received.chunks_exact(mine.len().max(1)).enumerate() {
                if is_first && sender == 0 {
                    self.so_far.extend_from_slice(values);
                } else {
                    self.so_far[mine.clone()].iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
                }
            }
        }
        Ok(())
    }

    /// The sums of this rank's pieces, each as a row.
    pub(crate) fn rows(self) -> Result<Vec<Tensor>> {
        let mut rest = self.so_far;
        let mut rows = vec![];
        // From the end, so that what is left shrinks.
        for Piece { part, .. } in self.shares.of(self.group.rank()).into_iter().rev() {
            let values = rest.split_off(rest.len() - part.len());
            rows.push(Tensor::from_vec(values, part.len(), &Device::Cpu)?);
            rest.shrink_to_fit();
        }
        rows.reverse();
        Ok(rows)
    }
}

/// This rank's pieces of tensors, each as a row on the CPU.
pub(crate) fn own_rows<'a>(
    group: &dyn Group,
    shares: &Shares,
    whole: impl Fn(usize) -> &'a Tensor,
) -> Result<Vec<Tensor>> {
    let row = |Piece { variable, part }: Piece| {
        let row = whole(variable).flatten_all()?.narrow(0, part.start, part.len())?;
        Ok(row.to_device(&Device::Cpu)?)
    };
    shares.of(group.rank()).into_iter().map(row).collect()
}

/// Collects variables of these lengths from the pieces of all ranks, of which `mine` are this one's; calls `whole` with each
/// variable and its values.
pub(crate) fn collect(
    group: &dyn Group,
    shares: &Shares,
    lengths: &[usize],
    mine: &[Tensor],
    mut whole: impl FnMut(usize, Vec<f32>) -> Result<()>,
) -> Result<()> {
    let (rank, ranks) = (group.rank(), group.size());
    let own = shares.of(rank);
    // What has come of variables that are not whole, and how much.
    let mut begun: Vec<(Vec<f32>, usize)> = vec![(vec![], 0); lengths.len()];
    let (mut out, mut all) = (vec![], vec![]);
    for start in (0..shares.largest()).step_by(BUCKET / ranks) {
        let stretch = |of: usize| stretch(start, BUCKET / ranks, shares.length(of));
        out.clear();
        for Piece { variable, part } in shares.pieces(rank, &stretch(rank)) {
            let holds = |(piece, _): &(&Piece, &Tensor)| {
                piece.variable == variable && piece.part.contains(&part.start)
            };
            let Some((piece, row)) = own.iter().zip(mine).find(holds) else {
                return Err(candle_core::Error::msg("a piece is not this rank's").into());
            };
            append(row, part.start - piece.part.start..part.end - piece.part.start, &mut out)?;
        }
        let bytes: Vec<usize> = (0..ranks).map(|of| 4 * stretch(of).len()).collect();
        all.resize(bytes.iter().sum::<usize>() / 4, 0f32);
        group.all_gather(bytemuck::cast_slice(&out), bytemuck::cast_slice_mut(&mut all), &bytes)?;
        let mut rest = &all[..];
        for Piece { variable, part } in (0..ranks).flat_map(|of| shares.pieces(of, &stretch(of))) {
            let (values, after) = rest.split_at(part.len());
            rest = after;
            let (so_far, count) = &mut begun[variable];
            so_far.resize(lengths[variable], 0.0);
            so_far[part].copy_from_slice(values);
            *count += values.len();
            if *count == lengths[variable] {
                whole(variable, std::mem::take(so_far))?;
            }
        }
    }
    Ok(())
}

/// Gives every rank a tensor of rank 0, on the CPU. The others' values do not matter, only their shape.
pub(crate) fn broadcast(group: &dyn Group, tensor: &Tensor) -> Result<Tensor> {
    let mut values = tensor.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
    group.broadcast(0, bytemuck::cast_slice_mut(&mut values))?;
    Ok(Tensor::from_vec(values, tensor.dims(), &Device::Cpu)?)
}

/// The part of a share that is moved from `start` on.
fn stretch(start: usize, most: usize, length: usize) -> Range<usize> {
    start.min(length)..(start + most).min(length)
}

/// Tensors as contiguous rows of f32 in the CPU's memory.
fn flat(tensors: &[Tensor]) -> Result<Vec<Tensor>> {
    let one =
        |tensor: &Tensor| tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.contiguous();
    Ok(tensors.iter().map(one).collect::<candle_core::Result<_>>()?)
}

/// Appends part of a row to `out`.
fn append(row: &Tensor, part: Range<usize>, out: &mut Vec<f32>) -> Result<()> {
    let (storage, layout) = row.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(CpuStorage::F32(values)), Some((start, end))) => {
            out.extend_from_slice(&values[start..end][part]);
            Ok(())
        }
        _ => Err(candle_core::Error::msg("expected a contiguous row of f32 on the CPU").into()),
    }
}
