//! Whether and how to join other processes, and who started them.

use crate::error::Error;
use std::time::Duration;

/// Whether to join other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Choice {
    /// If a launcher started more than one process.
    #[default]
    Auto,
    /// Never.
    None,
    /// Always, even where there is only one.
    Mpi,
}

/// The options of joining. [`new`](Self::new) sets the defaults; you may change every field.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Joining {
    /// Whether to join.
    pub choice: Choice,
    /// The longest wait for another rank: 10 minutes.
    pub timeout: Duration,
    /// Called, from another thread, just before this process ends because a transfer is stuck. Does nothing.
    pub on_stuck: fn(&Error),
}

impl Joining {
    /// The defaults, with this choice.
    #[must_use]
    pub fn new(choice: Choice) -> Self {
        Self { choice, timeout: Duration::from_mins(10), on_stuck: |_| {} }
    }
}

/// A program that starts the processes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launcher {
    /// Its name.
    pub name: &'static str,
    /// The number of processes that it started.
    pub size: usize,
    /// This process's number among them, from 0.
    pub rank: usize,
    /// The number of them that run on this machine, where the launcher tells.
    pub local_size: Option<usize>,
}

/// The launchers, and their variables for the size, the rank, and the size on this machine.
const LAUNCHERS: [(&str, [&str; 3]); 3] = [
    (OPEN_MPI, ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"]),
    ("MPICH's mpiexec", ["PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"]),
    // Only srun sets the first, in the processes of a step; a batch script itself has the number of the whole job.
    ("srun", ["SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_NTASKS_PER_NODE"]),
];
pub(crate) const OPEN_MPI: &str = "Open MPI's mpirun";

impl Launcher {
    /// The launcher of this process; `None` if it was started by hand.
    #[must_use]
    pub fn from_environment() -> Option<Self> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| variable(name)?.parse::<usize>().ok();
        LAUNCHERS.into_iter().find_map(|(name, [size, rank, local])| {
            Some(Self { name, size: number(size)?, rank: number(rank)?, local_size: number(local) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_known_by_their_variables() {
        let of = |variables: &[(&str, &str)]| {
            Launcher::from_variables(|name| {
                variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_string())
            })
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("OMPI_COMM_WORLD_SIZE", "4")]), None, "no rank");
        let open_mpi = [("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "3")];
        assert_eq!(of(&open_mpi), Some(Launcher { name: OPEN_MPI, size: 4, rank: 3, local_size: None }));
        let mpich = [("PMI_SIZE", "2"), ("PMI_RANK", "0"), ("MPI_LOCALNRANKS", "2")];
        assert!(of(&mpich).is_some_and(|l| l.size == 2 && l.local_size == Some(2)));
        // A batch script of Slurm is one process, whatever the size of its job.
        assert_eq!(of(&[("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0")]), None);
        assert!(of(&[("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_PROCID", "5")]).is_some_and(|l| l.size == 8));
        assert_eq!(of(&[("PMI_SIZE", "many"), ("PMI_RANK", "0")]), None);
    }

    #[test]
    fn the_defaults_are_auto_and_ten_minutes() {
        let joining = Joining::new(Choice::default());
        assert_eq!((joining.choice, joining.timeout.as_secs()), (Choice::Auto, 600));
    }
}
