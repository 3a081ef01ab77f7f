//! Groups of processes: the same exchanges on threads, on one process alone, and under mpirun.

mod context;
mod exchanges;
mod mpi;
#[path = "../common/mpirun.rs"]
mod mpirun;
#[path = "../common/threads.rs"]
mod threads;

use exchanges::every_exchange;
use gpt2_parallel::Alone;
use std::sync::Arc;
use threads::on_threads;

#[test]
fn every_exchange_works_on_threads() {
    for size in [1, 2, 3, 5] {
        on_threads(size, |group| every_exchange(&*group, 1000));
    }
}

#[test]
fn every_exchange_works_alone() {
    every_exchange(&*(Arc::new(Alone) as Arc<dyn gpt2_parallel::Group>), 1000);
}
