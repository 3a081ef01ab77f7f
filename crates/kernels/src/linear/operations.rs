//! Linear layers as Candle operations on the CPU.

use super::dense::{matmul, narrowed, product};
use super::few_rows;
use super::weight::{Weight, in_f32};
use crate::columns::column_sums;
use crate::vector::contiguous;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};
use half::{bf16, f16};

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

pub(super) struct Linear;

impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        for_dtype!(x, E => {
            let weight = Weight::<E>::new(weight, weight_layout)?;
            product(contiguous(x, x_layout)?, weight, contiguous(bias, bias_layout)?, None)
        })
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        // Detached, so that the gradient keeps no graph for a second derivative.
        let (x, weight, grad) = (x.detach(), weight.detach().contiguous()?, grad.detach().contiguous()?);
        Ok((Some(matmul(&grad, &weight.t()?)?), Some(matmul(&x.t()?, &grad)?), Some(column_sums(&grad)?)))
    }
}

/// Like [`Linear`], but with a residual as the third input and the bias as a fourth; for inference,
/// because it has no backward pass.
pub(super) struct LinearOnto {
    pub(super) bias: Tensor,
}

impl CustomOp3 for LinearOnto {
    fn name(&self) -> &'static str {
        "linear-onto"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        residual: &CpuStorage,
        residual_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        for_dtype!(x, E => {
            let weight = Weight::<E>::new(weight, weight_layout)?;
            let residual = contiguous(residual, residual_layout)?;
            product(contiguous(x, x_layout)?, weight, &self.bias.to_vec1::<E>()?, Some(residual))
        })
    }
}

/// `x·Wᵀ` for a few rows; for inference, because it has no backward pass.
pub(super) struct RowProducts;

impl CustomOp2 for RowProducts {
    fn name(&self) -> &'static str {
        "linear-transposed"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (width, depth) = weight_layout.shape().dims2()?;
        for_dtype!(x, E => {
            let x = in_f32::<E>(contiguous(x, x_layout)?);
            let mut out = vec![0f32; x.len() / depth * width];
            few_rows::row_products::<E>(&x, contiguous(weight, weight_layout)?, depth, &mut out);
            let shape = Shape::from((x.len() / depth, width));
            Ok((narrowed::<E>(out), shape))
        })
    }
}
