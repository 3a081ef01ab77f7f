//! Times runs of a device's work.

use crate::observer::Observer;
use candle_core::{Device, Tensor};
use candle_fused::measure::{Stopwatch, l2_bytes};

/// The most groups into which runs on a GPU are divided: the host submits a group without a pause.
const GROUPS: usize = 5;

/// The milliseconds of `runs` runs of `work`, which is told their numbers, after an untimed one. On the CPU each is
/// measured by itself, and `between` is called before the first, before each other and after the last. On other devices
/// a number is the mean of a group of runs: one run alone would also be measured with the time that the host takes to
/// submit it.
///
/// # Errors
/// When `work` fails, or the device does not answer.
pub(super) fn time_runs(
    device: &Device,
    runs: usize,
    observer: &dyn Observer,
    between: impl Fn(usize),
    mut work: impl FnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<f64>> {
    let runs = runs.max(1);
    observer.step("runs", 0, Some(runs as u64))?;
    between(0);
    work(0)?;
    let groups = if device.is_cpu() { runs } else { runs.min(GROUPS) };
    let mut times = Vec::with_capacity(groups);
    for group in 0..groups {
        let first = group * runs / groups;
        let end = (group + 1) * runs / groups;
        let watch = Stopwatch::start(device)?;
        for run in first..end {
            work(run + 1)?;
        }
        times.push(watch.stop()? / (end - first) as f64);
        observer.step("runs", end as u64, Some(runs as u64))?;
        between(group + 1);
    }
    Ok(times)
}

/// The most that copies of a tensor may take together.
const MOST: usize = 8 << 30;

/// `x`, and on a GPU enough copies of it, more than twice the L2 cache, that runs which take them in turn do not find them
/// there.
///
/// # Errors
/// When the device does not answer, or has no memory for them.
pub(super) fn copies_beyond_the_cache(x: &Tensor) -> candle_core::Result<Vec<Tensor>> {
    let bytes = (x.elem_count() * x.dtype().size_in_bytes()).max(1);
    let count = l2_bytes(x.device())?.map_or(1, |l2| (2 * l2 / bytes + 2).min((MOST / bytes).max(1)));
    let copies = (1..count).map(|_| x.force_contiguous());
    std::iter::once(Ok(x.clone())).chain(copies).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted_and_one_more_is_not_timed() -> anyhow::Result<()> {
        let mut seen = vec![];
        let between = std::cell::RefCell::new(vec![]);
        let times = time_runs(
            &Device::Cpu,
            3,
            &crate::observer::Silent,
            |run| between.borrow_mut().push(run),
            |run| {
                seen.push(run);
                std::thread::sleep(std::time::Duration::from_millis(5));
                Ok(())
            },
        )?;
        assert_eq!((seen, between.into_inner()), (vec![0, 1, 2, 3], vec![0, 1, 2, 3]));
        assert!(times.len() == 3 && times.iter().all(|ms| *ms >= 5.0), "{times:?}");
        Ok(())
    }
}
