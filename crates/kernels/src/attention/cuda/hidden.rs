//! Hidden keys, as the kernels get them.

use super::shape::Masks;
use crate::attention::mask::{HiddenKeys, Mask};
use candle_core::cuda_backend::cudarc::driver::{CudaStream, DevicePtr};
use candle_core::{Result, Storage, Tensor};

/// Hidden keys in the GPU's memory: u32 (H·T + 1), and u32 (keys).
pub(super) struct HiddenOnGpu {
    starts: Tensor,
    keys: Tensor,
}

impl HiddenOnGpu {
    pub(super) fn new(mask: Mask, q: &Tensor) -> Result<Self> {
        let (_, h, t, _) = q.dims4()?;
        let (starts, keys) = HiddenKeys::new(mask.hidden, h).by_row(h, t);
        let tensor = |numbers: Vec<u32>| {
            let len = numbers.len();
            Tensor::from_vec(numbers, len, q.device())
        };
        Ok(Self { starts: tensor(starts)?, keys: tensor(keys)? })
    }

    /// The masks with the addresses of these keys, which stay valid as long as they do.
    pub(super) fn within(masks: Masks, hidden: Option<&Self>, stream: &CudaStream) -> Result<Masks> {
        let Some(Self { starts, keys }) = hidden else { return Ok(masks) };
        let address = |x: &Tensor| -> Result<u64> {
            match &*x.storage_and_layout().0 {
                Storage::Cuda(storage) => Ok(storage.as_cuda_slice::<u32>()?.device_ptr(stream).0),
                _ => candle_core::bail!("attention: hidden keys that are not on the GPU"),
            }
        };
        Ok(Masks { hidden_starts: address(starts)?, hidden_keys: address(keys)?, ..masks })
    }
}
