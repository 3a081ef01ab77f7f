//! Layer norm, and the bias, GELU and residual after a matrix product, in one pass each: `cuda/layers.cu`.

use super::launch_plan::{Launch, dtype_name};
use candle_core::DType;

/// Threads per block in `layers.cu`. In a layer norm, each warp of 32 threads takes a row.
const THREADS: u32 = 128;
const ROWS: usize = THREADS as usize / 32;

/// The number of elements in 16 bytes, if rows of `width` divide into such units.
pub(super) fn unit(dtype: DType, width: usize) -> Option<usize> {
    let unit = 16 / dtype.size_in_bytes();
    (width > 0 && width.is_multiple_of(unit) && i32::try_from(width).is_ok()).then_some(unit)
}

/// The launch of a kernel with a warp for each row of (rows, width); `None` if rows do not divide into 16-byte units.
pub(super) fn launch_of_rows(kernel: &str, dtype: DType, rows: usize, width: usize) -> Option<Launch> {
    let name = dtype_name(dtype)?;
    unit(dtype, width)?;
    Launch::new(format!("{kernel}_{name}"), rows.div_ceil(ROWS), THREADS, 0)
}

/// The launch of a kernel with a thread for each 16-byte unit of (rows, width), and the number of units; `None` if rows do not
/// divide into units.
pub(super) fn launch_of_units(
    kernel: &str,
    dtype: DType,
    rows: usize,
    width: usize,
) -> Option<(Launch, usize)> {
    let name = dtype_name(dtype)?;
    let units = rows * width / unit(dtype, width)?;
    Some((Launch::new(format!("{kernel}_{name}"), units.div_ceil(THREADS as usize), THREADS, 0)?, units))
}

/// The launch for what follows a product (rows, width), if there is a kernel for it, and the number of 16-byte units.
pub(crate) fn finish_launch(dtype: DType, rows: usize, width: usize, gelu: bool) -> Option<(Launch, usize)> {
    launch_of_units(if gelu { "finish_gelu" } else { "finish" }, dtype, rows, width)
}

#[cfg(feature = "cuda")]
pub(super) use ops::fits;
#[cfg(feature = "cuda")]
pub(crate) use ops::{layer_norm, linear};

#[cfg(feature = "cuda")]
mod ops {
    #![allow(unsafe_code)] // kernels take pointers; each unsafe block says why they are sound

    use super::{finish_launch, launch_of_rows};
    use crate::cpu::dispatch::Dispatch;
    use crate::gpu::blas_lt;
    use crate::gpu::device::{UNIT, aligned, function, gpu_limits, launch, view, view_of};
    use crate::gpu::launch_plan::Launch;
    use crate::pointwise::activation::Activation;
    use crate::pointwise::epilogue::Epilogue;
    use candle_core::backend::BackendStorage;
    use candle_core::cuda_backend::CudaDType;
    use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, PushKernelArg};
    use candle_core::{
        CpuStorage, CudaStorage, CustomOp3, D, DType, Device, InplaceOp1, Layout, Result, Shape, Tensor,
    };
    use half::{bf16, f16};

    /// Whether fused code may run, and all tensors share a dtype and a GPU and none needs a gradient: the
    /// kernels have no backward pass.
    pub(in crate::gpu) fn fits(dispatch: Dispatch, tensors: &[&Tensor]) -> Result<bool> {
        let (true, Device::Cuda(device)) = (dispatch.gpu_kernels(), tensors[0].device()) else {
            return Ok(false);
        };
        let one = tensors[0];
        let beside = |t: &Tensor| t.device().same_device(one.device()) && t.dtype() == one.dtype();
        let all = tensors.iter().all(|t| beside(t) && !t.track_op());
        Ok(all && gpu_limits(device)?.has_kernels_for(one.dtype()))
    }

    /// Layer normalization, or `None` if there is no kernel for it.
    pub(crate) fn layer_norm(
        dispatch: Dispatch,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        eps: f64,
    ) -> Result<Option<Tensor>> {
        let width = x.dim(D::Minus1)?;
        let rows = x.elem_count() / width.max(1);
        if !fits(dispatch, &[x, weight, bias])? || rows == 0 {
            return Ok(None);
        }
        let Some(launch) = launch_of_rows("layer_norm", x.dtype(), rows, width) else { return Ok(None) };
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        // checked by `launch_of_rows`
        let op = LayerNormKernel { launch, rows: rows as i64, width: width as i32, eps: eps as f32 };
        aligned(x, UNIT)?.apply_op3_no_bwd(&aligned(weight, UNIT)?, &aligned(bias, UNIT)?, &op).map(Some)
    }

    /// The product of `x` (rows, in) and `weight` (in, out) and everything that follows it: by cuBLASLt at once, or
    /// Candle's product and one pass over its result; or `None` if there is no kernel for that.
    pub(crate) fn linear(
        dispatch: Dispatch,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        epilogue: Epilogue,
    ) -> Result<Option<Tensor>> {
        let (gelu, residual) = match epilogue {
            Epilogue::None => (false, None),
            Epilogue::Activation(Activation::GeluTanh) => (true, None),
            Epilogue::Residual(residual) => (false, Some(residual)),
            Epilogue::Activation(activation) => {
                let y = linear(dispatch, x, weight, bias, Epilogue::None)?;
                return y.map(|y| activation.forward(&y)).transpose();
            }
            Epilogue::Gated(activation, gate) => {
                let y = linear(dispatch, x, weight, bias, Epilogue::None)?;
                return y.map(|y| activation.forward(&gate.reshape(y.shape())?)? * y).transpose();
            }
        };
        let all: Vec<_> = [x, weight, bias].into_iter().chain(residual).collect();
        let rows = x.dim(0)?;
        let width = bias.elem_count();
        if !fits(dispatch, &all)? || rows == 0 {
            return Ok(None);
        }
        if let Some(y) = blas_lt::product([x, weight, bias], gelu, residual)? {
            return Ok(Some(y));
        }
        let Some((launch, units)) = finish_launch(x.dtype(), rows, width, gelu) else { return Ok(None) };
        let residual = residual.map(|residual| aligned(residual, UNIT)).transpose()?;
        let bias = aligned(bias, UNIT)?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)] // checked by `finish_launch`
        let op = FinishProduct { launch, units: units as i64, width: width as i32, bias, residual };
        let product = x.matmul(&weight.contiguous()?)?; // (rows, out); no other tensor shares its memory
        product.inplace_op1(&op)?;
        Ok(Some(product))
    }

    struct LayerNormKernel {
        launch: Launch,
        rows: i64,
        width: i32,
        eps: f32,
    }

    impl LayerNormKernel {
        fn run<E: CudaDType + DeviceRepr>(
            &self,
            x: (&CudaStorage, &Layout),
            weight: (&CudaStorage, &Layout),
            bias: (&CudaStorage, &Layout),
        ) -> Result<(CudaStorage, Shape)> {
            let device = x.0.device();
            let stream = device.cuda_stream();
            let shape = x.1.shape().clone();
            let x = view::<E>(x)?;
            let weight = view::<E>(weight)?;
            let bias = view::<E>(bias)?;
            // SAFETY: the kernel writes every element.
            let mut out = unsafe { device.alloc::<E>(shape.elem_count())? };
            let function = function(&stream, &self.launch)?;
            let mut args = stream.launch_builder(&function);
            args.arg(&x).arg(&weight).arg(&bias).arg(&mut out);
            args.arg(&self.rows).arg(&self.width).arg(&self.eps);
            // SAFETY: x and out are (rows, width), weight and bias (width), contiguous and aligned.
            unsafe { launch(args, &self.launch)? };
            Ok((CudaStorage::wrap_cuda_slice(out, device.clone()), shape))
        }
    }

    impl CustomOp3 for LayerNormKernel {
        fn name(&self) -> &'static str {
            "layer-norm"
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
            candle_core::bail!("layer norm: the kernel is for CUDA, but x is on the CPU")
        }

        fn cuda_fwd(
            &self,
            x: &CudaStorage,
            x_layout: &Layout,
            weight: &CudaStorage,
            weight_layout: &Layout,
            bias: &CudaStorage,
            bias_layout: &Layout,
        ) -> Result<(CudaStorage, Shape)> {
            let x = (x, x_layout);
            let weight = (weight, weight_layout);
            let bias = (bias, bias_layout);
            match x.0.dtype() {
                DType::F16 => self.run::<f16>(x, weight, bias),
                DType::BF16 => self.run::<bf16>(x, weight, bias),
                _ => self.run::<f32>(x, weight, bias),
            }
        }
    }

    /// Everything that follows a product, in place.
    struct FinishProduct {
        launch: Launch,
        units: i64,
        width: i32,
        /// (out)
        bias: Tensor,
        /// (rows, out)
        residual: Option<Tensor>,
    }

    impl FinishProduct {
        fn run<E: CudaDType + DeviceRepr>(&self, x: &mut CudaStorage) -> Result<()> {
            let stream = x.device().cuda_stream();
            let function = function(&stream, &self.launch)?;
            let (bias, bias_layout) = self.bias.storage_and_layout();
            let bias = view_of::<E>(&bias, bias_layout)?;
            let residual = self.residual.as_ref().map(Tensor::storage_and_layout);
            let residual =
                residual.as_ref().map(|(storage, layout)| view_of::<E>(storage, layout)).transpose()?;
            let x = x.as_cuda_slice_mut::<E>()?;
            let nothing = 0u64; // a null pointer
            let mut args = stream.launch_builder(&function);
            args.arg(x).arg(&bias);
            match &residual {
                Some(residual) => args.arg(residual),
                None => args.arg(&nothing),
            };
            args.arg(&self.units).arg(&self.width);
            // SAFETY: x and residual are (rows, width) from the start of their memory, bias (width), contiguous and aligned.
            unsafe { launch(args, &self.launch) }
        }
    }

    impl InplaceOp1 for FinishProduct {
        fn name(&self) -> &'static str {
            "finish-product"
        }

        fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
            candle_core::bail!("linear: the kernel is for CUDA, but x is on the CPU")
        }

        fn cuda_fwd(&self, x: &mut CudaStorage, _: &Layout) -> Result<()> {
            match x.dtype() {
                DType::F16 => self.run::<f16>(x),
                DType::BF16 => self.run::<bf16>(x),
                _ => self.run::<f32>(x),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_parts_of_16_bytes_have_no_kernel() {
        assert_eq!(launch_of_rows("layer_norm", DType::F16, 3, 12), None);
        assert_eq!(finish_launch(DType::F32, 3, 6, false), None);
        assert_eq!(launch_of_rows("layer_norm", DType::F64, 3, 16), None);
    }
}
