//! `residual + x·W + bias` on the CPU. The sums start from the bias and the residual, so no second pass has to add
//! them.

use super::few_rows::{self, FEW_ROWS};
use super::weight::{Weight, in_f32};
use crate::dispatch::{cpu_f32, cpu_product};
use crate::element::Element;
use crate::product::{Matrix, multiply};
use crate::vector::{CHUNK, chunked};
use candle_core::{CpuStorage, DType, Device, Result, Shape, Storage, Tensor, WithDType};
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// `residual + x·W + bias`: `x` (rows, K), `bias` (N), `residual` (rows, N) if there is one -> (rows, N)
pub(super) fn product<E: Element + WithDType>(
    x: &[E],
    weight: Weight<E>,
    bias: &[E],
    residual: Option<&[E]>,
) -> Result<(CpuStorage, Shape)> {
    let Weight { depth, width, .. } = weight;
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
    add_product(&in_f32(x), weight, &mut out);
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
fn add_product<E: Element>(x: &[f32], weight: Weight<E>, out: &mut [f32]) {
    let Weight { depth, width, .. } = weight;
    let rows = out.len() / width;
    assert!(x.len() == rows * depth && out.len() == rows * width);
    if rows <= FEW_ROWS {
        return few_rows::add_product(x, weight, out);
    }
    let (data, row) = weight.in_f32();
    let weight = Matrix { data: &data, row, column: 1 };
    multiply(out, true, (rows, depth, width), Matrix::rows(x, depth), weight);
}

/// `a·b`, without a graph. In f32 on the CPU, with [`multiply`].
///
/// # Shapes
/// `a` (M, K), `b` (K, N) -> (M, N)
pub(crate) fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if !cpu_f32(&[a, b]) || !cpu_product(&[a, b]) {
        return a.matmul(b);
    }
    let ((m, k), (_, n)) = (a.dims2()?, b.dims2()?);
    let guards = [a, b].map(Tensor::storage_and_layout);
    let [a, b] = guards.each_ref().map(|(storage, layout)| match &**storage {
        Storage::Cpu(CpuStorage::F32(data)) => Ok(Matrix {
            data: &data[layout.start_offset()..],
            row: layout.stride()[0],
            column: layout.stride()[1],
        }),
        _ => candle_core::bail!("expected f32 on the CPU, got {layout:?}"),
    });
    let mut out = vec![0f32; m * n];
    multiply(&mut out, false, (m, k, n), a?, b?);
    Tensor::from_vec(out, (m, n), &Device::Cpu)
}
