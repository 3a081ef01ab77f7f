//! Numbers in full, where every device can make them.

use candle_core::{DType, Device, Result, Tensor};

/// f64 on the CPU: some GPUs have no f64.
pub(super) fn wide(x: &Tensor) -> Result<Tensor> {
    x.to_device(&Device::Cpu)?.to_dtype(DType::F64)
}
