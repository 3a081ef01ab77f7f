//! Launches kernels on Candle's tensors.

#![allow(unsafe_code)] // kernels take pointers; each unsafe block says why they are sound

use super::gradients::gradients;
use super::plan::{Plan, Shape, Task};
use crate::attention::gpu_kernel::GpuKernel;
use crate::cuda::{function, has_kernels, view, view_of};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::sys::CUdevice_attribute;
use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, PushKernelArg};
use candle_core::cuda_backend::{CudaDType, WrapErr};
use candle_core::{CpuStorage, CudaDevice, CudaStorage, CustomOp3, DType, Layout, Result, Tensor};
use half::{bf16, f16};

/// The kernels for q (B, H, T, D) and k, v (B, H, S, D), or `None` if there are none.
pub(in crate::attention) fn kernel(
    device: &CudaDevice,
    [q, k, v]: [&Tensor; 3],
    scale: f64,
    padding: Option<&Tensor>,
) -> Result<Option<Box<dyn GpuKernel>>> {
    if k.dtype() != q.dtype() || v.dtype() != q.dtype() || !has_kernels(device)? {
        return Ok(None);
    }
    let stream = device.cuda_stream();
    let which = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    let multiprocessors = stream.context().attribute(which).w()?;
    let multiprocessors = multiprocessors.try_into().unwrap_or(1);
    let layouts = [q.layout(), k.layout(), v.layout()];
    let Some(plan) = Plan::new(q.dtype(), layouts, scale, multiprocessors) else { return Ok(None) };
    if let Some(padding) = padding.filter(|padding| !padding.device().same_device(q.device())) {
        candle_core::bail!(
            "causal attention: the padding mask is on {:?}, q on {:?}",
            padding.device().location(),
            q.device().location()
        )
    }
    let padding = padding.map(Tensor::contiguous).transpose()?;
    Ok(Some(Box::new(CudaAttention { plan, scale, padding })))
}

/// The operation as Candle sees it, for one plan.
struct CudaAttention {
    plan: Plan,
    scale: f64,
    /// u8 (B, S), contiguous
    padding: Option<Tensor>,
}

impl GpuKernel for CudaAttention {
    fn forward(self: Box<Self>, [q, k, v]: [&Tensor; 3]) -> Result<Tensor> {
        q.apply_op3(k, v, *self)
    }
}

// SAFETY: i64s, i32s and an f32 in C's order, without gaps between them; `device.cuh` has the same struct.
unsafe impl DeviceRepr for Shape {}

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
        // SAFETY: the memory starts uninitialised. The launches below write all of `out`, and read only those parts of
        // `partials` that an earlier launch has written.
        let mut out = unsafe { device.alloc::<E>(b * t * h * d)? };
        let mut partials = match self.plan.partials {
            0 => None,
            // SAFETY: as above.
            count => Some(unsafe { device.alloc::<f32>(count)? }),
        };
        let padding = self.padding.as_ref().map(Tensor::storage_and_layout);
        let padding = padding.as_ref().map(|(storage, layout)| view_of::<u8>(storage, layout)).transpose()?;
        let nothing = 0u64; // a null pointer
        for (task, launch) in &self.plan.launches {
            let function = function(&stream, launch)?;
            let mut args = stream.launch_builder(&function);
            if *task != Task::Merge {
                for view in &views {
                    args.arg(view);
                }
                match &padding {
                    Some(padding) => args.arg(padding),
                    None => args.arg(&nothing),
                };
            }
            match (task, &mut partials) {
                (Task::Attention, _) => args.arg(&mut out),
                (Task::Decode, Some(partials)) => args.arg(&mut out).arg(partials),
                (Task::Decode, None) => args.arg(&mut out).arg(&nothing),
                (Task::Merge, Some(partials)) => args.arg(&*partials).arg(&mut out),
                (Task::Merge, None) => {
                    candle_core::bail!("causal attention: the plan has a merge, but no partial results")
                }
            };
            args.arg(&self.plan.shape);
            // SAFETY: the arguments are those of the task, and the plan was made for their layouts, so the kernels read
            // and write inside them. The tests run the same plans over guarded memory.
            unsafe { crate::cuda::launch(args, launch)? };
        }
        Ok((CudaStorage::wrap_cuda_slice(out, device.clone()), candle_core::Shape::from((b, t, h, d))))
    }
}

impl CustomOp3 for CudaAttention {
    fn name(&self) -> &'static str {
        "causal-attention"
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
        candle_core::bail!("causal attention: the plan is for CUDA, but q is on the CPU")
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
        _context: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [dq, dk, dv] = gradients([q, k, v], grad, self.scale, self.padding.as_ref())?;
        Ok((dq, dk, dv))
    }
}
