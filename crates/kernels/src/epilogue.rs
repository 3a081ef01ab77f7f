//! What follows a matrix product and its bias in the same pass: a residual, or GELU.
//!
//! GELU is GPT-2's own, in its tanh form (Hendrycks & Gimpel 2016): `0.5x(1 + tanh(√(2/π)(x + 0.044715x³)))`, computed as
//! `x·σ(z)` with `z = 2√(2/π)(x + 0.044715x³)`, the same function without the cancellation of `1 + tanh` for negative x. Its derivative is `σ + x·σ(1 - σ)·z'`.

use crate::cpu_op::{CpuOp, Input, OnCpu};
use crate::dispatch::cpu_f32;
use crate::vector::{Function, exp2, parallel_map, parallel_map_in_place};
use candle_core::{CpuStorage, DType, InplaceOp1, Layout, Result, Shape, Tensor};
use pulp::Simd;

#[allow(clippy::cast_possible_truncation)] // the coefficients are f32
const SLOPE: f32 = (2.0 * 0.797_884_560_802_865_4) as f32; // 2√(2/π)
const CUBE: f32 = 0.044_715;

/// The operation that follows `x·W + b`.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub enum Epilogue<'a> {
    /// Nothing.
    #[default]
    None,
    /// GELU in its tanh form, see [`gelu`](gelu()).
    Gelu,
    /// Adds this residual stream, which has the result's shape.
    Residual(&'a Tensor),
}

impl<'a> Epilogue<'a> {
    /// The residual that it adds, if any.
    pub(crate) fn residual(self) -> Option<&'a Tensor> {
        match self {
            Self::Residual(residual) => Some(residual),
            Self::None | Self::Gelu => None,
        }
    }

    /// Applies it to `y`, which is `x·W + b`, in a separate pass: for layers without a kernel that fuses it.
    ///
    /// # Errors
    /// When a residual has another shape.
    pub fn apply(self, y: Tensor) -> Result<Tensor> {
        match self {
            Self::None => Ok(y),
            Self::Gelu => gelu(&y),
            Self::Residual(residual) => residual + y,
        }
    }
}

/// GELU (tanh form) of each element, computed in f32 for f16 and bf16; differentiable.
///
/// # Shapes
/// `x` of any shape -> the same shape
///
/// # Errors
/// When the device fails.
pub fn gelu(x: &Tensor) -> Result<Tensor> {
    if cpu_f32(&[x]) {
        return x.contiguous()?.apply_op1(OnCpu(Gelu));
    }
    // Candle's own gradient has constants of six digits, too few for f64.
    if x.track_op() && x.dtype() == DType::F64 { by_formula(x) } else { x.gelu() }
}

/// `x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`
fn by_formula(x: &Tensor) -> Result<Tensor> {
    let root = (2.0 / std::f64::consts::PI).sqrt();
    let inner = ((x.sqr()? * 0.044_715)? + 1.0)?.mul(x)?;
    (x * 0.5)? * ((inner * root)?.tanh()? + 1.0)?
}

/// Like [`gelu`], but overwrites `x` if nothing tracks a gradient, which saves an allocation.
///
/// # Shapes
/// `x` of any shape, contiguous; no other tensor shares its memory -> the same shape
///
/// # Errors
/// When the device fails.
pub(crate) fn gelu_in_place(x: Tensor) -> Result<Tensor> {
    if x.track_op() || !x.is_contiguous() || !cpu_f32(&[&x]) {
        return gelu(&x);
    }
    x.inplace_op1(&Gelu)?;
    Ok(x)
}

struct Gelu;
struct GeluBackward;

/// `σ(z(x))`
#[inline(always)]
fn gate<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let one = simd.splat_f32s(1.0);
    let x2 = simd.mul_f32s(x, x);
    let inner = simd.mul_add_e_f32s(simd.mul_f32s(x2, x), simd.splat_f32s(CUBE), x);
    let z = simd.mul_f32s(inner, simd.splat_f32s(SLOPE * std::f32::consts::LOG2_E));
    let e = exp2(simd, simd.neg_f32s(simd.abs_f32s(z))); // e^-|z|
    let positive = simd.div_f32s(one, simd.add_f32s(one, e));
    let negative = simd.mul_f32s(e, positive);
    simd.select_f32s(simd.less_than_f32s(z, simd.splat_f32s(0.0)), negative, positive)
}

/// GELU of each number.
#[inline(always)]
pub(crate) fn gelu_forward<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    simd.mul_f32s(x, gate(simd, x))
}

/// `grad · dy/dx`
#[inline(always)]
fn gelu_backward<S: Simd>(simd: S, x: S::f32s, grad: S::f32s) -> S::f32s {
    let one = simd.splat_f32s(1.0);
    let s = gate(simd, x);
    let x2 = simd.mul_f32s(x, x);
    let slope = simd.mul_add_e_f32s(x2, simd.splat_f32s(3.0 * CUBE * SLOPE), simd.splat_f32s(SLOPE)); // z'
    let zero = simd.splat_f32s(0.0);
    let factor = simd.mul_f32s(x, simd.mul_f32s(s, simd.sub_f32s(one, s)));
    // Far from 0 the slope overflows, but the factor is already 0 there.
    let bend = simd.select_f32s(simd.equal_f32s(factor, zero), zero, simd.mul_f32s(factor, slope));
    simd.mul_f32s(grad, simd.add_f32s(s, bend))
}

impl InplaceOp1 for Gelu {
    fn name(&self) -> &'static str {
        "gelu"
    }

    fn cpu_fwd(&self, x: &mut CpuStorage, layout: &Layout) -> Result<()> {
        parallel_map_in_place::<Forward>(x, layout)
    }
}

struct Forward;
impl Function for Forward {
    #[inline(always)]
    fn apply<S: Simd>(simd: S, x: S::f32s, _: S::f32s) -> S::f32s {
        gelu_forward(simd, x)
    }
}

struct Backward;
impl Function for Backward {
    #[inline(always)]
    fn apply<S: Simd>(simd: S, x: S::f32s, grad: S::f32s) -> S::f32s {
        gelu_backward(simd, x, grad)
    }
}

impl CpuOp<1> for Gelu {
    const NAME: &'static str = "gelu";

    fn forward(&self, [x]: [Input; 1]) -> Result<(CpuStorage, Shape)> {
        parallel_map::<Forward>(x, x)
    }

    fn backward(&self, [x]: [&Tensor; 1], _: &Tensor, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(x.contiguous()?.apply_op2_no_bwd(&grad.contiguous()?, &OnCpu(GeluBackward))?)])
    }
}

impl CpuOp<2> for GeluBackward {
    const NAME: &'static str = "gelu-backward";

    fn forward(&self, [x, grad]: [Input; 2]) -> Result<(CpuStorage, Shape)> {
        parallel_map::<Backward>(x, grad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device, Var};

    fn inputs() -> Vec<f32> {
        let spread = (-1200..1200).map(|i| i as f32 / 100.0);
        spread.chain([0.0, -0.0, 1e-30, -1e-30, 60.0, -60.0, 1e10, -1e10, 1e30, -1e30]).collect()
    }

    /// GELU and its derivative in f64, from the definition.
    fn definition(x: f64) -> (f64, f64) {
        let c = (2.0 / std::f64::consts::PI).sqrt();
        let th = (c * (x + 0.044_715 * x.powi(3))).tanh();
        let slope = c * (1.0 + 3.0 * 0.044_715 * x * x);
        (0.5 * x * (1.0 + th), 0.5 * (1.0 + th) + 0.5 * x * (1.0 - th * th) * slope)
    }

    #[test]
    fn values_and_gradients_are_the_definitions() -> Result<()> {
        let x = Var::new(inputs(), &Device::Cpu)?;
        let y = gelu(&x)?;
        let gradients = y.sum_all()?.backward()?;
        let grad = gradients.get(&x).expect("a gradient").to_vec1::<f32>()?;
        for ((x, y), g) in inputs().into_iter().zip(y.to_vec1::<f32>()?).zip(grad) {
            let (value, slope) = definition(f64::from(x));
            let scale = f64::from(x).abs().max(1e-3);
            assert!((f64::from(y) - value).abs() <= 4e-7 * scale, "gelu({x}) = {y}, not {value}");
            assert!((f64::from(g) - slope).abs() <= 2e-6, "gelu'({x}) = {g}, not {slope}");
        }
        Ok(())
    }

    #[test]
    fn in_place_gives_the_same_bits_and_leaves_what_is_trained_alone() -> Result<()> {
        let x = Tensor::new(inputs(), &Device::Cpu)?;
        let expected = gelu(&x)?.to_vec1::<f32>()?;
        assert_eq!(gelu_in_place(x.copy()?)?.to_vec1::<f32>()?, expected);
        let var = Var::from_tensor(&x)?;
        let y = gelu_in_place(var.as_tensor().clone())?;
        assert_eq!(var.to_vec1::<f32>()?, inputs());
        assert!(y.sum_all()?.backward()?.get(&var).is_some());
        Ok(())
    }

    #[test]
    fn nan_stays_nan_and_other_dtypes_take_candles_way() -> Result<()> {
        let x = Tensor::new(&[f32::NAN, 1.0], &Device::Cpu)?;
        let y = gelu(&x)?.to_vec1::<f32>()?;
        assert!(y[0].is_nan() && (y[1] - 0.841_192).abs() < 1e-6);
        assert_eq!(gelu(&x.to_dtype(DType::F16)?)?.dtype(), DType::F16);
        Ok(())
    }
}
