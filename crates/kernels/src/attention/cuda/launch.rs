//! Launches the forward kernels on Candle's tensors.

#![allow(unsafe_code)] // kernels take pointers; each unsafe block says why they are sound

use super::backward::{Saved, gradients};
use super::hidden::HiddenOnGpu;
use super::plan::{BackwardPlan, Plan, Task};
use super::shape::{Masks, Shape};
use crate::attention::drop_weights::WeightDropout;
use crate::attention::gpu_kernel::GpuKernel;
use crate::attention::mask::Mask;
use crate::cuda::{UNIT, aligned, counters, function, gpu_limits, view, view_of};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, PushKernelArg};
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CudaDevice, CudaStorage, CustomOp3, DType, Layout, Result, Storage, Tensor};
use half::{bf16, f16};
use std::sync::OnceLock;

/// The kernels for q (B, H, T, D) and k, v (B, H, S, D), or `None` if there are none.
pub(in crate::attention) fn kernel(
    device: &CudaDevice,
    [q, k, v]: [&Tensor; 3],
    scale: f64,
    mask: Mask,
    dropout: Option<WeightDropout>,
) -> Result<Option<Box<dyn GpuKernel>>> {
    if k.dtype() != q.dtype() || v.dtype() != q.dtype() {
        return Ok(None);
    }
    let gpu = gpu_limits(device)?;
    let layouts = [q.layout(), k.layout(), v.layout()];
    let masked = dropout.is_some() || !mask.hidden.is_empty();
    let tracked = [q, k, v].iter().any(|x| x.track_op());
    let plan = Plan::new(q.dtype(), layouts, scale, [masked, tracked], gpu);
    let (Some(plan), Some(masks)) = (plan, Masks::new(dropout.as_ref())) else { return Ok(None) };
    let backward = tracked.then(|| BackwardPlan::new(q.dtype(), layouts, scale, gpu));
    if let Some(None) = backward {
        return Ok(None);
    }
    if let Some(padding) = mask.padding.filter(|padding| !padding.device().same_device(q.device())) {
        candle_core::bail!(
            "attention: the padding mask is on {:?}, q on {:?}",
            padding.device().location(),
            q.device().location()
        )
    }
    let hidden = (!mask.hidden.is_empty()).then(|| HiddenOnGpu::new(mask, q)).transpose()?;
    Ok(Some(Box::new(CudaAttention {
        plan,
        backward: backward.flatten(),
        padding: mask.padding.map(Tensor::contiguous).transpose()?,
        masks,
        hidden,
        log_sums: OnceLock::new(),
    })))
}

/// The operation as Candle sees it, for one plan.
struct CudaAttention {
    plan: Plan,
    /// If a gradient is needed.
    backward: Option<BackwardPlan>,
    /// u8 (B, S), contiguous
    padding: Option<Tensor>,
    masks: Masks,
    hidden: Option<HiddenOnGpu>,
    /// f32 (B, H, T), saved for the backward pass.
    log_sums: OnceLock<Tensor>,
}

impl GpuKernel for CudaAttention {
    fn forward(self: Box<Self>, [q, k, v]: [&Tensor; 3]) -> Result<Tensor> {
        q.apply_op3(k, v, *self)
    }
}

// SAFETY: i64s, i32s and an f32 in C's order, without gaps between them; `tiles.cuh` has the same struct.
unsafe impl DeviceRepr for Shape {}
// SAFETY: u64s, u32s, an f32 and i32s in C's order, without gaps between them; `masks.cuh` has the same struct.
unsafe impl DeviceRepr for Masks {}

impl CudaAttention {
    fn run<E: CudaDType + DeviceRepr>(
        &self,
        qkv: [(&CudaStorage, &Layout); 3],
    ) -> Result<(CudaStorage, candle_core::Shape)> {
        let [(q, q_layout), _, _] = qkv;
        let device = q.device();
        let stream = device.cuda_stream();
        let (b, h, t, d) = q_layout.shape().dims4()?;
        let views = [view::<E>(qkv[0])?, view::<E>(qkv[1])?, view::<E>(qkv[2])?];
        let rows = if self.backward.is_some() { b * h * t } else { 0 };
        // SAFETY: the memory starts uninitialized. The launch below writes all of `out` and, if a gradient is needed, of
        // `log_sums`, and reads only those parts of `partials` that it has written.
        let (mut out, mut log_sums, mut partials) = unsafe {
            let partials = self.plan.partials.map(|(count, _)| device.alloc::<f32>(count)).transpose()?;
            (
                device.alloc::<E>(b * t * h * d)?,
                (rows > 0).then(|| device.alloc::<f32>(rows)).transpose()?,
                partials,
            )
        };
        let counters = self.plan.partials.map(|(_, heads)| counters(device, heads)).transpose()?;
        let padding = self.padding.as_ref().map(Tensor::storage_and_layout);
        let padding = padding.as_ref().map(|(storage, layout)| view_of::<u8>(storage, layout)).transpose()?;
        let masks = HiddenOnGpu::within(self.masks, self.hidden.as_ref(), &stream)?;
        let nothing = 0u64; // a null pointer

        let Plan { shape, task, launch, .. } = &self.plan;
        let function = function(&stream, launch)?;
        let mut args = stream.launch_builder(&function);
        for view in &views {
            args.arg(view);
        }
        match &padding {
            Some(padding) => args.arg(padding),
            None => args.arg(&nothing),
        };
        args.arg(&mut out);
        match (task, &mut partials, &counters, &mut log_sums) {
            (Task::Decode, Some(partials), Some(counters), None) => args.arg(partials).arg(&**counters),
            (Task::Decode, None, None, None) => args.arg(&nothing).arg(&nothing),
            (Task::Attention | Task::Masked, None, None, Some(log_sums)) => args.arg(log_sums),
            (Task::Attention | Task::Masked, None, None, None) => args.arg(&nothing),
            _ => candle_core::bail!("attention: a plan for {task:?} with other buffers than it needs"),
        };
        args.arg(shape);
        if *task == Task::Masked {
            args.arg(&masks);
        }
        // SAFETY: the arguments are those of the task, and the plan was made for their layouts, so the kernel reads and
        // writes inside them. The tests run the same plans over guarded memory.
        unsafe { crate::cuda::launch(args, launch)? };
        if let Some(log_sums) = log_sums {
            let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(log_sums, device.clone()));
            let log_sums = Tensor::from_storage(storage, (b, h, t), BackpropOp::none(), false);
            self.log_sums.set(log_sums).map_err(|_| candle_core::Error::msg("causal attention ran twice"))?;
        }
        Ok((CudaStorage::wrap_cuda_slice(out, device.clone()), candle_core::Shape::from((b, t, h, d))))
    }
}

impl CustomOp3 for CudaAttention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, candle_core::Shape)> {
        candle_core::bail!("attention: the plan is for CUDA, but q is on the CPU")
    }

    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_layout: &Layout,
        k: &CudaStorage,
        k_layout: &Layout,
        v: &CudaStorage,
        v_layout: &Layout,
    ) -> Result<(CudaStorage, candle_core::Shape)> {
        let qkv = [(q, q_layout), (k, k_layout), (v, v_layout)];
        match q.dtype() {
            DType::F16 => self.run::<f16>(qkv),
            DType::BF16 => self.run::<bf16>(qkv),
            _ => self.run::<f32>(qkv),
        }
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        context: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (Some(plan), Some(log_sums)) = (&self.backward, self.log_sums.get()) else {
            candle_core::bail!("attention: a backward pass that the forward pass did not expect")
        };
        let saved = Saved {
            plan,
            padding: self.padding.as_ref(),
            masks: self.masks,
            hidden: self.hidden.as_ref(),
            log_sums,
        };
        let grad = aligned(&grad.to_dtype(q.dtype())?, UNIT)?;
        let [dq, dk, dv] = match q.dtype() {
            DType::F16 => gradients::<f16>(&saved, [q, k, v], context, &grad)?,
            DType::BF16 => gradients::<bf16>(&saved, [q, k, v], context, &grad)?,
            _ => gradients::<f32>(&saved, [q, k, v], context, &grad)?,
        };
        Ok((Some(dq), Some(dk), Some(dv)))
    }
}
