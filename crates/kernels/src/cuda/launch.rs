//! The parameters of a kernel launch.

use candle_core::DType;

/// A kernel, the number of its blocks and threads, and its shared memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) kernel: String,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    /// Bytes per block.
    pub(crate) shared: u32,
}

impl Launch {
    /// `None` if there are more blocks than fit the i32s in which kernels count them.
    pub(crate) fn new(kernel: String, blocks: usize, threads: u32, shared: usize) -> Option<Self> {
        let blocks = i32::try_from(blocks).ok()?.try_into().ok()?;
        Some(Self { kernel, blocks, threads, shared: shared.try_into().ok()? })
    }
}

/// The name of this dtype in kernel names.
pub(crate) fn dtype_name(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F32 => Some("f32"),
        DType::F16 => Some("f16"),
        DType::BF16 => Some("bf16"),
        _ => None,
    }
}
