//! Measures how long a device works, with the device's own events if it has them.

use candle_core::{Device, Result};
use std::time::Instant;

#[cfg(feature = "cuda")]
use candle_core::cuda_backend::{
    WrapErr,
    cudarc::driver::{CudaEvent, CudaStream, sys::CUevent_flags},
};

/// A running measurement.
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

/// An event that records when the device reaches it.
#[cfg(feature = "cuda")]
fn event(device: &Device) -> Result<Option<(std::sync::Arc<CudaStream>, CudaEvent)>> {
    let Device::Cuda(device) = device else { return Ok(None) };
    let stream = device.cuda_stream();
    let event = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).w()?;
    Ok(Some((stream, event)))
}
