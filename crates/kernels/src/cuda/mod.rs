//! What the kernels in `cuda/*.cu` have in common: how they are launched, loaded, and run in tests where there is no GPU.

#[cfg(all(test, target_os = "linux"))]
pub(crate) mod emulator;
pub(crate) mod layers;
#[cfg(feature = "cuda")]
mod module;
#[cfg(feature = "cuda")]
mod pool;

#[cfg(feature = "cuda")]
pub(crate) use module::{function, has_kernels, launch, view, view_of};
#[cfg(feature = "cuda")]
pub(crate) use pool::keep_freed_memory;

use candle_core::DType;

/// A kernel, over how many blocks it runs, and with how much shared memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) kernel: String,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    /// Bytes for each block.
    pub(crate) shared: u32,
}

impl Launch {
    /// `None` where there are more blocks than kernels count in their i32s.
    pub(crate) fn new(kernel: String, blocks: usize, threads: u32, shared: usize) -> Option<Self> {
        let blocks = i32::try_from(blocks).ok()?.try_into().ok()?;
        Some(Self { kernel, blocks, threads, shared: shared.try_into().ok()? })
    }
}

/// How kernels for this dtype are named.
pub(crate) fn dtype_name(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F32 => Some("f32"),
        DType::F16 => Some("f16"),
        DType::BF16 => Some("bf16"),
        _ => None,
    }
}
