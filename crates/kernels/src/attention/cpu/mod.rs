//! Fused attention on the CPU: no (T, S) tensor, memory linear in S, forward and [`backward`].
//!
//! Keys are packed once for the heads that share them; then each task walks a tile of queries through the keys that it sees
//! (see [`tile`]). A few queries against many keys (decoding) skip the packing and read k and v in
//! place (see [`rows`]). `pulp` chooses the instruction set at run time. Results depend neither on the
//! number of threads nor on their order: either one task computes a row, or tasks of a fixed size do
//! and their results are merged in order.

#![allow(unsafe_code)] // register blocks and the shared output; each unsafe block says why it is sound

mod backward;
mod blocks;
mod forward;
mod operation;
mod pack;
mod problem;
mod rows;
mod summary;
mod tile;
mod weights;

pub(super) use operation::CpuAttention;
pub(super) use weights::CpuWeights;
