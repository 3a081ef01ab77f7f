//! The losses of rows of logits, and their gradients in place: `cuda/cross_entropy.cu`.

#![allow(unsafe_code)] // kernels take pointers; each unsafe block says why they are sound

use crate::cpu::dispatch::Dispatch;
use crate::gpu::device::{function, gpu_limits, launch, view_of};
use crate::gpu::launch_plan::{Launch, dtype_name};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, PushKernelArg};
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CudaStorage, DType, Device, InplaceOp1, Layout, Result, Storage, Tensor};
use half::{bf16, f16};
use std::sync::Mutex;

/// Threads per block in `cross_entropy.cu`.
const THREADS: u32 = 256;

/// The launch for `rows` rows of logits, if there is a kernel for it.
fn cross_entropy_launch(dtype: DType, rows: usize, width: usize) -> Option<Launch> {
    let name = dtype_name(dtype).filter(|_| i32::try_from(width).is_ok())?;
    Launch::new(format!("cross_entropy_{name}"), rows, THREADS, THREADS as usize / 32 * 4)
}

/// Whether fused code may run, and x and weight are on one GPU that has them.
pub(crate) fn has_cross_entropy(dispatch: Dispatch, x: &Tensor, weight: &Tensor) -> Result<bool> {
    let (true, Device::Cuda(device)) = (dispatch.gpu_kernels(), x.device()) else { return Ok(false) };
    let one = x.dtype() == weight.dtype() && weight.device().same_device(x.device());
    let width = weight.dim(0)?;
    Ok(one
        && cross_entropy_launch(x.dtype(), 1, width).is_some()
        && gpu_limits(device)?.has_kernels_for(x.dtype()))
}

/// The losses (rows), in f32, of `logits` (rows, V) under `targets` u32 (rows); and, if they are wanted, the gradients
/// of their sum in place of the logits, which no other tensor shares. Each target is below V (`check_targets`).
pub(crate) fn losses_to_gradients(logits: &Tensor, targets: &Tensor, gradients: bool) -> Result<Tensor> {
    let (rows, width) = logits.dims2()?;
    let Some(launch) = cross_entropy_launch(logits.dtype(), rows, width) else {
        candle_core::bail!("cross-entropy: no kernel for {:?}", logits.dtype())
    };
    let op = LossesToGradients {
        launch,
        width: i32::try_from(width)?,
        targets: targets.contiguous()?,
        gradients,
        losses: Mutex::new(None),
    };
    logits.inplace_op1(&op)?;
    let losses = op.losses.into_inner().ok().flatten();
    losses.ok_or_else(|| candle_core::Error::msg("cross-entropy: the kernel left no losses"))
}

struct LossesToGradients {
    launch: Launch,
    width: i32,
    targets: Tensor,
    gradients: bool,
    losses: Mutex<Option<Tensor>>,
}

impl LossesToGradients {
    fn run<E: CudaDType + DeviceRepr>(&self, logits: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let device = logits.device().clone();
        let rows = layout.dims()[0];
        if !layout.is_contiguous() || layout.start_offset() != 0 {
            candle_core::bail!("cross-entropy: the logits must be a whole contiguous tensor")
        }
        let stream = device.cuda_stream();
        let (targets, targets_layout) = self.targets.storage_and_layout();
        let targets = view_of::<u32>(&targets, targets_layout)?;
        // SAFETY: the kernel writes every element.
        let mut losses = unsafe { device.alloc::<f32>(rows)? };
        let function = function(&stream, &self.launch)?;
        let gradients = i32::from(self.gradients);
        let mut args = stream.launch_builder(&function);
        args.arg(logits.as_cuda_slice_mut::<E>()?)
            .arg(&targets)
            .arg(&mut losses)
            .arg(&self.width)
            .arg(&gradients);
        // SAFETY: logits are (rows, width) from the start of their memory, targets and losses (rows), and each target
        // is below the width, as `check_targets` found.
        unsafe { launch(args, &self.launch)? };
        let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(losses, device));
        let losses = Tensor::from_storage(storage, rows, BackpropOp::none(), false);
        *self.losses.lock().map_err(|_| candle_core::Error::msg("cross-entropy: an earlier panic"))? =
            Some(losses);
        Ok(())
    }
}

impl InplaceOp1 for LossesToGradients {
    fn name(&self) -> &'static str {
        "cross-entropy-rows"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        candle_core::bail!("cross-entropy: the kernel is for CUDA, but the logits are on the CPU")
    }

    fn cuda_fwd(&self, logits: &mut CudaStorage, layout: &Layout) -> Result<()> {
        match logits.dtype() {
            DType::F16 => self.run::<f16>(logits, layout),
            DType::BF16 => self.run::<bf16>(logits, layout),
            _ => self.run::<f32>(logits, layout),
        }
    }
}
