//! Fused causal attention on the CPU: no (T, S) tensor, memory linear in S, forward and [`backward`].
//!
//! Keys are packed once a head; then each task takes a tile of queries through the keys that it sees
//! (see [`tile`]). Few queries in front of many keys (decoding) skip the packing and read k and v where
//! they lie (see [`rows`]). `pulp` chooses the instruction set at run time. A result depends on
//! neither the number of threads nor their order: one task computes a row, or tasks of a fixed size
//! whose results are merged in order.

#![allow(unsafe_code)] // register blocks and the shared output; each block says why it is sound

mod backward;
mod blocks;
mod forward;
mod heads;
mod operation;
mod output;
mod pack;
mod problem;
mod row_summary;
mod rows;
mod sizes;
mod summary;
#[cfg(test)]
mod tests;
mod tile;
mod tile_task;
mod weights;

pub(super) use operation::CpuAttention;
pub(super) use summary::{RowSummary, position};
pub(super) use weights::CpuWeights;
