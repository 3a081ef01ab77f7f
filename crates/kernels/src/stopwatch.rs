//! How long a device works: by its own events where it has them.

use candle_core::{Device, Result};
use std::time::Instant;

#[cfg(feature = "cuda")]
use candle_core::cuda_backend::{
    WrapErr,
    cudarc::driver::{CudaEvent, CudaStream, sys::CUevent_flags},
};

/// A time that is being taken.
#[derive(Debug)]
pub struct Stopwatch {
    device: Device,
    start: Instant,
    #[cfg(feature = "cuda")]
    event: Option<(std::sync::Arc<CudaStream>, CudaEvent)>,
}

impl Stopwatch {
    /// Waits for what the device has been asked for, and starts.
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

    /// Waits until the device has done what it was asked for since the start, and gives the milliseconds.
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

    /// What takes the time of a device: "events" of its own, or a "clock" on the wall.
    #[must_use]
    pub fn kind(device: &Device) -> &'static str {
        if device.is_cuda() { "events" } else { "clock" }
    }
}

/// An event that notes when the device comes to it.
#[cfg(feature = "cuda")]
fn event(device: &Device) -> Result<Option<(std::sync::Arc<CudaStream>, CudaEvent)>> {
    let Device::Cuda(device) = device else { return Ok(None) };
    let stream = device.cuda_stream();
    let event = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).w()?;
    Ok(Some((stream, event)))
}
