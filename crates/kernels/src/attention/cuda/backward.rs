//! Launches the backward kernels.

#![allow(unsafe_code)] // kernels take pointers; each unsafe block says why they are sound

use super::hidden::HiddenOnGpu;
use super::plan::BackwardPlan;
use super::shape::Masks;
use crate::cuda::{check_thread, function, launch, view_of};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, PushKernelArg};
use candle_core::cuda_backend::{CudaDType, CudaStorage};
use candle_core::op::BackpropOp;
use candle_core::{Result, Storage, Tensor};

/// What a forward pass leaves to its backward pass.
pub(super) struct Saved<'a> {
    pub(super) plan: &'a BackwardPlan,
    pub(super) padding: Option<&'a Tensor>,
    pub(super) masks: Masks,
    pub(super) hidden: Option<&'a HiddenOnGpu>,
    /// f32 (B, H, T)
    pub(super) log_sums: &'a Tensor,
}

/// The gradients of q (B, H, T, D), k and v (B, H, S, D), for `grad` and `context` (B, T, H, D), both contiguous and
/// aligned.
pub(super) fn gradients<E: CudaDType + DeviceRepr>(
    saved: &Saved,
    [q, k, v]: [&Tensor; 3],
    context: &Tensor,
    grad: &Tensor,
) -> Result<[Tensor; 3]> {
    let (b, h, t, d) = q.dims4()?;
    let s = k.dim(2)?;
    let guards = [q, k, v, context, grad].map(Tensor::storage_and_layout);
    let views: Vec<_> =
        guards.iter().map(|(storage, layout)| view_of::<E>(storage, layout)).collect::<Result<_>>()?;
    let [q, k, v, context, grad] = &views[..] else { candle_core::bail!("attention: five tensors") };
    let Storage::Cuda(of_q) = &*guards[0].0 else {
        candle_core::bail!("attention: the plan is for CUDA, but q is elsewhere")
    };
    let device = of_q.device().clone();
    check_thread(&device)?;
    let stream = device.cuda_stream();
    let padding = saved.padding.map(Tensor::storage_and_layout);
    let padding = padding.as_ref().map(|(storage, layout)| view_of::<u8>(storage, layout)).transpose()?;
    let (log_sums, log_sums_layout) = saved.log_sums.storage_and_layout();
    let log_sums = view_of::<f32>(&log_sums, log_sums_layout)?;
    let masks = HiddenOnGpu::within(saved.masks, saved.hidden, &stream)?;
    let nothing = 0u64; // a null pointer
    // SAFETY: the memory starts uninitialized. The launches below write all of each, and read `deltas` after that.
    let (mut deltas, mut dq, mut dk, mut dv) = unsafe {
        let keys = b * s * h * d;
        (
            device.alloc::<f32>(b * h * t)?,
            device.alloc::<E>(b * t * h * d)?,
            device.alloc::<E>(keys)?,
            device.alloc::<E>(keys)?,
        )
    };

    let BackwardPlan { shape, deltas: of_deltas, of_queries, of_keys } = saved.plan;
    let (rows, width) = (i64::try_from(b * t * h)?, i32::try_from(d)?);
    let kernel = function(&stream, of_deltas)?;
    let mut args = stream.launch_builder(&kernel);
    args.arg(grad).arg(context).arg(&mut deltas).arg(&rows).arg(&shape.queries).arg(&shape.heads).arg(&width);
    // SAFETY: grad and context are (B, T, H, D), contiguous and aligned, and deltas (B, H, T).
    unsafe { launch(args, of_deltas)? };

    for (plan, of_queries) in [(of_queries, true), (of_keys, false)] {
        let kernel = function(&stream, plan)?;
        let mut args = stream.launch_builder(&kernel);
        args.arg(q).arg(k).arg(v);
        match &padding {
            Some(padding) => args.arg(padding),
            None => args.arg(&nothing),
        };
        args.arg(grad).arg(&log_sums).arg(&deltas);
        if of_queries {
            args.arg(&mut dq)
        } else {
            args.arg(&mut dk).arg(&mut dv)
        };
        args.arg(shape).arg(&masks);
        // SAFETY: the arguments are those of the kernel, and the plan was made for their layouts, so it reads and writes
        // inside them. The tests run the same plans over guarded memory.
        unsafe { launch(args, plan)? };
    }

    let tensor = |slice, positions| {
        let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(slice, device.clone()));
        Tensor::from_storage(storage, (b, positions, h, d), BackpropOp::none(), false).transpose(1, 2)
    };
    Ok([tensor(dq, t)?, tensor(dk, s)?, tensor(dv, s)?])
}
