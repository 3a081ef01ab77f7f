//! Products of a few rows with what stands around them, in one launch: `cuda/few_rows.cu`.

use super::finish_append::AppendShape;
use super::launch_plan::{Launch, dtype_name};
use super::layers::unit;
use candle_core::DType;

/// The most rows of a kernel. The sums of 16 rows in halves would not fit a thread's registers.
pub(crate) const MOST_ROWS: usize = 8;

/// Threads per block in `few_rows.cu`.
const THREADS: u32 = 512;

/// Shared memory of a block: 8192 numbers of the rows with gaps, or the sums of its threads; the mean and the factor of each row's
/// norm; the sums of the block, which has at most 8 units of 8 numbers.
const SHARED: usize = (8192 / 4 * 5 + (2 + 8 * 8) * MOST_ROWS) * size_of::<f32>();

/// The sizes of a product, and what goes with it: `FewRows` in `few_rows.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ProductShape {
    rows: i32,
    depth: i32,
    width: i32,
    lanes: i32,
    gelu: i32,
    eps: f32,
    to: AppendShape,
}

const _: () = assert!(size_of::<ProductShape>() == 24 + size_of::<AppendShape>());

/// The launch for a product (rows, depth) · (depth, width) on a GPU of so many multiprocessors, and its shape, without an epilogue;
/// `None` if there is no kernel for it.
///
/// A block reads 8 units of each row of the weight, or fewer if that leaves half of the multiprocessors without a block. It is
/// the same number for any number of rows, so that the sums of a row do not depend on the other rows.
pub(crate) fn product_launch(
    dtype: DType,
    [rows, depth, width]: [usize; 3],
    multiprocessors: usize,
) -> Option<(Launch, ProductShape)> {
    let name = dtype_name(dtype)?;
    unit(dtype, depth)?;
    let units = width / unit(dtype, width)?;
    if rows == 0 || rows > MOST_ROWS {
        return None;
    }
    let fills_half = |lanes: &usize| 2 * units.div_ceil(*lanes) >= multiprocessors;
    let lanes = [8, 4].into_iter().find(fills_half).unwrap_or(2);
    let of_rows = if rows == 1 { 1 } else { MOST_ROWS };
    let kernel = format!("product_of_{of_rows}_{name}");
    let number = |n: usize| i32::try_from(n).ok();
    let shape = ProductShape {
        rows: number(rows)?,
        depth: number(depth)?,
        width: number(width)?,
        lanes: number(lanes)?,
        gelu: 0,
        eps: 0.0,
        to: AppendShape::default(),
    };
    Some((Launch::new(kernel, units.div_ceil(lanes), THREADS, SHARED)?, shape))
}

#[cfg(feature = "cuda")]
pub(crate) use ops::{few_rows, few_rows_append, few_rows_fit};

#[cfg(feature = "cuda")]
mod ops {
    #![allow(unsafe_code)] // kernels take pointers; each unsafe block says why they are sound

    use super::{ProductShape, product_launch};
    use crate::cpu::dispatch::Dispatch;
    use crate::gpu::append_at::AppendAt;
    use crate::gpu::device::{UNIT, aligned, function, gpu_limits, launch, view, view_of};
    use crate::gpu::finish_append::{AppendShape, number_of_positions, room};
    use crate::gpu::launch_plan::Launch;
    use crate::gpu::layers::fits;
    use crate::pointwise::activation::Activation;
    use crate::pointwise::epilogue::Epilogue;
    use crate::pointwise::norm::input::InputNorm;
    use candle_core::backend::BackendStorage;
    use candle_core::cuda_backend::CudaDType;
    use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DeviceRepr, PushKernelArg};
    use candle_core::op::BackpropOp;
    use candle_core::{
        CpuStorage, CudaStorage, CustomOp1, DType, Device, InplaceOp2, Layout, Result, Shape, Storage, Tensor,
    };
    use half::{bf16, f16};
    use std::cell::Cell;
    use std::sync::LazyLock;

    /// The environment variable that leaves these products to cuBLAS, if it is `cublas`: to time the two.
    const PRODUCTS: &str = "CANDLE_FUSED_CUDA_PRODUCTS";

    /// `x·W + bias`, then `epilogue`, with x or its layer norm by `norm`: `x` (rows, in), `weight` (in, out) -> (rows, out); or `None` if
    /// no kernel does that at once.
    pub(crate) fn few_rows(
        dispatch: Dispatch,
        [x, weight, bias]: [&Tensor; 3],
        norm: Option<InputNorm>,
        epilogue: Epilogue,
    ) -> Result<Option<Tensor>> {
        let (gelu, residual) = match epilogue {
            Epilogue::None => (false, None),
            Epilogue::Activation(Activation::GeluTanh) => (true, None),
            Epilogue::Residual(residual) => (false, Some(residual)),
            Epilogue::Activation(_) | Epilogue::Gated(..) => return Ok(None),
        };
        let Some(mut op) = FewRows::planned(dispatch, [x, weight, bias], norm, residual)? else {
            return Ok(None);
        };
        op.shape.gelu = i32::from(gelu);
        aligned(x, UNIT)?.apply_op1_no_bwd(&op).map(Some)
    }

    /// [`few_rows`] whose columns behind the queries go into `cache` (B, heads, capacity, D) at a place: `x` (B·T, in),
    /// `weight` (in, queries + heads·D) -> (B·T, queries + heads·D), of which only the queries hold anything. The cache is a whole
    /// tensor with room for T more positions.
    pub(crate) fn few_rows_append(
        dispatch: Dispatch,
        [x, weight, bias]: [&Tensor; 3],
        norm: Option<InputNorm>,
        cache: &Tensor,
        AppendAt { past, on_gpu }: AppendAt,
    ) -> Result<Option<Tensor>> {
        let sizes @ (b, heads, _, dim) = cache.dims4()?;
        if b == 0 || !fits(dispatch, &[x, cache])? {
            return Ok(None);
        }
        let Some(mut op) = FewRows::planned(dispatch, [x, weight, bias], norm, None)? else {
            return Ok(None);
        };
        let positions = room(cache, x.dim(0)?, bias.elem_count(), past)?;
        let queries = bias.elem_count() - heads * dim;
        let Some(to) = AppendShape::new(x.dtype(), queries, sizes.into(), past, positions) else {
            return Ok(None);
        };
        op.shape.to = to;
        op.past = on_gpu.map(number_of_positions).transpose()?;
        cache.inplace_op2(&aligned(x, UNIT)?, &op)?;
        Ok(op.product.take())
    }

    /// Whether [`few_rows`] has a kernel for this product with a residual (rows, out).
    pub(crate) fn few_rows_fit(dispatch: Dispatch, factors: [&Tensor; 3], residual: &Tensor) -> Result<bool> {
        Ok(plan(dispatch, factors, &[residual])?.is_some())
    }

    /// The launch for these tensors and its shape, without an epilogue; `None` if there is no kernel for them. The weight must lie as
    /// the kernel reads it: a copy would cost more than the product.
    fn plan(
        dispatch: Dispatch,
        [x, weight, bias]: [&Tensor; 3],
        more: &[&Tensor],
    ) -> Result<Option<(Launch, ProductShape)>> {
        static BY_CUBLAS: LazyLock<bool> =
            LazyLock::new(|| std::env::var(PRODUCTS).is_ok_and(|by| by == "cublas"));
        let Device::Cuda(device) = x.device() else { return Ok(None) };
        let all = [&[x, weight, bias], more].concat();
        let offset = weight.layout().start_offset() * weight.dtype().size_in_bytes();
        let lies_well = weight.is_contiguous() && offset.is_multiple_of(UNIT);
        if *BY_CUBLAS || !lies_well || !fits(dispatch, &all)? {
            return Ok(None);
        }
        let (rows, depth) = x.dims2()?;
        let multiprocessors = gpu_limits(device)?.multiprocessors;
        Ok(product_launch(x.dtype(), [rows, depth, bias.elem_count()], multiprocessors))
    }

    /// A product of a few rows x, with everything else that it reads.
    struct FewRows {
        launch: Launch,
        shape: ProductShape,
        /// (in, out)
        weight: Tensor,
        /// (out)
        bias: Tensor,
        /// The weight and the bias of the norm, (in) each
        norm: Option<[Tensor; 2]>,
        /// (rows, out)
        residual: Option<Tensor>,
        /// The number of positions in the cache, u32 (1), in place of the number in `shape`
        past: Option<Tensor>,
        /// The product whose last columns went into a cache, once it has run: (rows, out)
        product: Cell<Option<Tensor>>,
    }

    // SAFETY: i32s and an f32 in C's order; `few_rows.cu` has the same struct.
    unsafe impl DeviceRepr for ProductShape {}

    impl FewRows {
        /// `None` if there is no kernel for these tensors.
        fn planned(
            dispatch: Dispatch,
            [x, weight, bias]: [&Tensor; 3],
            norm: Option<InputNorm>,
            residual: Option<&Tensor>,
        ) -> Result<Option<Self>> {
            let norm_tensors = norm.map(|norm| [norm.weight, norm.bias]);
            let more: Vec<_> = norm_tensors.into_iter().flatten().chain(residual).collect();
            let Some((launch, mut shape)) = plan(dispatch, [x, weight, bias], &more)? else {
                return Ok(None);
            };
            #[allow(clippy::cast_possible_truncation)] // a small positive number
            if let Some(norm) = norm {
                shape.eps = norm.eps as f32;
            }
            let ready = |x: &Tensor| aligned(x, UNIT);
            let norm = match norm_tensors {
                Some([weight, bias]) => Some([ready(weight)?, ready(bias)?]),
                None => None,
            };
            Ok(Some(Self {
                launch,
                shape,
                weight: weight.clone(),
                bias: ready(bias)?,
                norm,
                residual: residual.map(ready).transpose()?,
                past: None,
                product: Cell::new(None),
            }))
        }

        fn out_shape(&self, x: &Layout) -> Result<Shape> {
            Ok((x.shape().dims2()?.0, self.bias.elem_count()).into())
        }

        fn run<E: CudaDType + DeviceRepr>(
            &self,
            x: (&CudaStorage, &Layout),
            cache: Option<&mut CudaStorage>,
        ) -> Result<CudaStorage> {
            let device = x.0.device();
            let stream = device.cuda_stream();
            let function = function(&stream, &self.launch)?;
            let out_shape = self.out_shape(x.1)?;
            let x = view::<E>(x)?;
            let norm = self.norm.as_ref();
            let optional = [norm.map(|norm| &norm[0]), norm.map(|norm| &norm[1]), self.residual.as_ref()];
            let guards = [Some(&self.weight), Some(&self.bias)].into_iter().chain(optional);
            let guards: Vec<_> = guards.map(|tensor| tensor.map(Tensor::storage_and_layout)).collect();
            let inputs = guards.iter().map(|guard| {
                guard.as_ref().map(|(storage, layout)| view_of::<E>(storage, layout)).transpose()
            });
            let inputs: Vec<_> = inputs.collect::<Result<_>>()?;
            let cache: Option<&mut CudaSlice<E>> =
                cache.map(|cache| cache.as_cuda_slice_mut::<E>()).transpose()?;
            let past = self.past.as_ref().map(Tensor::storage_and_layout);
            let past = past.as_ref().map(|(storage, layout)| view_of::<u32>(storage, layout)).transpose()?;
            // SAFETY: the kernel writes every element, but of those that go into a cache, which nobody reads here.
            let mut out = unsafe { device.alloc::<E>(out_shape.elem_count())? };
            let nothing = 0u64; // a null pointer
            let mut args = stream.launch_builder(&function);
            args.arg(&x);
            for input in &inputs {
                match input {
                    Some(input) => args.arg(input),
                    None => args.arg(&nothing),
                };
            }
            match cache {
                Some(cache) => args.arg(cache),
                None => args.arg(&nothing),
            };
            match &past {
                Some(past) => args.arg(past),
                None => args.arg(&nothing),
            };
            args.arg(&mut out).arg(&self.shape);
            // SAFETY: x is (rows, depth), the weight (depth, width), the bias (width), the weight and the bias of a norm (depth), a residual
            // and out (rows, width), and the cache (B, heads, capacity, dim) from the start of its memory, with room for the new
            // positions. All are contiguous and aligned.
            unsafe { launch(args, &self.launch)? };
            Ok(CudaStorage::wrap_cuda_slice(out, device.clone()))
        }

        fn of_dtype(
            &self,
            x: (&CudaStorage, &Layout),
            cache: Option<&mut CudaStorage>,
        ) -> Result<CudaStorage> {
            match x.0.dtype() {
                DType::F16 => self.run::<f16>(x, cache),
                DType::BF16 => self.run::<bf16>(x, cache),
                _ => self.run::<f32>(x, cache),
            }
        }
    }

    impl CustomOp1 for FewRows {
        fn name(&self) -> &'static str {
            "product-of-few-rows"
        }

        fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
            candle_core::bail!("linear: the kernel is for CUDA, but x is on the CPU")
        }

        fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
            Ok((self.of_dtype((x, layout), None)?, self.out_shape(layout)?))
        }
    }

    /// With the cache as the tensor that changes for Candle.
    impl InplaceOp2 for FewRows {
        fn name(&self) -> &'static str {
            "product-into-cache"
        }

        fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<()> {
            candle_core::bail!("cache: the kernel is for CUDA, but the cache is on the CPU")
        }

        fn cuda_fwd(
            &self,
            cache: &mut CudaStorage,
            _: &Layout,
            x: &CudaStorage,
            layout: &Layout,
        ) -> Result<()> {
            let storage = Storage::Cuda(self.of_dtype((x, layout), Some(cache))?);
            let shape = self.out_shape(layout)?;
            self.product.set(Some(Tensor::from_storage(storage, shape, BackpropOp::none(), false)));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(dtype: DType, rows: usize, depth: usize, width: usize) -> Option<(String, u32, i32)> {
        let (launch, shape) = product_launch(dtype, [rows, depth, width], 132)?;
        Some((launch.kernel, launch.blocks, shape.lanes))
    }

    #[test]
    fn blocks_are_narrow_enough_to_fill_half_of_a_gpu() {
        let of = |name: &str, blocks, lanes| Some((format!("product_of_{name}"), blocks, lanes));
        assert_eq!(planned(DType::F32, 1, 768, 2304), of("1_f32", 72, 8));
        assert_eq!(planned(DType::BF16, 1, 768, 2304), of("1_bf16", 72, 4));
        assert_eq!(planned(DType::BF16, 5, 3072, 768), of("8_bf16", 48, 2));
        assert_eq!(planned(DType::F16, 8, 8, 24), of("8_f16", 2, 2));
        assert_eq!(product_launch(DType::F32, [1, 8, 24], 2).map(|(launch, _)| launch.blocks), Some(1));
    }

    #[test]
    fn many_rows_and_parts_of_16_bytes_have_no_kernel() {
        assert_eq!(planned(DType::F32, 9, 768, 768), None);
        assert_eq!(planned(DType::F32, 0, 768, 768), None);
        assert_eq!(planned(DType::F16, 1, 12, 16), None);
        assert_eq!(planned(DType::F16, 1, 16, 12), None);
        assert_eq!(planned(DType::F64, 1, 16, 16), None);
    }
}
