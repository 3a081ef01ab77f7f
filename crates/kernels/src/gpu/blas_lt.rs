//! Matrix products in f16 and bf16 whose bias, GELU and residual cuBLASLt adds before it rounds and writes the result.

#![allow(unsafe_code)] // products take pointers; each unsafe block says why they are sound

use super::device::{PerStream, aligned, gpu_limits, view_of};
use crate::pointwise::activation::Activation as Function;
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::cublaslt::result::CublasError;
use candle_core::cuda_backend::cudarc::cublaslt::sys::cublasStatus_t;
use candle_core::cuda_backend::cudarc::cublaslt::{Activation, CudaBlasLT, Matmul, MatmulConfig};
use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::op::BackpropOp;
use candle_core::{
    CpuStorage, CudaDevice, CudaStorage, DType, Device, InplaceOp1, Layout, Result, Storage, Tensor,
};
use half::{bf16, f16};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::LazyLock;

/// For fewer rows the choice of an algorithm, which the host makes for each product, may cost more than the second pass.
const FEWEST_ROWS: usize = 64;

/// The alignment that cuBLASLt counts on when it chooses an algorithm, in bytes.
const ALIGNMENT: usize = 256;

/// Whether products of `x` (rows, in) are cuBLASLt's, if it computes them: those of many rows in f16 and bf16.
pub(super) fn takes(x: &Tensor) -> Result<bool> {
    Ok(matches!(x.dtype(), DType::F16 | DType::BF16) && x.dim(0)? >= FEWEST_ROWS)
}

/// `x·W + bias`, the GELU of that, or `residual + x·W + bias`; or `None` if cuBLASLt does not compute it exactly as we
/// define it: in f32, where it would round to TF32, or if its GELU is not the tanh form.
///
/// `x` (rows, in), `weight` (in, out), `bias` (out), `residual` (rows, out) -> (rows, out)
pub(super) fn product(
    [x, weight, bias]: [&Tensor; 3],
    gelu: bool,
    residual: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    let Device::Cuda(device) = x.device() else { return Ok(None) };
    if !takes(x)? || (gelu && !gelu_is_the_tanh_form(device, x.dtype())?) {
        return Ok(None);
    }
    run([x, weight, bias], gelu, residual)
}

/// [`product`] of any shape, or `None` if cuBLASLt has no algorithm for it.
fn run([x, weight, bias]: [&Tensor; 3], gelu: bool, residual: Option<&Tensor>) -> Result<Option<Tensor>> {
    let rows = x.dim(0)?;
    let width = weight.dim(1)?;
    let out = match residual {
        Some(residual) => residual.force_contiguous()?, // a copy, to which the product is added
        None => uninitialized(x, (rows, width))?,
    };
    let op = LinearWithEpilogue {
        x: aligned(x, ALIGNMENT)?,
        weight: aligned(weight, ALIGNMENT)?,
        bias: aligned(bias, ALIGNMENT)?,
        gelu,
        onto: residual.is_some(),
        unsupported: Cell::new(false),
    };
    out.inplace_op1(&op)?;
    Ok((!op.unsupported.get()).then_some(out))
}

/// A tensor on the GPU of `x`, in its dtype, to be written as a whole.
fn uninitialized(x: &Tensor, shape: (usize, usize)) -> Result<Tensor> {
    fn storage<E: CudaDType + DeviceRepr>(device: &CudaDevice, count: usize) -> Result<CudaStorage> {
        // SAFETY: the product writes every element before anything reads one.
        Ok(CudaStorage::wrap_cuda_slice(unsafe { device.alloc::<E>(count)? }, device.clone()))
    }
    let (Device::Cuda(device), count) = (x.device(), shape.0 * shape.1) else {
        candle_core::bail!("linear: the product is for CUDA")
    };
    let storage = match x.dtype() {
        DType::F16 => storage::<f16>(device, count)?,
        _ => storage::<bf16>(device, count)?,
    };
    Ok(Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false))
}

/// Whether the GELU of this GPU's cuBLASLt is GPT-2's, found once for each dtype that we use there from a product of values
/// between -6 and 6. Around -2.25 the form with the error function is further away than either dtype rounds.
fn gelu_is_the_tanh_form(device: &CudaDevice, dtype: DType) -> Result<bool> {
    static FOUND: LazyLock<PerStream<HashMap<DType, bool>>> = LazyLock::new(PerStream::default);
    let found = FOUND.get(
        device,
        |_| true,
        || {
            let gpu = gpu_limits(device)?;
            let device = Device::Cuda(device.clone());
            [DType::F16, DType::BF16]
                .into_iter()
                .filter(|dtype| gpu.has_kernels_for(*dtype))
                .map(|dtype| Ok((dtype, compare_gelu(&device, dtype)?)))
                .collect()
        },
    )?;
    Ok(found.get(&dtype).is_some_and(|is| *is))
}

fn compare_gelu(device: &Device, dtype: DType) -> Result<bool> {
    const ROWS: usize = 256;
    let numbers = (0..ROWS).map(|i| (i as f32 - 127.5) / 21.25);
    let values = Tensor::from_iter(numbers, &Device::Cpu)?.to_dtype(dtype)?;
    let first = |rows, width| {
        Tensor::from_iter((0..rows * width).map(|i| f32::from(u8::from(i % width == 0))), &Device::Cpu)
    };
    let x = first(ROWS, 64)?.reshape((ROWS, 64))?.to_dtype(dtype)?.broadcast_mul(&values.unsqueeze(1)?)?;
    let weight = first(64, 64)?.reshape((64, 64))?.t()?.contiguous()?.to_dtype(dtype)?; // its first row is 1
    let x = x.to_device(device)?;
    let weight = weight.to_device(device)?;
    let bias = Tensor::zeros(64, dtype, device)?;
    let Some(found) = run([&x, &weight, &bias], true, None)? else { return Ok(false) };
    let found = found.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
    let expected = Function::GeluTanh.forward(&values.to_dtype(DType::F32)?)?.to_vec1::<f32>()?;
    let unit = if dtype == DType::F16 { 2f32.powi(-11) } else { 2f32.powi(-8) };
    let close = |y: &f32, expected: f32| (y - expected).abs() <= unit * expected.abs() + 2e-5;
    Ok(found.iter().zip(expected).all(|(row, expected)| row.iter().all(|y| close(y, expected))))
}

/// `x·W + bias` into a tensor (rows, out), or onto it.
struct LinearWithEpilogue {
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    gelu: bool,
    onto: bool,
    /// Set if cuBLASLt has no algorithm for it.
    unsupported: Cell<bool>,
}

impl LinearWithEpilogue {
    fn run<E: CudaDType + DeviceRepr>(&self, out: &mut CudaStorage) -> Result<()>
    where
        CudaBlasLT: Matmul<E>,
    {
        static HANDLES: LazyLock<PerStream<CudaBlasLT>> = LazyLock::new(PerStream::default);
        let device = out.device().clone();
        let failed = |error: CublasError| candle_core::Error::wrap(error);
        let handle =
            HANDLES.get(&device, |_| true, || CudaBlasLT::new(device.cuda_stream()).map_err(failed))?;
        let guards = [&self.x, &self.weight, &self.bias].map(Tensor::storage_and_layout);
        let [x, weight, bias] = guards.each_ref().map(|(storage, layout)| view_of::<E>(storage, layout));
        let x = x?;
        let weight = weight?;
        let bias = bias?;
        let ((rows, depth), width) = (self.x.dims2()?, self.weight.dim(1)?);
        let [m, n, k] = [width, rows, depth].map(|size| size as u64);
        // cuBLASLt counts in columns: what it sees is outᵀ (out, rows) = Wᵀ (out, in) · xᵀ (in, rows).
        let [of_width, of_depth] = [width, depth].map(i64::try_from);
        let of_width = of_width?;
        let of_depth = of_depth?;
        let config = MatmulConfig {
            transa: false,
            transb: false,
            transc: false,
            m,
            n,
            k,
            alpha: 1.0,
            lda: of_width,
            ldb: of_depth,
            beta: if self.onto { 1.0 } else { 0.0 },
            ldc: of_width,
            stride_a: None,
            stride_b: None,
            stride_c: None,
            stride_bias: None,
            batch_size: None,
        };
        let gelu = self.gelu.then_some(Activation::Gelu);
        let out = out.as_cuda_slice_mut::<E>()?;
        // SAFETY: W is (in, out), x (rows, in) and out (rows, out), all contiguous, and the bias has `out` numbers.
        match unsafe { handle.matmul(config, &weight, &x, out, Some(&bias), gelu.as_ref()) } {
            Err(CublasError(cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => self.unsupported.set(true),
            done => done.map_err(failed)?,
        }
        Ok(())
    }
}

impl InplaceOp1 for LinearWithEpilogue {
    fn name(&self) -> &'static str {
        "linear-with-epilogue"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        candle_core::bail!("linear: the product is for CUDA, but x is on the CPU")
    }

    fn cuda_fwd(&self, out: &mut CudaStorage, _: &Layout) -> Result<()> {
        match out.dtype() {
            DType::F16 => self.run::<f16>(out),
            _ => self.run::<bf16>(out),
        }
    }
}
