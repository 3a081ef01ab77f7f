//! Host code that the kernels in `cuda/*.cu` share: it loads and launches them, and an emulator runs them in tests without a
//! GPU.

#[cfg(feature = "cuda")]
mod blas_lt;
pub(crate) mod cross_entropy;
#[cfg(feature = "cuda")]
mod device;
#[cfg(all(test, target_os = "linux"))]
pub(crate) mod emulator;
mod launch;
pub(crate) mod layers;

#[cfg(feature = "cuda")]
pub(crate) use device::{
    UNIT, aligned, check_thread, counters, function, gpu_limits, keep_freed_memory, launch, order_by_stream,
    view, view_of,
};
pub(crate) use launch::{GpuLimits, Launch, dtype_name};
