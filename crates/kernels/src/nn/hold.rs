//! [`hold_weights_in`]: how the layers of a model hold their weights, said once.

use crate::frozen::WeightDType;
use crate::weight::{Weight, WeightLayout};
use candle_core::{DType, Result, Tensor};
use std::cell::Cell;

thread_local! {
    static WANTED: Cell<Option<WeightDType>> = const { Cell::new(None) };
}

/// Runs `load`, in which [`linear`](super::linear()), its kin and [`embedding`](super::embedding()) hold what they load in another
/// format than that of the `VarBuilder`: in quantized blocks, or in half precision under activations in f32. It holds for this
/// thread, until `load` returns; layers that are made from tensors are left as they are, and so are variables.
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_fused::nn::{hold_weights_in, linear};
/// use candle_fused::{BlockFormat, WeightDType};
/// use candle_nn::VarBuilder;
///
/// # fn main() -> candle_core::Result<()> {
/// let vb = VarBuilder::zeros(DType::F32, &Device::Cpu);
/// let q8_0 = WeightDType::Blocks(BlockFormat::Q8_0);
/// let layer = hold_weights_in(q8_0, || linear(64, 32, vb))?;
/// assert_eq!(layer.weight().dtype(), q8_0);
/// let y = layer.forward(&Tensor::ones((1, 64), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(y.dims(), [1, 32]);
/// # Ok(())
/// # }
/// ```
pub fn hold_weights_in<T>(format: WeightDType, load: impl FnOnce() -> T) -> T {
    /// Puts the former wish back, also if `load` panics.
    struct Former(Option<WeightDType>);
    impl Drop for Former {
        fn drop(&mut self) {
            WANTED.set(self.0);
        }
    }
    let _former = Former(WANTED.replace(Some(format)));
    load()
}

/// A loaded weight (out, in) as it is wanted here.
pub(super) fn held(weight: Tensor) -> Result<Weight> {
    match WANTED.get() {
        Some(WeightDType::Blocks(format)) if frozen(&weight) => {
            Weight::quantize(&weight, WeightLayout::OutIn, format)
        }
        Some(WeightDType::Plain(dtype)) if frozen(&weight) => {
            Weight::new(weight.to_dtype(dtype)?, WeightLayout::OutIn)
        }
        _ => Weight::new(weight, WeightLayout::OutIn),
    }
}

/// Whether a weight stays as it is loaded, in a dtype that we read.
fn frozen(weight: &Tensor) -> bool {
    let float = matches!(weight.dtype(), DType::F32 | DType::F16 | DType::BF16);
    float && weight.device().is_cpu() && !weight.track_op()
}
