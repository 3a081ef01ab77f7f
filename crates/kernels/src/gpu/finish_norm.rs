//! A product's bias and residual, and the layer norm of the sum, in one pass: `cuda/layers.cu`.

#![allow(unsafe_code)] // kernels take pointers; each unsafe block says why they are sound

use crate::cpu::dispatch::Dispatch;
use crate::gpu::blas_lt;
use crate::gpu::device::{UNIT, aligned, function, launch, view_of};
use crate::gpu::launch_plan::Launch;
use crate::gpu::layers::{fits, launch_of_rows};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, PushKernelArg};
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CudaStorage, DType, InplaceOp1, Layout, Result, Storage, Tensor};
use half::{bf16, f16};
use std::cell::Cell;

/// `residual + x·W + bias`, and the layer norm of that by its weight and its bias: `x` (rows, in), `weight` (in, out), `residual`
/// (rows, out) -> two tensors (rows, out); or `None` if no kernel computes both.
pub(crate) fn linear_norm(
    dispatch: Dispatch,
    [x, weight, bias, residual]: [&Tensor; 4],
    [norm_weight, norm_bias]: [&Tensor; 2],
    eps: f64,
) -> Result<Option<(Tensor, Tensor)>> {
    let rows = x.dim(0)?;
    let width = bias.elem_count();
    let all = [x, weight, bias, residual, norm_weight, norm_bias];
    if !fits(dispatch, &all)? || rows == 0 || blas_lt::takes(x)? {
        return Ok(None);
    }
    let Some(launch) = launch_of_rows("finish_norm", x.dtype(), rows, width) else { return Ok(None) };
    #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
    // checked by `launch_of_rows`
    let op = FinishNorm {
        launch,
        rows: rows as i64,
        width: width as i32,
        eps: eps as f32,
        bias: aligned(bias, UNIT)?,
        residual: aligned(residual, UNIT)?,
        norm_weight: aligned(norm_weight, UNIT)?,
        norm_bias: aligned(norm_bias, UNIT)?,
        normed: Cell::new(None),
    };
    let product = x.matmul(&weight.contiguous()?)?; // (rows, out); no other tensor shares its memory
    product.inplace_op1(&op)?;
    Ok(op.normed.take().map(|normed| (product, normed)))
}

/// The bias and the residual of a product, in place, and the layer norm of the sum.
struct FinishNorm {
    launch: Launch,
    rows: i64,
    width: i32,
    eps: f32,
    /// (out)
    bias: Tensor,
    /// (rows, out)
    residual: Tensor,
    /// (out)
    norm_weight: Tensor,
    /// (out)
    norm_bias: Tensor,
    /// The layer norm, once it has run: (rows, out)
    normed: Cell<Option<Tensor>>,
}

impl FinishNorm {
    fn run<E: CudaDType + DeviceRepr>(&self, x: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let device = x.device().clone();
        let stream = device.cuda_stream();
        let function = function(&stream, &self.launch)?;
        let guards = [&self.bias, &self.residual, &self.norm_weight, &self.norm_bias];
        let guards = guards.map(Tensor::storage_and_layout);
        let inputs: Vec<_> =
            guards.iter().map(|(storage, layout)| view_of::<E>(storage, layout)).collect::<Result<_>>()?;
        // SAFETY: the kernel writes every element.
        let mut normed = unsafe { device.alloc::<E>(layout.shape().elem_count())? };
        let x = x.as_cuda_slice_mut::<E>()?;
        let mut args = stream.launch_builder(&function);
        args.arg(x);
        for input in &inputs {
            args.arg(input);
        }
        args.arg(&mut normed).arg(&self.rows).arg(&self.width).arg(&self.eps);
        // SAFETY: x, residual and normed are (rows, width), x and normed from the start of their memory; bias, weight and bias of
        // the norm are (width). All are contiguous and aligned.
        unsafe { launch(args, &self.launch)? };
        let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(normed, device));
        let normed = Tensor::from_storage(storage, layout.shape(), BackpropOp::none(), false);
        self.normed.set(Some(normed));
        Ok(())
    }
}

impl InplaceOp1 for FinishNorm {
    fn name(&self) -> &'static str {
        "finish-norm"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        candle_core::bail!("linear: the kernel is for CUDA, but x is on the CPU")
    }

    fn cuda_fwd(&self, x: &mut CudaStorage, layout: &Layout) -> Result<()> {
        match x.dtype() {
            DType::F16 => self.run::<f16>(x, layout),
            DType::BF16 => self.run::<bf16>(x, layout),
            _ => self.run::<f32>(x, layout),
        }
    }
}
