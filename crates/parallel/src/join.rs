//! Joins the processes of a job.

use crate::alone::Alone;
use crate::error::Result;
use crate::group::Group;
use crate::joining::{Choice, Joining};
use crate::launcher::Launcher;
use crate::mpi::Mpi;
use std::sync::Arc;

/// Joins the other processes of this job; call it once, before any other work. All later calls of the group must come
/// from the thread that called this.
///
/// # Errors
/// When there are others, but no MPI library, or one of another MPI than the launcher's.
pub fn join(joining: &Joining) -> Result<Arc<dyn Group>> {
    let launcher = Launcher::of_environment();
    let others = launcher.is_some_and(|launcher| launcher.size > 1);
    match joining.choice {
        Choice::Mpi => Ok(Arc::new(Mpi::open(launcher, joining)?)),
        Choice::Auto if others => Ok(Arc::new(Mpi::open(launcher, joining)?)),
        Choice::Auto | Choice::None => Ok(Arc::new(Alone)),
    }
}
