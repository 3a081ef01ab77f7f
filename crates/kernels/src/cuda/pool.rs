//! Keeps freed GPU memory in the driver's pool for the next tensor.

#![allow(unsafe_code)] // the driver's own calls

use candle_core::Result;
use candle_core::cuda_backend::cudarc::driver::{result, sys};
use candle_core::cuda_backend::{CudaDevice, WrapErr};

/// Keeps freed memory with the process. By default, the pool that Candle allocates from releases all of it at every
/// synchronisation, and maps it again for the next tensor.
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
