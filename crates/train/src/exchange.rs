//! The exchanges of a training run's ranks, which share out the optimizer's state (`ZeRO` stage 1, Rajbhandari et al.
//! 2020): the gradients of each rank's share of the numbers go to that rank, which sums them and steps the optimizer, and
//! the new weights go back.
//!
//! The variables lie one after the other in name order, and every rank's share is an equally long stretch of them. A share
//! begins at a variable, or at a multiple of the chunks over which squares are summed, so that the bits of the norm of all
//! gradients do not depend on the number of ranks. Gradients are added in the order of their batches, however many ranks
//! computed them. A process alone has everything: it exchanges nothing, and copies no weight or gradient.

use crate::error::Result;
use candle_core::{CpuStorage, Device, Storage, Tensor, Var};
use candle_fused::adamw::{CHUNK, squares_of_chunks, sum_of_squares};
use gpt2_parallel::Group;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Numbers that a rank sends or receives at a time: 25 MB of f32.
const BUCKET: usize = 25_000_000 / size_of::<f32>();

/// The shares of numbers that the ranks keep.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shares {
    /// The start of each rank's share, and the end of the last.
    bounds: Vec<usize>,
    /// The start of each variable, and the end of the last.
    starts: Vec<usize>,
    chunk: usize,
}

/// A variable, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VariablePiece {
    pub(crate) variable: usize,
    /// The part, in numbers of the variable.
    part: Range<usize>,
}

impl VariablePiece {
    /// This piece of its variable's values: the tensor itself if it is the whole, otherwise a copy as a row.
    pub(crate) fn cut(&self, values: &Tensor) -> Result<Tensor> {
        if self.part == (0..values.elem_count()) {
            return Ok(values.clone());
        }
        // A view would keep the memory of the whole.
        Ok(values.flatten_all()?.narrow(0, self.part.start, self.part.len())?.force_contiguous()?)
    }

    /// [`cut`](Self::cut) of its variable's gradient, which is removed if this piece is the whole: no other needs it.
    fn take(&self, gradients: &mut BTreeMap<usize, Tensor>) -> Result<Tensor> {
        let piece = self.cut(&gradients[&self.variable])?;
        if self.part == (0..gradients[&self.variable].elem_count()) {
            gradients.remove(&self.variable);
        }
        Ok(piece)
    }

    /// [`cut`](Self::cut) of the variable itself: steps of the whole are steps of the variable.
    pub(crate) fn cut_var(&self, var: &Var) -> Result<Var> {
        if self.part == (0..var.elem_count()) {
            return Ok(var.clone());
        }
        Ok(Var::from_tensor(&self.cut(var)?)?)
    }

    /// Writes this piece into its variable's values, which are contiguous.
    pub(crate) fn write(&self, values: &[f32], whole: &Tensor) -> Result<()> {
        let row = Tensor::from_slice(values, values.len(), whole.device())?;
        Ok(whole.flatten_all()?.slice_set(&row, 0, self.part.start)?)
    }
}

impl Shares {
    /// Shares out variables with these numbers of elements, cut at multiples of `chunk`.
    fn new(lengths: &[usize], ranks: usize, chunk: usize) -> Self {
        let mut starts = vec![0];
        for length in lengths {
            starts.push(starts[starts.len() - 1] + length);
        }
        let total = starts[lengths.len()];
        let bound = |rank: usize| {
            let even = total * rank / ranks;
            let variable = starts.partition_point(|start| *start <= even) - 1;
            // At the end, there is no variable left to cut.
            if variable == lengths.len() { total } else { even - (even - starts[variable]) % chunk }
        };
        Self { bounds: (0..=ranks).map(bound).collect(), starts, chunk }
    }

    /// Whether there is one share, so that no rank lacks a number.
    fn is_undivided(&self) -> bool {
        self.bounds.len() == 2
    }

    /// The length of each variable.
    fn lengths(&self) -> impl Iterator<Item = usize> {
        self.starts.windows(2).map(|pair| pair[1] - pair[0])
    }

    /// The length of a rank's share.
    fn length(&self, rank: usize) -> usize {
        self.bounds[rank + 1] - self.bounds[rank]
    }

    /// The length of the largest share.
    fn largest(&self) -> usize {
        (0..self.bounds.len() - 1).map(|rank| self.length(rank)).max().unwrap_or(0)
    }

    /// The stretches of every share that are exchanged together, so that those of all ranks fill a bucket: everything at
    /// once where no rank lacks a number.
    fn stretches(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let ranks = self.bounds.len() - 1;
        let largest = self.largest();
        let most = if self.is_undivided() { largest.max(1) } else { BUCKET / ranks };
        (0..largest).step_by(most).map(move |start| start..start + most)
    }

    /// The pieces of a stretch of a rank's share, which may end before the stretch does.
    fn pieces(&self, rank: usize, stretch: &Range<usize>) -> Vec<VariablePiece> {
        let place = |at: usize| (self.bounds[rank] + at).min(self.bounds[rank + 1]);
        let from = place(stretch.start);
        let to = place(stretch.end);
        let first = self.starts.partition_point(|start| *start <= from).saturating_sub(1);
        let variables = (first..self.starts.len() - 1).take_while(|variable| self.starts[*variable] < to);
        let piece = |variable: usize| {
            let start = self.starts[variable];
            let end = self.starts[variable + 1];
            VariablePiece { variable, part: from.max(start) - start..to.min(end) - start }
        };
        variables.map(piece).filter(|piece| !piece.part.is_empty()).collect()
    }

    /// The sums over whole variables, given the sums over their chunks, one rank after the other.
    fn over_variables(&self, chunks: &[f64]) -> Vec<f64> {
        let mut rest = chunks;
        let sum = |length: usize| {
            let (of_variable, after) = rest.split_at(length.div_ceil(self.chunk));
            rest = after;
            of_variable.iter().sum()
        };
        self.lengths().map(sum).collect()
    }
}

/// The exchanges of one rank with all others.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) group: Arc<dyn Group>,
    shares: Shares,
    /// The device of the variables, and of a rank's sums and moments.
    device: Device,
}

impl Exchange {
    /// Shares out `variables` over the ranks of a group.
    pub(crate) fn new(group: Arc<dyn Group>, variables: &[(String, Var)], device: &Device) -> Self {
        let lengths: Vec<usize> = variables.iter().map(|(_, var)| var.elem_count()).collect();
        Self { shares: Shares::new(&lengths, group.size(), CHUNK), group, device: device.clone() }
    }

    /// The pieces of this rank's share.
    pub(crate) fn own(&self) -> Vec<VariablePiece> {
        self.shares.pieces(self.group.rank(), &(0..self.shares.largest()))
    }

    /// Adds up gradients over the ranks.
    pub(crate) fn sums(&self) -> GradientSums<'_> {
        GradientSums { exchange: self, so_far: vec![] }
    }

    /// `Σ x²` over each variable, where every rank gives the values of its own pieces.
    pub(crate) fn squares(&self, own: &[Tensor]) -> Result<Vec<f64>> {
        if self.shares.is_undivided() {
            return Ok(own.iter().map(sum_of_squares).collect::<candle_core::Result<_>>()?);
        }
        let mine = own.iter().map(squares_of_chunks).collect::<candle_core::Result<Vec<_>>>()?.concat();
        let all = self.group.gather_bytes(bytemuck::cast_slice(&mine))?.concat();
        Ok(self.shares.over_variables(&bytemuck::pod_collect_to_vec(&all)))
    }

    /// Collects the pieces that all ranks have of the variables that are `of` those wanted, and calls `take` with each and its values;
    /// `own` are the values of this rank's. A process alone has all pieces already, and collects none.
    pub(crate) fn gather(
        &self,
        own: &[Tensor],
        of: impl Fn(usize) -> bool,
        mut take: impl FnMut(&VariablePiece, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let Self { group, shares, .. } = self;
        if shares.is_undivided() {
            return Ok(());
        }
        let wanted = |pieces: Vec<VariablePiece>| -> Vec<VariablePiece> {
            pieces.into_iter().filter(|piece| of(piece.variable)).collect()
        };
        let pieces = wanted(self.own());
        let mut out = vec![];
        let mut all = vec![];
        for stretch in shares.stretches() {
            out.clear();
            for VariablePiece { variable, part } in wanted(shares.pieces(group.rank(), &stretch)) {
                // A rank has at most one piece of a variable.
                for (piece, values) in pieces.iter().zip(own).filter(|(piece, _)| piece.variable == variable)
                {
                    let start = part.start - piece.part.start;
                    append(values, start..start + part.len(), &mut out)?;
                }
            }
            let collected: Vec<_> =
                (0..group.size()).map(|rank| wanted(shares.pieces(rank, &stretch))).collect();
            let bytes: Vec<usize> = collected.iter().map(|pieces| bytes_of(pieces)).collect();
            all.resize(bytes.iter().sum::<usize>() / size_of::<f32>(), 0f32);
            group.all_gather(bytemuck::cast_slice(&out), bytemuck::cast_slice_mut(&mut all), &bytes)?;
            let mut rest = &all[..];
            for piece in collected.into_iter().flatten() {
                let (values, after) = rest.split_at(piece.part.len());
                take(&piece, values)?;
                rest = after;
            }
        }
        Ok(())
    }

    /// Gives every rank a tensor of rank 0, on the CPU. The others' values do not matter, only their shape.
    pub(crate) fn broadcast(&self, tensor: &Tensor) -> Result<Tensor> {
        let mut values = tensor.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
        self.group.broadcast(0, bytemuck::cast_slice_mut(&mut values))?;
        Ok(Tensor::from_vec(values, tensor.dims(), &Device::Cpu)?)
    }
}

/// Adds up gradients over the ranks: each rank has the sums of its share.
#[derive(Debug)]
pub(crate) struct GradientSums<'a> {
    exchange: &'a Exchange,
    /// The sums so far, as a row for each piece of each stretch of this rank's share; empty before the first batch.
    so_far: Vec<Tensor>,
}

impl GradientSums<'_> {
    /// Adds the gradients that the first `senders` ranks have for all variables, by variable, in rank order. The others give
    /// none. A rank's gradients of its own pieces stay where they are; those of whole variables are freed once added.
    pub(crate) fn add(
        &mut self,
        mut gradients: Option<BTreeMap<usize, Tensor>>,
        senders: usize,
    ) -> Result<()> {
        let Exchange { group, shares, device } = self.exchange;
        let rank = group.rank();
        let ranks = group.size();
        let mut before = std::mem::take(&mut self.so_far).into_iter();
        let mut out = vec![];
        let mut received = vec![];
        for stretch in shares.stretches() {
            out.clear();
            let mut lengths = vec![0; ranks];
            for to in (0..ranks).filter(|to| *to != rank) {
                let Some(gradients) = &gradients else { break };
                let pieces = shares.pieces(to, &stretch);
                lengths[to] = bytes_of(&pieces);
                for VariablePiece { variable, part } in pieces {
                    append(&gradients[&variable], part, &mut out)?;
                }
            }
            let own = shares.pieces(rank, &stretch);
            let mut from = vec![0; ranks];
            from[..senders].fill(bytes_of(&own));
            from[rank] = 0;
            received.resize(from.iter().sum::<usize>() / size_of::<f32>(), 0f32);
            let parts = bytemuck::cast_slice(&out);
            let place = bytemuck::cast_slice_mut(&mut received);
            group.all_to_all(parts, &lengths, place, &from)?;
            let share = bytes_of(&own) / size_of::<f32>();
            let mut start = 0;
            for piece in own {
                let length = piece.part.len();
                let mut others = received.chunks_exact(share).map(|values| &values[start..start + length]);
                let mut sum = before.next();
                for sender in 0..senders {
                    let more = match gradients.as_mut().filter(|_| sender == rank) {
                        Some(gradients) => piece.take(gradients)?.flatten_all()?,
                        None => Tensor::from_slice(others.next().unwrap_or_default(), length, device)?,
                    };
                    sum = Some(if let Some(sum) = sum { (sum + more)? } else { more });
                }
                self.so_far.extend(sum);
                start += length;
            }
        }
        Ok(())
    }

    /// The sums of this rank's pieces, each as a row.
    pub(crate) fn rows(self) -> Result<Vec<Tensor>> {
        let mut parts = self.so_far.into_iter().peekable();
        let row = |piece: VariablePiece| {
            let mut of_piece = vec![];
            let mut length = 0;
            while let Some(part) = parts.next_if(|part| length + part.elem_count() <= piece.part.len()) {
                length += part.elem_count();
                of_piece.push(part);
            }
            Ok(if let [whole] = &of_piece[..] { whole.clone() } else { Tensor::cat(&of_piece, 0)? })
        };
        self.exchange.own().into_iter().map(row).collect()
    }
}

fn bytes_of(pieces: &[VariablePiece]) -> usize {
    pieces.iter().map(|piece| size_of::<f32>() * piece.part.len()).sum()
}

/// Appends part of a tensor, as a row, to `out`.
fn append(values: &Tensor, part: Range<usize>, out: &mut Vec<f32>) -> Result<()> {
    let mut row = values.flatten_all()?.narrow(0, part.start, part.len())?;
    if !row.device().is_cpu() {
        row = row.force_contiguous()?.to_device(&Device::Cpu)?; // the part alone leaves the device
    }
    let (storage, layout) = row.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(CpuStorage::F32(values)), Some((start, end))) => {
            out.extend_from_slice(&values[start..end]);
            Ok(())
        }
        _ => Err(candle_core::Error::msg("expected a contiguous row of f32 on the CPU").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: [usize; 8] = [3, 1, 4, 1, 5, 9, 2, 6];

    #[test]
    fn the_shares_are_even_but_for_a_chunk_and_hold_everything_once() {
        for (ranks, chunk) in [(1, 4), (2, 4), (3, 2), (4, 1), (8, 3), (40, 1), (5, 100)] {
            let shares = Shares::new(&LENGTHS, ranks, chunk);
            assert!(chunk == 100 || shares.largest() < 31_usize.div_ceil(ranks) + chunk, "{ranks} {chunk}");
            let mut found = vec![];
            for rank in 0..ranks {
                for VariablePiece { variable, part } in shares.pieces(rank, &(0..shares.largest())) {
                    assert!(part.start % chunk == 0, "{ranks} ranks: {part:?} does not begin with a chunk");
                    found.extend(part.map(|i| (variable, i)));
                }
            }
            let all: Vec<_> = (0..8).flat_map(|v| (0..LENGTHS[v]).map(move |i| (v, i))).collect();
            assert_eq!(found, all, "{ranks} ranks, chunks of {chunk}");
        }
        assert_eq!(Shares::new(&[], 2, 4).largest(), 0);
    }

    #[test]
    fn the_pieces_of_all_stretches_are_the_share() {
        let shares = Shares::new(&LENGTHS, 3, 2);
        for rank in 0..3 {
            let whole: Vec<_> = shares
                .pieces(rank, &(0..shares.largest()))
                .into_iter()
                .flat_map(|p| p.part.map(move |i| (p.variable, i)))
                .collect();
            for size in [1, 2, 5, 100] {
                let mut found = vec![];
                for start in (0..shares.length(rank)).step_by(size) {
                    let end = (start + size).min(shares.length(rank));
                    for VariablePiece { variable, part } in shares.pieces(rank, &(start..end)) {
                        found.extend(part.map(|i| (variable, i)));
                    }
                }
                assert_eq!(found, whole, "rank {rank}, stretches of {size}");
            }
        }
    }

    #[test]
    fn sums_over_chunks_become_sums_over_variables() {
        let shares = Shares::new(&[3, 1, 5], 2, 2);
        // Chunks of 2 and 1, 1, and 2, 2 and 1 numbers.
        assert_eq!(shares.over_variables(&[1., 2., 3., 4., 5., 6.]), [3., 3., 15.]);
    }

    /// A whole gradient is freed once it is added; a part leaves it to the other pieces.
    #[test]
    fn a_gradient_is_taken_out_whole_and_stays_for_its_parts() -> Result<()> {
        let mut gradients = BTreeMap::from([(4, Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?)]);
        let piece = |part| VariablePiece { variable: 4, part };
        assert_eq!(piece(1..3).take(&mut gradients)?.to_vec1::<f32>()?, [2., 3.]);
        assert_eq!(piece(0..3).take(&mut gradients)?.to_vec1::<f32>()?, [1., 2., 3.]);
        assert!(gradients.is_empty());
        Ok(())
    }
}
