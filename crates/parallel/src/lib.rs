//! A group of processes that exchange bytes: one process [`Alone`], or many over [`Mpi`].
//!
//! MPI is what clusters have: `mpirun` or `srun` starts the processes and finds the network. This crate opens the MPI
//! library at run time, so the same program starts on machines with Open MPI, with MPICH, and with neither.
//!
//! Nothing here sums numbers in an order that depends on the library or the network. A sum takes every
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

mod context;
mod error;
mod group;
mod joining;
mod mpi;

pub use candle_core;
pub use candle_fused;
pub use context::ContextParallel;
pub use error::{Error, Result};
pub use group::{Alone, Fact, Group};
pub use joining::{Choice, Joining, Launcher};
pub use mpi::Mpi;

use std::sync::Arc;

/// Joins the other processes of this job; call it once, before any other work. All later calls of the group must come
/// from the thread that called this.
///
/// # Errors
/// When there are others, but no MPI library, or one of another MPI than the launcher's.
pub fn join(joining: &Joining) -> Result<Arc<dyn Group>> {
    let launcher = Launcher::from_environment();
    let others = launcher.is_some_and(|launcher| launcher.size > 1);
    match joining.choice {
        Choice::Mpi => Ok(Arc::new(Mpi::open(launcher, joining)?)),
        Choice::Auto if others => Ok(Arc::new(Mpi::open(launcher, joining)?)),
        Choice::Auto | Choice::None => Ok(Arc::new(Alone)),
    }
}
