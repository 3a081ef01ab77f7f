//! Memory that a GPU's driver keeps for the next tensor.

#![allow(unsafe_code)] // the driver's own calls

use candle_core::Result;
use candle_core::cuda_backend::cudarc::driver::{result, sys};
use candle_core::cuda_backend::{CudaDevice, WrapErr};

/// Freed memory stays with the process: by itself, the pool that Candle allocates from hands all of it back whenever the
/// device is waited for, and maps it again for the next tensor.
pub(crate) fn keep_freed_memory(device: &CudaDevice) -> Result<()> {
    let stream = device.cuda_stream();
    if !stream.context().has_async_alloc() {
        return Ok(()); // no pool: memory is taken from the driver and given back one by one
    }
    let mut threshold = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the device is open, its default pool lives as long, and this attribute is a u64 that is read in the call.
    unsafe {
        let pool = result::device::get_default_mem_pool(stream.context().cu_device()).w()?;
        result::mem_pool::set_attribute(pool, attribute, (&raw mut threshold).cast()).w()
    }
}
