//! Matrix products on the CPU, by tiles whose sums stay in registers.
//!
//! The right factor lies in [`panels`], packed once for weights that do not change. The left factor is copied into groups
//! of [`rows`]; a block of groups fits a cache. A tile of a group and a strip of panels ([`tile`]) sums over a part of the
//! depth, and the [`sums`] of the parts are added: each number of the result comes from the same operations in the same
//! order, whatever the number of threads and of rows. Meanwhile, the next strip is fetched from memory. What follows a
//! product ([`Finish`](finish::Finish)) is computed for each group, while its sums are in the first-level cache; with AMX, for a block of
//! groups, whose factors in bf16 are read as they are. [`lanes`] has what differs between instruction sets.
//!
//! The structure is that of BLIS (Van Zee & van de Geijn 2015) without the loop over the depth outside the panels: at
//! GPT-2's depths, 768 to 6400, a block of rows fits the second-level cache.

#![allow(unsafe_code)]

#[cfg(amx)]
pub(crate) mod amx;
pub(crate) mod finish;
mod lanes;
pub(crate) mod multiply;
pub(crate) mod numbers;
pub(crate) mod panels;
mod rounded;
pub(crate) mod rows;
mod sums;
#[cfg(test)]
mod tests;
mod tile;
mod transpose;
