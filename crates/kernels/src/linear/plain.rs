//! Products with plain weights as Candle operations on the CPU: `residual + x·W + bias`, forward and backward, and `x·Wᵀ`
//! for a few rows. The sums start from the bias and the residual, so no second pass has to add them.

use super::few_rows::{self, FEW_ROWS, MatrixRows};
use super::product::rows::Matrix;
use crate::cpu::column_sums::column_sums;
use crate::cpu::cpu_op::{CpuInput, CpuOp};
use crate::cpu::dispatch::{Factors, cpu_f32, cpu_product};
use crate::cpu::element::{Element, Widen};
use crate::cpu::isa;
use crate::cpu::vector::{CHUNK, chunked};
use candle_core::{CpuStorage, DType, Device, Result, Shape, Storage, Tensor, WithDType};
use half::{bf16, f16};
use rayon::prelude::*;
use std::borrow::Cow;
use std::mem::MaybeUninit;

/// Runs `$body` with `$E` as the element type of a storage.
macro_rules! for_dtype {
    ($storage:expr, $E:ident => $body:expr) => {
        match $storage {
            CpuStorage::F16(_) => {
                type $E = f16;
                $body
            }
            CpuStorage::BF16(_) => {
                type $E = bf16;
                $body
            }
            _ => {
                type $E = f32;
                $body
            }
        }
    };
}

pub(super) struct PlainLinear {
    pub(super) factors: Factors,
}

impl CpuOp<3> for PlainLinear {
    const NAME: &'static str = "linear";

    fn forward(&self, [x, weight, bias]: [CpuInput; 3]) -> Result<(CpuStorage, Shape)> {
        for_dtype!(x.storage, E => product::<E>(self.factors, x.slice()?, MatrixRows::new(weight)?, bias.slice()?, None))
    }

    fn backward(
        &self,
        [x, weight, _]: [&Tensor; 3],
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        // Detached, so that the gradient keeps no graph for a second derivative.
        let x = x.detach();
        let weight = weight.detach().contiguous()?;
        let grad = grad.detach().contiguous()?;
        let of_x = matmul_of(self.factors, &grad, &weight.t()?)?;
        let of_weight = matmul_of(self.factors, &x.t()?, &grad)?;
        Ok([Some(of_x), Some(of_weight), Some(column_sums(&grad)?)])
    }
}

/// Like [`PlainLinear`], but with a residual as the third input and the bias as a fourth; for inference,
/// because it has no backward pass.
pub(super) struct LinearOnto {
    pub(super) bias: Tensor,
}

impl CpuOp<3> for LinearOnto {
    const NAME: &'static str = "linear-onto";

    fn forward(&self, [x, weight, residual]: [CpuInput; 3]) -> Result<(CpuStorage, Shape)> {
        for_dtype!(x.storage, E => {
            let bias = self.bias.to_vec1::<E>()?;
            product(Factors::AsStored, x.slice()?, MatrixRows::new(weight)?, &bias, Some(residual.slice()?))
        })
    }
}

/// `x·Wᵀ` for a few rows; for inference, because it has no backward pass.
pub(super) struct RowProducts;

impl CpuOp<2> for RowProducts {
    const NAME: &'static str = "linear-transposed";

    fn forward(&self, [x, weight]: [CpuInput; 2]) -> Result<(CpuStorage, Shape)> {
        let (width, depth) = weight.shape().dims2()?;
        for_dtype!(x.storage, E => {
            let x = in_f32::<E>(x.slice()?);
            let mut out = vec![0f32; x.len() / depth * width];
            few_rows::row_products::<E>(&x, weight.slice()?, depth, &mut out);
            let shape = Shape::from((x.len() / depth, width));
            Ok((narrowed::<E>(out), shape))
        })
    }
}

/// `residual + x·W + bias`: `x` (rows, K), `bias` (N), `residual` (rows, N) if there is one -> (rows, N)
pub(super) fn product<E: Element + WithDType>(
    factors: Factors,
    x: &[E],
    weight: MatrixRows<E>,
    bias: &[E],
    residual: Option<&[E]>,
) -> Result<(CpuStorage, Shape)> {
    let MatrixRows { depth, width, .. } = weight;
    let rows = x.len() / depth;
    if bias.len() != width || residual.is_some_and(|r| r.len() != rows * width) || x.len() != rows * depth {
        candle_core::bail!("linear: bias and residual do not fit {rows} rows of {width} outputs")
    }
    let bias = in_f32(bias);
    let start = |i: usize, row: &mut [MaybeUninit<f32>]| match residual {
        None => row.iter_mut().zip(&*bias).for_each(|(out, b)| {
            out.write(*b);
        }),
        Some(residual) => {
            let residual = &residual[i * width..(i + 1) * width];
            row.iter_mut().zip(residual.iter().zip(&*bias)).for_each(|(out, (r, b))| {
                out.write(r.to_f32() + b);
            });
        }
    };
    #[allow(unsafe_code)]
    // SAFETY: a row is as long as the bias and its part of the residual, and every element is written.
    let mut out = unsafe { chunked(rows * width, width, start) };
    add_product(factors, &in_f32(x), weight, &mut out);
    Ok((narrowed::<E>(out), Shape::from((rows, width))))
}

/// Storage in dtype `E` for numbers computed in f32.
pub(super) fn narrowed<E: Element + WithDType>(wide: Vec<f32>) -> CpuStorage {
    if E::DTYPE == DType::F32 {
        return CpuStorage::F32(wide);
    }
    let mut out = vec![E::from_f32(0.0); wide.len()];
    let pairs = out.par_chunks_mut(CHUNK).zip(wide.par_chunks(CHUNK));
    pairs.for_each(|(out, wide)| E::narrow(wide, out));
    E::to_cpu_storage_owned(out)
}

/// `out += x·W` for `x` (rows, K) and `out` (rows, N).
fn add_product<E: Element>(factors: Factors, x: &[f32], weight: MatrixRows<E>, out: &mut [f32]) {
    let MatrixRows { depth, width, .. } = weight;
    let rows = out.len() / width;
    assert!(x.len() == rows * depth && out.len() == rows * width);
    if rows <= FEW_ROWS && factors == Factors::AsStored {
        return few_rows::add_product(x, weight, out);
    }
    let (data, row) = weight.in_f32();
    let weight = Matrix { data: &data, shape: [depth, width], strides: [row, 1] };
    factors.add_product(out, Matrix::new(x, rows, depth), weight);
}

/// `a·b` as Candle computes it; on Arm, f16 in f32: with `fp16`, Candle would add up in f16.
pub(super) fn candles_matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if cfg!(target_arch = "aarch64") && [a, b].iter().all(|x| x.dtype() == DType::F16 && x.device().is_cpu())
    {
        return a.to_dtype(DType::F32)?.matmul(&b.to_dtype(DType::F32)?)?.to_dtype(DType::F16);
    }
    a.matmul(b)
}

/// `a·b`, without a graph. In f32 on the CPU, by our tiles.
///
/// # Shapes
/// `a` (M, K), `b` (K, N) -> (M, N)
pub(crate) fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    matmul_of(Factors::AsStored, a, b)
}

/// [`matmul`] of these factors.
fn matmul_of(factors: Factors, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if !cpu_f32(&[a, b]) || !cpu_product(&[a, b]) {
        return candles_matmul(a, b);
    }
    let m = a.dims2()?.0;
    let n = b.dims2()?.1;
    let guards = [a, b].map(Tensor::storage_and_layout);
    let [a, b] = guards.each_ref().map(|(storage, layout)| match &**storage {
        Storage::Cpu(CpuStorage::F32(data)) => Ok(Matrix {
            data: &data[layout.start_offset()..],
            shape: layout.shape().dims2()?.into(),
            strides: [layout.stride()[0], layout.stride()[1]],
        }),
        _ => candle_core::bail!("expected f32 on the CPU, got {layout:?}"),
    });
    Tensor::from_vec(factors.product(a?, b?), (m, n), &Device::Cpu)
}

/// The numbers in f32: borrowed in place, or widened.
pub(super) fn in_f32<E: Element>(x: &[E]) -> Cow<'_, [f32]> {
    if let Some(x) = E::as_f32s(x) {
        return Cow::Borrowed(x);
    }
    let mut wide = vec![0.0; x.len()];
    let arch = isa::arch();
    let pairs = wide.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK));
    pairs.for_each(|(to, from)| arch.dispatch(Widen { from, to }));
    Cow::Owned(wide)
}
