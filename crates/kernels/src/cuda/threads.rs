//! Which host threads may use a device.

use candle_core::Result;
use candle_core::cuda_backend::cudarc::driver::CudaStream;
use candle_core::cuda_backend::{CudaDevice, DeviceId};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread::{ThreadId, current};

/// The handle of the stream that is another one in each thread (`CU_STREAM_PER_THREAD`).
const PER_THREAD: usize = 2;

/// This thread, if the stream is another one in each thread.
pub(crate) fn own_stream_of_thread(stream: &CudaStream) -> Option<ThreadId> {
    (stream.cu_stream() as usize == PER_THREAD).then(|| current().id())
}

/// Fails if a second thread uses a device whose stream is another one in each thread, as `Device::new_cuda` makes it:
/// nothing would order what the two do with a shared tensor.
pub(crate) fn check_thread(device: &CudaDevice) -> Result<()> {
    static FIRST: LazyLock<Mutex<HashMap<DeviceId, ThreadId>>> = LazyLock::new(Mutex::default);
    let stream = device.cuda_stream();
    // Events would order the two, but Candle's device does not manage them with its one stream.
    if own_stream_of_thread(&stream).is_none() || stream.context().is_managing_stream_synchronization() {
        return Ok(());
    }
    let mut first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
    if *first.entry(device.id()).or_insert_with(|| current().id()) == current().id() {
        return Ok(());
    }
    candle_core::bail!(
        "a second host thread uses a CUDA device made with Device::new_cuda, whose stream is another one in each \
         thread: make the device with Device::new_cuda_with_stream, or use it in one thread"
    )
}
