//! What the kernels in `cuda/*.cu` share: the code that loads and launches them, and the emulator that runs them in
//! tests without a GPU.

#[cfg(all(test, target_os = "linux"))]
pub(crate) mod emulator;
mod launch;
pub(crate) mod layers;
#[cfg(feature = "cuda")]
mod module;
#[cfg(feature = "cuda")]
mod pool;

pub(crate) use launch::{Launch, dtype_name};
#[cfg(feature = "cuda")]
pub(crate) use module::{function, has_kernels, launch, view, view_of};
#[cfg(feature = "cuda")]
pub(crate) use pool::keep_freed_memory;
