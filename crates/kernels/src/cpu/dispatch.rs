//! Decides which code computes an operation, from the caller's choice, the device, the dtype and the features of this
//! build.

use candle_core::{DType, Device, Tensor};

/// The implementation that a caller asks for, like transformers' `attn_implementation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Implementation {
    /// Fused on the CPU and on CUDA; eager on Metal, where fused attention has not run. CUDA's kernels refuse a second host thread on a
    /// device of Candle's `Device::new_cuda`, whose streams nothing orders: open it with `open_cuda` or `new_cuda_with_stream`.
    #[default]
    Auto,
    /// One kernel without a (T, S) tensor, if device, dtype and shape allow it; everything else takes the eager
    /// path, with the same result.
    ///
    /// On the CPU it covers f32, f16 and bf16, forward and backward, with further kernels for weights and summaries. GPUs have
    /// it for plain causal attention alone: as many heads of keys as of queries, values as wide as keys, no soft cap, ALiBi,
    /// sinks, ranges or added scores. CUDA covers f32, f16 and bf16 and D 32, 64, 80, 96 or 128, forward and backward; Metal
    /// what Candle's `sdpa` computes, if nothing is padded, hidden or dropped and no gradient is needed.
    Fused,
    /// Plain differentiable Candle operations with a (T, S) tensor of weights: the definition.
    Eager,
}

impl Implementation {
    /// The name in lower case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Fused => "fused",
            Self::Eager => "eager",
        }
    }

    /// Resolves `Auto` for a device.
    #[must_use]
    pub fn on(self, device: &Device) -> Self {
        match self {
            Self::Auto if device.is_metal() => Self::Eager,
            Self::Auto => Self::Fused,
            chosen => chosen,
        }
    }
}

/// Decides which code runs on a device. A model makes one `Dispatch` and passes it to its layers; each call then looks at its
/// tensors for which kernels can read their dtype.
///
/// On the CPU the choice between fused and eager affects attention alone: the layers around it have only one
/// implementation there.
///
/// ```
/// use candle_core::Device;
/// use candle_fused::{Dispatch, Implementation};
///
/// let dispatch = Dispatch::new(Implementation::Auto, &Device::Cpu);
/// assert_eq!(dispatch.implementation(), Implementation::Fused);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dispatch {
    /// `Fused` or `Eager`.
    implementation: Implementation,
    cpu: bool,
    factors: Factors,
}

/// The numbers that a product of two changing f32 matrices on the CPU multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Factors {
    #[default]
    AsStored,
    /// Rounded, with sums in f32.
    Bf16,
}

impl Dispatch {
    /// Resolves `implementation` for `device`.
    #[must_use]
    pub fn new(implementation: Implementation, device: &Device) -> Self {
        Self { implementation: implementation.on(device), cpu: device.is_cpu(), factors: Factors::default() }
    }

    /// Resolves `implementation` for the device of `x`.
    #[must_use]
    pub fn of(implementation: Implementation, x: &Tensor) -> Self {
        Self::new(implementation, x.device())
    }

    /// `Fused` or `Eager`: what the caller chose, or what `Auto` means on this device.
    #[must_use]
    pub fn implementation(self) -> Implementation {
        self.implementation
    }

    /// Sets the numbers that products multiply.
    pub(crate) fn with_factors(self, factors: Factors) -> Self {
        Self { factors, ..self }
    }

    /// The numbers that products multiply.
    pub(crate) fn factors(self) -> Factors {
        self.factors
    }

    /// Whether the kernels of a GPU may run.
    #[cfg(feature = "cuda")]
    pub(crate) fn gpu_kernels(self) -> bool {
        !self.cpu && self.implementation == Implementation::Fused
    }
}

/// Whether this crate's CPU matrix products compute these tensors. A build that asked for a vendor's product, MKL's or
/// Accelerate's, uses that instead.
pub(crate) fn cpu_product(tensors: &[&Tensor]) -> bool {
    let vendor = candle_core::utils::has_mkl() || candle_core::utils::has_accelerate();
    !vendor && cpu_floats(tensors)
}

/// Whether all tensors are f32 on the CPU. Apart from attention, products, norms and rotary positions, kernels
/// compute only those.
pub(crate) fn cpu_f32(tensors: &[&Tensor]) -> bool {
    tensors.iter().all(|x| x.device().is_cpu() && x.dtype() == DType::F32)
}

/// Whether all are on the CPU, in one dtype that [`has_cpu_kernels`].
pub(crate) fn cpu_floats(tensors: &[&Tensor]) -> bool {
    let dtype = tensors.first().map(|x| x.dtype());
    dtype.is_some_and(has_cpu_kernels)
        && tensors.iter().all(|x| x.device().is_cpu() && Some(x.dtype()) == dtype)
}

/// Whether the CPU kernels of attention, products, norms and rotary positions read this dtype.
pub(crate) fn has_cpu_kernels(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}
