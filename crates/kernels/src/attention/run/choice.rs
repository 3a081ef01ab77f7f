//! Chooses the code that computes an attention, and reports why no faster code does.

#[cfg(feature = "metal")]
use super::metal;
use crate::attention::cpu::blocks::FEW_QUERIES;
#[cfg(feature = "cuda")]
use crate::attention::cuda::launch::Kernels;
use crate::attention::heads::WeightDropout;
use crate::attention::inputs::Inputs;
use crate::attention::mask::Mask;
use crate::attention::sdpa::Sdpa;
use crate::attention::window::Window;
use crate::cpu::dispatch::Implementation;
use crate::cpu::explain::{Explained, ours};
#[cfg(feature = "cuda")]
use candle_core::CudaDevice;
use candle_core::{DType, Device, Layout, Result, Tensor};

/// A GPU's kernel, chosen for the layouts of q, k and v.
pub(super) type GpuKernel = Box<dyn FnOnce([&Tensor; 3], Mask) -> Result<Tensor>>;

/// The code that computes a context.
pub(super) enum AttentionCode {
    /// The CPU's kernels.
    Cpu,
    Gpu(GpuKernel),
    /// Plain operations.
    Eager,
}

impl Sdpa {
    /// Returns the implementation that [`forward`](Self::forward) runs for such inputs: `Fused` if a kernel covers them,
    /// otherwise `Eager`.
    ///
    /// # Errors
    /// When the device does not answer, or no code reads these quantized keys and values.
    pub fn code_for(&self, inputs: &Inputs) -> Result<Implementation> {
        inputs.check_codes()?;
        let (_, h, t, d) = inputs.layouts[0].shape().dims4()?;
        Ok(match self.choose(inputs, self.weight_dropout(h, t, d, 0))? {
            AttentionCode::Eager => Implementation::Eager,
            AttentionCode::Cpu | AttentionCode::Gpu(_) => Implementation::Fused,
        })
    }

    /// The code for a call, under the dropout of its weights.
    pub(super) fn choose(&self, inputs: &Inputs, dropout: Option<WeightDropout>) -> Result<AttentionCode> {
        if self.has_cpu_kernel(inputs) {
            return Ok(AttentionCode::Cpu);
        }
        Ok(self.gpu_kernel(inputs, dropout)?.map_or(AttentionCode::Eager, AttentionCode::Gpu))
    }

    /// Whether fused code may run.
    fn may_fuse(&self, inputs: &Inputs) -> bool {
        self.implementation.on(&inputs.device) == Implementation::Fused && !inputs.is_empty()
    }

    /// Whether the CPU kernels compute this.
    pub(super) fn has_cpu_kernel(&self, inputs: &Inputs) -> bool {
        inputs.device.is_cpu()
            && self.may_fuse(inputs)
            && matches!(inputs.dtypes[0], DType::F32 | DType::F16 | DType::BF16)
    }

    /// The GPU kernel that computes this, if fused code may run and this build has it.
    #[cfg_attr(not(feature = "cuda"), allow(clippy::unnecessary_wraps))] // only CUDA asks the device
    fn gpu_kernel(&self, inputs: &Inputs, dropout: Option<WeightDropout>) -> Result<Option<GpuKernel>> {
        if !self.is_plain(inputs) || dropout.is_some_and(|dropout| !dropout.is_first()) {
            return Ok(None);
        }
        match &inputs.device {
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => {
                let kernels = self.cuda_kernels(device, inputs, dropout)?;
                let run = |kernels: Kernels| -> GpuKernel {
                    Box::new(move |qkv, mask| kernels.forward(qkv, mask, None))
                };
                Ok(kernels.map(run))
            }
            #[cfg(feature = "metal")]
            Device::Metal(_) if dropout.is_none() && metal::computes(inputs) => {
                let scale = self.scale_for(inputs.layouts[0].dims()[3]);
                Ok(Some(Box::new(move |qkv, _| metal::forward(qkv, scale))))
            }
            #[allow(unreachable_patterns)] // unreachable if a feature above is on
            Device::Cpu | Device::Cuda(_) | Device::Metal(_) => Ok(None),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_kernels(
        &self,
        device: &CudaDevice,
        inputs: &Inputs,
        dropout: Option<WeightDropout>,
    ) -> Result<Option<Kernels>> {
        Kernels::new(device, inputs, self.scale_for(inputs.layouts[0].dims()[3]), dropout)
    }

    /// The kernels that decode this on CUDA, if fused code may run and there are some.
    #[cfg(feature = "cuda")]
    pub(super) fn decoding_kernels(&self, inputs: &Inputs) -> Result<Option<Kernels>> {
        let Device::Cuda(device) = &inputs.device else { return Ok(None) };
        if !self.is_plain(inputs) || self.dropout.is_some() {
            return Ok(None);
        }
        Ok(self.cuda_kernels(device, inputs, None)?.filter(Kernels::decode))
    }

    /// Whether this is attention of the kind that GPUs have kernels for, and fused code may run.
    fn is_plain(&self, inputs: &Inputs) -> bool {
        let [q, k, v] = inputs.layouts.each_ref().map(Layout::dims);
        let plain = self.window == Window::CAUSAL && self.softcap.is_none() && self.slopes.is_none();
        let plain = plain
            && self.sinks.is_none()
            && !inputs.added
            && !inputs.first
            && !inputs.ranges
            && q[1] == k[1]
            && q[3] == v[3]
            && q[2] <= k[2];
        plain && self.may_fuse(inputs)
    }

    /// Reports the code that runs for a call, and why no faster code does. `in_place` says that keys and values in another
    /// dtype are read without a conversion.
    pub(super) fn explained(
        &self,
        inputs: &Inputs,
        mask: Mask,
        code: &AttentionCode,
        in_place: bool,
    ) -> Explained {
        let [q, k, v] = inputs.dtypes.map(|dtype| dtype.as_str());
        let dims = inputs.layouts.each_ref().map(Layout::dims);
        let slower_because = match code {
            AttentionCode::Gpu(_) => None,
            AttentionCode::Cpu => {
                let converted = (!in_place && [k, v] != [q, q])
                    .then(|| format!("keys in {k} and values in {v} are converted to {q} in each call"));
                let put_in_order = mask
                    .added_is_strided()
                    .then(|| "what is added to the scores is not contiguous, and put in order in each call".to_owned());
                converted.into_iter().chain(put_in_order).reduce(|a, b| format!("{a}; {b}"))
            }
            AttentionCode::Eager if inputs.is_empty() => Some("there is nothing to compute".to_owned()),
            AttentionCode::Eager => Some(match (self.implementation, &inputs.device) {
                (Implementation::Eager, _) => "the caller chose plain operations".to_owned(),
                (Implementation::Auto, device) if device.is_metal() => {
                    "on Metal, fused kernels run only where Implementation::Fused asks for them".to_owned()
                }
                (_, device) if !device.is_cpu() => {
                    "the GPU's kernels are for plain causal attention without log-sums, or this build has none".to_owned()
                }
                _ => format!("there is no kernel for {q}"),
            }),
        };
        let code = match code {
            AttentionCode::Cpu if dims[0].get(2).is_some_and(|t| *t <= FEW_QUERIES) => {
                ours("fused, key by key")
            }
            AttentionCode::Cpu => ours("fused, in tiles"),
            AttentionCode::Gpu(_) => "fused, on the GPU".to_owned(),
            AttentionCode::Eager => "plain operations".to_owned(),
        };
        let sees = match self.window {
            Window::CAUSAL => "causal".to_owned(),
            Window::ALL => "all keys".to_owned(),
            Window { left: Some(left), right: Some(0) } => format!("a window of {} keys", left + 1),
            Window { left, right } => {
                let count = |side: Option<usize>| side.map_or_else(|| "all".to_owned(), |n| n.to_string());
                format!("{} keys before and {} after", count(left), count(right))
            }
        };
        let inputs = format!("q {q} {:?}, k {k} {:?}, v {v} {:?}, {sees}", dims[0], dims[1], dims[2]);
        Explained { operation: "attention", inputs, code, slower_because }
    }
}
