//! [`hold_weights_in`]: how the layers of a model hold their weights, said once.

use crate::cpu::dispatch::has_cpu_kernels;
use crate::linear::weight::frozen::WeightDType;
use crate::linear::weight::{Weight, WeightLayout};
use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use std::cell::Cell;

thread_local! {
    static WANTED: Cell<Option<WeightDType>> = const { Cell::new(None) };
}

/// Runs `load`, in which [`linear`](super::linear()), its kin and [`embedding`](super::embedding()) hold what they load in another
/// format than that of the `VarBuilder`: in quantized blocks, or in half precision under activations in f32. It applies to this
/// thread, until `load` returns. Layers that are made from tensors are left as they are, and so are variables, and weights in
/// f64 or on a GPU.
///
/// Loading fails if blocks of `format` do not divide the inputs of a layer, or a plain dtype is not f32, f16 or bf16.
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
    /// Restores the previous setting, also if `load` panics.
    struct Previous(Option<WeightDType>);
    impl Drop for Previous {
        fn drop(&mut self) {
            WANTED.set(self.0);
        }
    }
    let _previous = Previous(WANTED.replace(Some(format)));
    load()
}

/// A loaded weight (out, in), `weight` of `vb`, in the format that is set.
pub(super) fn held(weight: Tensor, vb: &VarBuilder) -> Result<Weight> {
    hold(weight).map_err(|error| error.context(vb.pp("weight").prefix()))
}

fn hold(weight: Tensor) -> Result<Weight> {
    let can_be_frozen = weight.device().is_cpu() && has_cpu_kernels(weight.dtype()) && !weight.track_op();
    match WANTED.get().filter(|_| can_be_frozen) {
        None => Weight::new(weight, WeightLayout::OutIn),
        Some(WeightDType::Blocks(format)) => Weight::quantize(&weight, WeightLayout::OutIn, format),
        Some(WeightDType::Plain(dtype)) if has_cpu_kernels(dtype) => {
            Weight::pack(&weight.to_dtype(dtype)?, WeightLayout::OutIn)
        }
        Some(WeightDType::Plain(dtype)) => {
            candle_core::bail!("weights are held in f32, f16, bf16 or blocks, not in {}", dtype.as_str())
        }
    }
}
