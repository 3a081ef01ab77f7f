//! Counters with which the blocks of a launch tell each other how many are done.

use super::per_stream::PerStream;
use candle_core::Result;
use candle_core::cuda_backend::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use std::sync::{Arc, LazyLock};

/// At least `count` counters of the device's stream. They are 0, and every launch leaves them at 0, so launches of one
/// stream share them.
pub(crate) fn counters(device: &CudaDevice, count: usize) -> Result<Arc<CudaSlice<u32>>> {
    static COUNTERS: LazyLock<PerStream<CudaSlice<u32>>> = LazyLock::new(PerStream::default);
    COUNTERS.get(
        device,
        |counters| counters.len() >= count,
        || device.alloc_zeros::<u32>(count.next_power_of_two()),
    )
}
