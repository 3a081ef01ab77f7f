//! How an opened device treats its memory: freed memory stays in the driver's pool for the next tensor, and no events
//! track who uses it.

#![allow(unsafe_code)] // the driver's own calls

use candle_core::cuda_backend::cudarc::driver::{result, sys};
use candle_core::cuda_backend::{CudaDevice, WrapErr};
use candle_core::{Device, Result};

/// Keeps freed memory with the process. By default, the pool that Candle allocates from releases all of it at every
/// synchronization, and maps it again for the next tensor.
pub(crate) fn keep_freed_memory(device: &CudaDevice) -> Result<()> {
    let stream = device.cuda_stream();
    if !stream.context().has_async_alloc() {
        return Ok(()); // no pool: the driver allocates and frees each tensor separately
    }
    let mut threshold = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the device is open, its default pool lives as long, and the call reads this attribute as a u64.
    unsafe {
        let pool = result::device::get_default_mem_pool(stream.context().cu_device()).w()?;
        result::mem_pool::set_attribute(pool, attribute, (&raw mut threshold).cast()).w()
    }
}

/// Turns off the events by which cudarc orders streams, two or more driver calls for each tensor of each launch.
pub(crate) fn order_by_stream(device: &Device) -> Result<()> {
    let device = device.as_cuda_device()?;
    // SAFETY: the device was just opened with a stream of its own. Everything on it, of all host threads, goes through
    // this one stream, which orders it.
    unsafe { device.disable_event_tracking() };
    Ok(())
}
