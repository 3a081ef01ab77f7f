//! Launches the kernels on Candle's tensors, forward and backward.

#![allow(unsafe_code)] // kernels take pointers; each unsafe block says why they are sound

use super::plan::{BackwardPlan, KernelArguments, KernelShape, Masks, Plan};
use crate::attention::heads::WeightDropout;
use crate::attention::inputs::Inputs;
use crate::attention::mask::{HiddenKeys, Mask};
use crate::gpu::device::{
    UNIT, aligned, check_thread, counters, function, gpu_limits, launch, view, view_of,
};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{CudaStream, DevicePtr, DeviceRepr, PushKernelArg};
use candle_core::op::BackpropOp;
use candle_core::{
    CpuStorage, CudaDevice, CudaStorage, CustomOp3, DType, Layout, Result, Shape, Storage, Tensor,
};
use half::{bf16, f16};
use std::sync::OnceLock;

/// The kernels for q, k and v in certain layouts.
pub(in crate::attention) struct Kernels {
    plan: Plan,
    /// If a gradient is needed.
    backward: Option<BackwardPlan>,
    masks: Masks,
}

impl Kernels {
    /// `None` if there are none.
    pub(in crate::attention) fn new(
        device: &CudaDevice,
        inputs: &Inputs,
        scale: f64,
        dropout: Option<WeightDropout>,
    ) -> Result<Option<Self>> {
        let gpu = gpu_limits(device)?;
        let dtype = inputs.dtypes[0];
        // A tensor that is converted to the dtype of q becomes contiguous.
        let mut layouts = inputs.layouts.clone();
        for (layout, from) in layouts.iter_mut().zip(inputs.dtypes) {
            if from != dtype {
                *layout = Layout::contiguous(layout.shape());
            }
        }
        let layouts = layouts.each_ref();
        let masked = dropout.is_some() || inputs.hidden;
        let plan = Plan::new(dtype, layouts, scale, [masked, inputs.gradient], gpu);
        let (Some(plan), Some(masks)) = (plan, Masks::new(dropout.as_ref())) else { return Ok(None) };
        let backward = inputs.gradient.then(|| BackwardPlan::new(dtype, layouts, scale, gpu));
        if let Some(None) = backward {
            return Ok(None);
        }
        Ok(Some(Self { plan, backward: backward.flatten(), masks }))
    }

    /// Whether they decode: one query for each head, without hidden keys, dropout and gradients.
    pub(in crate::attention) fn decode(&self) -> bool {
        self.plan.task == KernelArguments::Decode
    }

    /// The context (B, T, H, D) of q (B, H, T, D), k and v (B, H, S, D). If they [`decode`](Self::decode), `past` may hold the number of
    /// keys before the query's own, u32 (1), behind which there are none yet.
    pub(in crate::attention) fn forward(
        self,
        [q, k, v]: [&Tensor; 3],
        mask: Mask,
        past: Option<&Tensor>,
    ) -> Result<Tensor> {
        if let Some(padding) = mask.padding.filter(|padding| !padding.device().same_device(q.device())) {
            candle_core::bail!(
                "attention: the padding mask is on {:?}, q on {:?}",
                padding.device().location(),
                q.device().location()
            )
        }
        let op = CudaAttention {
            kernels: self,
            padding: mask.padding.map(Tensor::contiguous).transpose()?,
            past: past.cloned(),
            hidden: (!mask.hidden.is_empty()).then(|| HiddenOnGpu::new(mask, q)).transpose()?,
            log_sums: OnceLock::new(),
        };
        q.apply_op3(k, v, op)
    }
}

/// The operation as Candle sees it, for one call.
struct CudaAttention {
    kernels: Kernels,
    /// u8 (B, S), contiguous
    padding: Option<Tensor>,
    /// u32 (1)
    past: Option<Tensor>,
    hidden: Option<HiddenOnGpu>,
    /// f32 (B, H, T), saved for the backward pass.
    log_sums: OnceLock<Tensor>,
}

// SAFETY: i64s, i32s and an f32 in C's order, without gaps between them; `tiles.cuh` has the same struct.
unsafe impl DeviceRepr for KernelShape {}
// SAFETY: u64s, u32s, an f32 and i32s in C's order, without gaps between them; `masks.cuh` has the same struct.
unsafe impl DeviceRepr for Masks {}

impl CudaAttention {
    fn run<E: CudaDType + DeviceRepr>(
        &self,
        qkv: [(&CudaStorage, &Layout); 3],
    ) -> Result<(CudaStorage, Shape)> {
        let [(q, q_layout), _, _] = qkv;
        let device = q.device();
        let stream = device.cuda_stream();
        let (b, h, t, d) = q_layout.shape().dims4()?;
        let views = [view::<E>(qkv[0])?, view::<E>(qkv[1])?, view::<E>(qkv[2])?];
        let rows = if self.kernels.backward.is_some() { b * h * t } else { 0 };
        // SAFETY: the memory starts uninitialized. The launch below writes all of `out` and, if a gradient is needed, of
        // `log_sums`, and reads only those parts of `partials` that it has written.
        let (mut out, mut log_sums, mut partials) = unsafe {
            let partials =
                self.kernels.plan.partials.map(|(count, _)| device.alloc::<f32>(count)).transpose()?;
            (
                device.alloc::<E>(b * t * h * d)?,
                (rows > 0).then(|| device.alloc::<f32>(rows)).transpose()?,
                partials,
            )
        };
        let counters = self.kernels.plan.partials.map(|(_, heads)| counters(device, heads)).transpose()?;
        let padding = self.padding.as_ref().map(Tensor::storage_and_layout);
        let padding = padding.as_ref().map(|(storage, layout)| view_of::<u8>(storage, layout)).transpose()?;
        let past = self.past.as_ref().map(Tensor::storage_and_layout);
        let past = past.as_ref().map(|(storage, layout)| view_of::<u32>(storage, layout)).transpose()?;
        let masks = HiddenOnGpu::within(self.kernels.masks, self.hidden.as_ref(), &stream)?;
        let nothing = 0u64; // a null pointer

        let Plan { shape, task, launch: plan, .. } = &self.kernels.plan;
        let kernel = function(&stream, plan)?;
        let mut args = stream.launch_builder(&kernel);
        for view in &views {
            args.arg(view);
        }
        match &padding {
            Some(padding) => args.arg(padding),
            None => args.arg(&nothing),
        };
        if *task == KernelArguments::Decode {
            match &past {
                Some(past) => args.arg(past),
                None => args.arg(&nothing),
            };
        }
        args.arg(&mut out);
        match (task, &mut partials, &counters, &mut log_sums) {
            (KernelArguments::Decode, Some(partials), Some(counters), None) => {
                args.arg(partials).arg(&**counters)
            }
            (KernelArguments::Decode, None, None, None) => args.arg(&nothing).arg(&nothing),
            (KernelArguments::Attention | KernelArguments::Masked, None, None, Some(log_sums)) => {
                args.arg(log_sums)
            }
            (KernelArguments::Attention | KernelArguments::Masked, None, None, None) => args.arg(&nothing),
            _ => candle_core::bail!("attention: a plan for {task:?} with other buffers than it needs"),
        };
        args.arg(shape);
        if *task == KernelArguments::Masked {
            args.arg(&masks);
        }
        // SAFETY: the arguments are those of the task, and the plan was made for their layouts, so the kernel reads and
        // writes inside them. The tests run the same plans over guarded memory.
        unsafe { launch(args, plan)? };
        if let Some(log_sums) = log_sums {
            let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(log_sums, device.clone()));
            let log_sums = Tensor::from_storage(storage, (b, h, t), BackpropOp::none(), false);
            self.log_sums.set(log_sums).map_err(|_| candle_core::Error::msg("causal attention ran twice"))?;
        }
        Ok((CudaStorage::wrap_cuda_slice(out, device.clone()), Shape::from((b, t, h, d))))
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
    ) -> Result<(CpuStorage, Shape)> {
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
    ) -> Result<(CudaStorage, Shape)> {
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
        let (Some(plan), Some(log_sums)) = (&self.kernels.backward, self.log_sums.get()) else {
            candle_core::bail!("attention: a backward pass that the forward pass did not expect")
        };
        let saved = Saved {
            plan,
            padding: self.padding.as_ref(),
            masks: self.kernels.masks,
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

/// The values that a forward pass saves for its backward pass.
struct Saved<'a> {
    plan: &'a BackwardPlan,
    padding: Option<&'a Tensor>,
    masks: Masks,
    hidden: Option<&'a HiddenOnGpu>,
    /// f32 (B, H, T)
    log_sums: &'a Tensor,
}

/// The gradients of q (B, H, T, D), k and v (B, H, S, D), for `grad` and `context` (B, T, H, D), both contiguous and
/// aligned.
fn gradients<E: CudaDType + DeviceRepr>(
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
    let rows = i64::try_from(b * t * h)?;
    let width = i32::try_from(d)?;
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

/// Hidden keys in the GPU's memory: u32 (H·T + 1), and u32 (keys).
struct HiddenOnGpu {
    starts: Tensor,
    keys: Tensor,
}

impl HiddenOnGpu {
    fn new(mask: Mask, q: &Tensor) -> Result<Self> {
        let (_, h, t, _) = q.dims4()?;
        let (starts, keys) = HiddenKeys::new(mask.hidden, h).by_row(h, t);
        let tensor = |numbers: Vec<u32>| {
            let len = numbers.len();
            Tensor::from_vec(numbers, len, q.device())
        };
        Ok(Self { starts: tensor(starts)?, keys: tensor(keys)? })
    }

    /// The masks with the addresses of these keys, which stay valid as long as they do.
    fn within(masks: Masks, hidden: Option<&Self>, stream: &CudaStream) -> Result<Masks> {
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
