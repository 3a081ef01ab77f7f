//! A group of processes that exchange bytes: one process [`Alone`], or many over [`Mpi`].
//!
//! MPI is what clusters have: `mpirun` or `srun` starts the processes and finds the network. This crate opens the MPI
//! library at run time, so the same program starts on machines with Open MPI, with MPICH, and with neither.
//!
//! Nothing here sums numbers in an order that depends on the library or the network. Whoever needs a sum gets every
//! rank's numbers ([`Group::all_to_all`], [`Group::all_gather`]) and adds them in rank order, as
//! [`all_reduce`](trait.Group.html#method.all_reduce) does: the same bits every time.
//!
//! ```
//! use gpt2_parallel::{Choice, Joining};
//!
//! # fn main() -> gpt2_parallel::Result<()> {
//! let group = gpt2_parallel::join(&Joining::new(Choice::Auto))?; // alone, unless a launcher started several
//! let mut values = [1f32, 2.0];
//! group.all_reduce(&mut values)?;
//! assert_eq!(values, [group.size() as f32, 2.0 * group.size() as f32]);
//! # Ok(())
//! # }
//! ```

mod agreement;
mod alone;
mod context;
mod error;
mod group;
mod join;
mod joining;
mod launcher;
mod mpi;
mod values;

pub use agreement::Fact;
pub use alone::Alone;
pub use candle_core;
pub use candle_fused;
pub use context::ContextParallel;
pub use error::{Error, Result};
pub use group::Group;
pub use join::join;
pub use joining::{Choice, Joining};
pub use launcher::Launcher;
pub use mpi::Mpi;
