//! What the kernels in `cuda/*.cu` share: the code that loads and launches them, and the emulator that runs them in
//! tests without a GPU.

#[cfg(feature = "cuda")]
mod blas_lt;
#[cfg(feature = "cuda")]
mod counters;
pub(crate) mod cross_entropy;
#[cfg(all(test, target_os = "linux"))]
pub(crate) mod emulator;
mod gpu_limits;
mod launch;
pub(crate) mod layers;
#[cfg(feature = "cuda")]
mod module;
#[cfg(feature = "cuda")]
mod per_stream;
#[cfg(feature = "cuda")]
mod pool;
#[cfg(feature = "cuda")]
mod threads;

#[cfg(feature = "cuda")]
pub(crate) use counters::counters;
pub(crate) use gpu_limits::GpuLimits;
pub(crate) use launch::{Launch, dtype_name};
#[cfg(feature = "cuda")]
pub(crate) use module::{UNIT, aligned, function, gpu_limits, launch, view, view_of};
#[cfg(feature = "cuda")]
pub(crate) use pool::{keep_freed_memory, order_by_stream};
#[cfg(feature = "cuda")]
pub(crate) use threads::check_thread;
