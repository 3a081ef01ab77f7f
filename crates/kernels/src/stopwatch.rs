//! Measures how long a device works, with the device's own events if it has them.

use candle_core::{Device, Result, Tensor};
use std::time::Instant;

#[cfg(feature = "cuda")]
use candle_core::{
    DType,
    cuda_backend::{
        WrapErr,
        cudarc::driver::{CudaEvent, CudaStream, sys::CUevent_flags},
    },
};

/// A running measurement.
///
/// On CUDA, the device first gets other work to do, about 200 µs of it, and starts the measurement after that: while it
/// is busy, the host submits what is measured, and up to so much of the time that this takes is not part of the result.
#[derive(Debug)]
pub struct Stopwatch {
    device: Device,
    start: Instant,
    #[cfg(feature = "cuda")]
    event: Option<(std::sync::Arc<CudaStream>, CudaEvent)>,
}

impl Stopwatch {
    /// Waits until the device has finished its pending work, then starts.
    ///
    /// # Errors
    /// When the device does not answer.
    pub fn start(device: &Device) -> Result<Self> {
        device.synchronize()?;
        Ok(Self {
            device: device.clone(),
            start: Instant::now(),
            #[cfg(feature = "cuda")]
            event: event(device)?,
        })
    }

    /// Waits until the device has finished all work submitted since the start, and returns the milliseconds.
    ///
    /// # Errors
    /// When the device does not answer.
    pub fn stop(self) -> Result<f64> {
        #[cfg(feature = "cuda")]
        if let Some((stream, start)) = &self.event {
            let end = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).w()?;
            return Ok(start.elapsed_ms(&end).w()?.into());
        }
        self.device.synchronize()?;
        Ok(self.start.elapsed().as_secs_f64() * 1e3)
    }

    /// How the time is measured on a device: by its own "events", or by the wall "clock".
    #[must_use]
    pub fn kind(device: &Device) -> &'static str {
        if device.is_cuda() { "events" } else { "clock" }
    }
}

/// The bytes that the device writes before a measurement: 200 µs at 2.5 TB/s, and more than any cache holds.
#[cfg(feature = "cuda")]
const BEFORE: usize = 512 << 20;

/// An event that records when the device reaches it, after some other work.
#[cfg(feature = "cuda")]
fn event(device: &Device) -> Result<Option<(std::sync::Arc<CudaStream>, CudaEvent)>> {
    let Device::Cuda(cuda) = device else { return Ok(None) };
    // Freed in the order of the stream. A GPU without room for it gets no head start.
    let _ = Tensor::zeros(BEFORE, DType::U8, device);
    let stream = cuda.cuda_stream();
    let event = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).w()?;
    Ok(Some((stream, event)))
}

/// On GPUs, runs are measured in so many groups at most: the host submits a group without a pause.
const GROUPS: usize = 5;

/// The milliseconds of `runs` runs of `work`, which is told their numbers, after an untimed one. On the CPU each is
/// measured by itself. On other devices a number is the mean of a group of runs: one run alone would also be measured
/// with the time that the host takes to submit it.
///
/// # Errors
/// When `work` fails, or the device does not answer.
pub fn time_runs<E: From<candle_core::Error>>(
    device: &Device,
    runs: usize,
    mut work: impl FnMut(usize) -> std::result::Result<(), E>,
) -> std::result::Result<Vec<f64>, E> {
    work(0)?;
    let runs = runs.max(1);
    let groups = if device.is_cpu() { runs } else { runs.min(GROUPS) };
    let mut times = Vec::with_capacity(groups);
    for group in 0..groups {
        let (first, end) = (group * runs / groups, (group + 1) * runs / groups);
        let watch = Stopwatch::start(device)?;
        for run in first..end {
            work(run + 1)?;
        }
        #[allow(clippy::cast_precision_loss)] // a count of runs
        times.push(watch.stop()? / (end - first) as f64);
    }
    Ok(times)
}

/// The most that copies of a tensor may take together.
const MOST: usize = 8 << 30;

/// `x`, and on a GPU so many copies of it that runs which take them in turn do not find them in the L2 cache: more than
/// twice its size.
///
/// # Errors
/// When the device does not answer, or has no memory for them.
pub fn copies_beyond_the_cache(x: &Tensor) -> Result<Vec<Tensor>> {
    let bytes = (x.elem_count() * x.dtype().size_in_bytes()).max(1);
    let count =
        crate::gpu::l2_bytes(x.device())?.map_or(1, |l2| (2 * l2 / bytes + 2).min((MOST / bytes).max(1)));
    let copies = (1..count).map(|_| x.force_contiguous());
    std::iter::once(Ok(x.clone())).chain(copies).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted_and_one_more_is_not_timed() -> Result<()> {
        let mut seen = vec![];
        let times = time_runs(&Device::Cpu, 3, |run| {
            seen.push(run);
            std::thread::sleep(std::time::Duration::from_millis(5));
            Ok::<_, candle_core::Error>(())
        })?;
        assert_eq!(seen, [0, 1, 2, 3]);
        assert!(times.len() == 3 && times.iter().all(|ms| *ms >= 5.0), "{times:?}");
        Ok(())
    }
}
