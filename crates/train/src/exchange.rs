//! What the ranks of a training run send each other: gradients to the rank that sums them, and the new weights back.
//!
//! The sum of a step's gradients is that of one process: gradients are added in the order of their batches, however
//! many ranks computed them.

use crate::error::Result;
use crate::shares::{Piece, Shares};
use candle_core::{CpuStorage, DType, Device, Storage, Tensor, Var};
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

    /// The sums of this rank's variables, in their order.
    pub(crate) fn tensors(self, variables: &[(String, Var)]) -> Result<Vec<Tensor>> {
        let mut rest = self.so_far;
        let mut tensors = vec![];
        // From the end, so that what is left shrinks.
        for variable in self.shares.of(self.group.rank()).rev() {
            let var = &variables[variable].1;
            let values = rest.split_off(rest.len() - var.elem_count());
            tensors.push(Tensor::from_vec(values, var.dims(), &Device::Cpu)?.to_device(var.device())?);
            rest.shrink_to_fit();
        }
        tensors.reverse();
        Ok(tensors)
    }
}

/// Gives every rank the values that each variable has on the rank that owns it.
pub(crate) fn share_values(group: &dyn Group, shares: &Shares, variables: &[(String, Var)]) -> Result<()> {
    if group.size() == 1 {
        return Ok(());
    }
    let (rank, ranks) = (group.rank(), group.size());
    let mine: Vec<Tensor> = variables.iter().map(|(_, var)| var.as_detached_tensor()).collect();
    let mine = flat(&mine)?;
    // The values of variables that have not come whole.
    let mut begun: Vec<Vec<f32>> = vec![vec![]; variables.len()];
    let (mut out, mut all) = (vec![], vec![]);
    for start in (0..shares.largest()).step_by(BUCKET / ranks) {
        let stretch = |of: usize| stretch(start, BUCKET / ranks, shares.length(of));
        out.clear();
        for Piece { variable, part } in shares.pieces(rank, &stretch(rank)) {
            append(&mine[variable], part, &mut out)?;
        }
        let lengths: Vec<usize> = (0..ranks).map(|of| 4 * stretch(of).len()).collect();
        all.resize(lengths.iter().sum::<usize>() / 4, 0f32);
        group.all_gather(bytemuck::cast_slice(&out), bytemuck::cast_slice_mut(&mut all), &lengths)?;
        let mut rest = &all[..];
        for of in 0..ranks {
            for Piece { variable, part } in shares.pieces(of, &stretch(of)) {
                let (values, after) = rest.split_at(part.len());
                rest = after;
                let var = &variables[variable].1;
                if of == rank {
                    continue;
                }
                let so_far = &mut begun[variable];
                so_far.reserve_exact(var.elem_count() - so_far.len());
                so_far.extend_from_slice(values);
                if so_far.len() == var.elem_count() {
                    let values = Tensor::from_vec(std::mem::take(so_far), var.dims(), &Device::Cpu)?;
                    var.set(&values.to_device(var.device())?)?;
                }
            }
        }
    }
    Ok(())
}

/// Gives every rank a tensor of rank `root`, on the CPU. The others' values do not matter, only their shape.
pub(crate) fn broadcast(group: &dyn Group, root: usize, tensor: &Tensor) -> Result<Tensor> {
    let mut values = tensor.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
    group.broadcast(root, bytemuck::cast_slice_mut(&mut values))?;
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
