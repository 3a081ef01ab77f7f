//! Times what a training run exchanges, on the machines at hand:
//!
//! ```text
//! mpirun -n 2 target/release/examples/exchange
//! ```
//!
//! prints the cost of a meeting and of sums of some sizes. `scripts/parallel_model.py` takes both.
#![allow(clippy::print_stdout)] // a program for the terminal

use gpt2_parallel::{Choice, Joining, join};
use std::time::Instant;

fn main() -> gpt2_parallel::Result<()> {
    let group = join(&Joining::new(Choice::Mpi))?;
    // The fastest of some runs: what disturbs them only ever adds time.
    let time = |runs: u32, work: &mut dyn FnMut() -> gpt2_parallel::Result<()>| {
        let mut fastest = f64::INFINITY;
        for _ in 0..runs {
            group.barrier()?;
            let started = Instant::now();
            work()?;
            fastest = fastest.min(started.elapsed().as_secs_f64());
        }
        Ok::<f64, gpt2_parallel::Error>(fastest)
    };
    let meeting = time(200, &mut || group.barrier())?;
    let mut sums = vec![];
    for megabytes in [1usize, 25, 150, 498] {
        let mut values = vec![1f32; megabytes * 250_000];
        let seconds = time(5, &mut || group.all_reduce(&mut values))?;
        sums.push((megabytes, seconds));
    }
    if group.rank() == 0 {
        println!("{}", group.describe().unwrap_or_default());
        println!("meeting: {:.1} us", 1e6 * meeting);
        for (megabytes, seconds) in sums {
            let gigabytes_per_s = megabytes as f64 / 1e3 / seconds;
            println!("sum of {megabytes} MB: {:.2} ms, {gigabytes_per_s:.2} GB/s", 1e3 * seconds);
        }
    }
    Ok(())
}
