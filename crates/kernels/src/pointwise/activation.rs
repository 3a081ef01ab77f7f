//! Activations: GELU, its tanh form, SiLU and ReLU, in f32 on the CPU by kernels that also follow a product in the same pass.
//!
//! Each is `x·s` with a factor s between 0 and 1. GELU (Hendrycks & Gimpel 2016) has `s = Φ(x)`, the normal distribution. Its
//! tanh form has `s = σ(z)` with `z = 2√(2/π)(x + 0.044715x³)`, which is `(1 + tanh(z/2))/2` without the cancellation for
//! negative x. SiLU, also called swish, has `s = σ(x)`.

use crate::cpu::cpu_op::{CpuInput, CpuOp, OnCpu};
use crate::cpu::dispatch::{cpu_f32, has_cpu_kernels};
use crate::cpu::explain::{Explained, no_kernel, note, ours, shown};
use crate::cpu::vector::{Function, exp2, parallel_map, parallel_map_in_place};
use candle_core::{CpuStorage, DType, InplaceOp1, Layout, Result, Shape, Tensor};
use pulp::Simd;
use std::f64::consts::{FRAC_2_SQRT_PI, LOG2_E};

/// A function of each number between two layers.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::Activation;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[-1f32, 0., 1.], &Device::Cpu)?;
/// let y = Activation::Gelu.forward(&x)?.to_vec1::<f32>()?;
/// assert!((y[0] + 0.158_655_25).abs() < 1e-7 && y[1] == 0. && (y[2] - 0.841_344_8).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// Exact GELU, `x·Φ(x)`, also called erf GELU: BERT's. PyTorch's `gelu`, Candle's `gelu_erf`.
    Gelu,
    /// GELU in its tanh form, `0.5x(1 + tanh(√(2/π)(x + 0.044715x³)))`: GPT-2's and Gemma's. Candle's `gelu`.
    GeluTanh,
    /// `x·σ(x)`, also called swish: Llama's.
    Silu,
    /// `max(x, 0)`
    Relu,
}

impl Activation {
    /// Applies the function to each number, in f32 for f16 and bf16; differentiable. On the CPU the error in f32 is at most
    /// 4e-7 of |x|. With fused multiply-adds, exact GELU is within 7e-7 of its own value down to x = -12.
    ///
    /// # Shapes
    /// `x` of any shape -> the same shape
    ///
    /// # Errors
    /// When the device fails.
    pub fn forward(self, x: &Tensor) -> Result<Tensor> {
        note(|| {
            let has_kernel = x.device().is_cpu() && has_cpu_kernels(x.dtype());
            let why = match x.dtype() {
                DType::F16 | DType::BF16 if has_kernel => "it is converted to f32 and back".to_owned(),
                _ => no_kernel(&[x]).unwrap_or_else(|| {
                    "an Epilogue computes it in the pass of the product before it".to_owned()
                }),
            };
            Explained {
                operation: "activation",
                inputs: shown("x", x),
                code: if has_kernel { ours("a pass of its own") } else { "Candle's".to_owned() },
                slower_because: Some(why),
            }
        });
        self.run(x)
    }

    /// [`forward`](Self::forward) as part of another operation, which [`explain`](crate::explain()) lists.
    pub(crate) fn run(self, x: &Tensor) -> Result<Tensor> {
        if cpu_f32(&[x]) {
            return x.contiguous()?.apply_op1(OnCpu(ActivationForward(self)));
        }
        if x.device().is_cpu() && has_cpu_kernels(x.dtype()) {
            return self.run(&x.to_dtype(DType::F32)?)?.to_dtype(x.dtype());
        }
        match self {
            // Candle's own gradients have constants of six digits, too few for f64.
            Self::Gelu if x.track_op() && x.dtype() == DType::F64 => {
                (x * 0.5)? * ((x * std::f64::consts::FRAC_1_SQRT_2)?.erf()? + 1.0)?
            }
            Self::Gelu => x.gelu_erf(),
            Self::GeluTanh if x.track_op() && x.dtype() == DType::F64 => gelu_by_formula(x),
            Self::GeluTanh => x.gelu(),
            Self::Silu => x.silu(),
            Self::Relu => x.relu(),
        }
    }

    /// Like [`forward`](Self::forward), but overwrites `x` if nothing tracks a gradient, which saves an allocation.
    ///
    /// # Shapes
    /// `x` of any shape, contiguous; no other tensor shares its memory -> the same shape
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn forward_in_place(self, x: Tensor) -> Result<Tensor> {
        if x.track_op() || !x.is_contiguous() || !cpu_f32(&[&x]) {
            return self.run(&x);
        }
        x.inplace_op1(&ActivationForward(self))?;
        Ok(x)
    }

    /// The function of each number.
    #[inline(always)]
    pub(crate) fn apply<S: Simd>(self, simd: S, x: S::f32s) -> S::f32s {
        match self {
            Self::Gelu => {
                let Normal { size, tail, density } = normal(simd, x);
                let negative = simd.less_than_f32s(x, simd.splat_f32s(0.0));
                let linear = simd.select_f32s(negative, simd.splat_f32s(0.0), x);
                simd.sub_f32s(linear, simd.mul_f32s(simd.mul_f32s(size, tail), density))
            }
            Self::GeluTanh => simd.mul_f32s(x, sigmoid(simd, tanh_form(simd, x))),
            Self::Silu => simd.mul_f32s(x, sigmoid(simd, in_base_2(simd, x))),
            Self::Relu => {
                let zero = simd.splat_f32s(0.0);
                simd.select_f32s(simd.less_than_f32s(x, zero), zero, x)
            }
        }
    }

    /// Its derivative at each number.
    #[inline(always)]
    fn derivative<S: Simd>(self, simd: S, x: S::f32s) -> S::f32s {
        let zero = simd.splat_f32s(0.0);
        let one = simd.splat_f32s(1.0);
        match self {
            Self::Gelu => {
                let Normal { tail, density, .. } = normal(simd, x);
                let below = simd.mul_f32s(tail, density); // Φ(-|x|)
                let negative = simd.less_than_f32s(x, zero);
                let phi = simd.select_f32s(negative, below, simd.sub_f32s(one, below));
                // Where the density is 0, x may be infinite.
                let bend = simd.mul_f32s(simd.mul_f32s(x, density), simd.splat_f32s(INVERSE_ROOT_2_PI));
                simd.add_f32s(phi, simd.select_f32s(simd.equal_f32s(density, zero), zero, bend))
            }
            Self::GeluTanh => {
                let x2 = simd.mul_f32s(x, x);
                let slope =
                    simd.mul_add_e_f32s(x2, simd.splat_f32s(3.0 * CUBE * SLOPE), simd.splat_f32s(SLOPE)); // z'
                sigmoid_derivative(simd, x, tanh_form(simd, x), slope)
            }
            Self::Silu => sigmoid_derivative(simd, x, in_base_2(simd, x), one),
            Self::Relu => {
                let flat = simd.select_f32s(simd.equal_f32s(x, x), zero, x); // NaN stays NaN
                simd.select_f32s(simd.less_than_f32s(zero, x), one, flat)
            }
        }
    }
}

/// From Candle's own enum.
impl TryFrom<candle_nn::Activation> for Activation {
    type Error = candle_core::Error;

    fn try_from(activation: candle_nn::Activation) -> Result<Self> {
        use candle_nn::Activation as Theirs;
        Ok(match activation {
            Theirs::Gelu => Self::Gelu,
            Theirs::NewGelu | Theirs::GeluPytorchTanh => Self::GeluTanh,
            Theirs::Silu | Theirs::Swish => Self::Silu,
            Theirs::Relu => Self::Relu,
            other => candle_core::bail!(
                "activation: {other:?} has no kernel, only Gelu, GeluPytorchTanh, Silu and Relu do; call its own forward"
            ),
        })
    }
}

#[allow(clippy::cast_possible_truncation)] // the coefficients are f32
const SLOPE: f32 = (2.0 * 0.797_884_560_802_865_4) as f32; // 2√(2/π)
const CUBE: f32 = 0.044_715;
#[allow(clippy::cast_possible_truncation)]
const INVERSE_ROOT_2_PI: f32 = (FRAC_2_SQRT_PI / 2.0 * std::f64::consts::FRAC_1_SQRT_2) as f32;

/// `0.5x(1 + tanh(√(2/π)·(x + 0.044715·x³)))`
fn gelu_by_formula(x: &Tensor) -> Result<Tensor> {
    let root = (2.0 / std::f64::consts::PI).sqrt();
    let inner = ((x.sqr()? * 0.044_715)? + 1.0)?.mul(x)?;
    (x * 0.5)? * ((inner * root)?.tanh()? + 1.0)?
}

/// `z·log2(e)` of GELU's tanh form.
#[inline(always)]
fn tanh_form<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let x2 = simd.mul_f32s(x, x);
    let inner = simd.mul_add_e_f32s(simd.mul_f32s(x2, x), simd.splat_f32s(CUBE), x);
    simd.mul_f32s(inner, simd.splat_f32s(SLOPE * std::f32::consts::LOG2_E))
}

/// `z·log2(e)` of SiLU, whose z is x.
#[inline(always)]
fn in_base_2<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    simd.mul_f32s(x, simd.splat_f32s(std::f32::consts::LOG2_E))
}

/// `σ(z)` for `z·log2(e)`.
#[inline(always)]
fn sigmoid<S: Simd>(simd: S, z: S::f32s) -> S::f32s {
    let one = simd.splat_f32s(1.0);
    let e = exp2(simd, simd.neg_f32s(simd.abs_f32s(z))); // e^-|z|
    let positive = simd.div_f32s(one, simd.add_f32s(one, e));
    let negative = simd.mul_f32s(e, positive);
    simd.select_f32s(simd.less_than_f32s(z, simd.splat_f32s(0.0)), negative, positive)
}

/// The derivative of `x·σ(z)`, `σ + x·σ(1 - σ)·z'`, for `z·log2(e)`.
#[inline(always)]
fn sigmoid_derivative<S: Simd>(simd: S, x: S::f32s, z: S::f32s, slope: S::f32s) -> S::f32s {
    let s = sigmoid(simd, z);
    let zero = simd.splat_f32s(0.0);
    // σ(1 - σ) first: it is 0 where x may be infinite, and where the slope overflows.
    let bell = simd.mul_f32s(s, simd.sub_f32s(simd.splat_f32s(1.0), s));
    let bend = simd.mul_f32s(simd.mul_f32s(x, bell), slope);
    simd.add_f32s(s, simd.select_f32s(simd.equal_f32s(bell, zero), zero, bend))
}

/// The normal distribution beyond a = |x|: `Φ(-a)` is `tail·density`.
struct Normal<V> {
    /// a, at most 14.5
    size: V,
    /// `Φ(-a)·e^(a²/2)`
    tail: V,
    /// `e^(-a²/2)`
    density: V,
}

/// The tail is a polynomial in `(a - 3) / (a + 3)`, a least-squares fit with a relative error below 2e-7 on 0..14.5; beyond, the
/// density is 0.
#[inline(always)]
fn normal<S: Simd>(simd: S, x: S::f32s) -> Normal<S::f32s> {
    const TAIL: [f32; 10] = [
        0.121_513_95,
        -0.206_402_61,
        0.123_225_04,
        -0.046_213_26,
        0.006_131_942,
        0.002_904_387_2,
        -0.000_983_288_4,
        -0.000_339_012_54,
        0.000_115_013_856,
        0.000_053_161_617,
    ];
    // -log2(e)/2, and what its rounding leaves
    #[allow(clippy::cast_possible_truncation)]
    const HIGH: f32 = (-LOG2_E / 2.0) as f32;
    #[allow(clippy::cast_possible_truncation)]
    const LOW: f32 = (-LOG2_E / 2.0 - HIGH as f64) as f32;
    let splat = |x| simd.splat_f32s(x);
    let size = simd.abs_f32s(x);
    let a = simd.select_f32s(simd.less_than_f32s(splat(14.5), size), splat(14.5), size);
    let u = simd.div_f32s(simd.sub_f32s(a, splat(3.0)), simd.add_f32s(a, splat(3.0)));
    let mut tail = splat(TAIL[9]);
    for c in TAIL[..9].iter().rev() {
        tail = simd.mul_add_e_f32s(tail, u, splat(*c));
    }
    // The roundings of a² and of its product with a constant grow with the exponent: what they leave is a factor of its own.
    let square = simd.mul_f32s(a, a);
    let of_square = simd.mul_add_e_f32s(a, a, simd.neg_f32s(square));
    let z = simd.mul_f32s(square, splat(HIGH));
    let rest = simd.mul_add_e_f32s(square, splat(HIGH), simd.neg_f32s(z));
    let rest = simd.mul_add_e_f32s(square, splat(LOW), rest);
    let rest = simd.mul_add_e_f32s(of_square, splat(HIGH), rest);
    let power = exp2(simd, z);
    let density = simd.mul_add_e_f32s(power, simd.mul_f32s(rest, splat(std::f32::consts::LN_2)), power);
    Normal { size: a, tail, density }
}

struct ActivationForward(Activation);
struct ActivationBackward(Activation);

impl Function for ActivationForward {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, x: S::f32s, _: S::f32s) -> S::f32s {
        self.0.apply(simd, x)
    }
}

/// `grad·dy/dx`
impl Function for ActivationBackward {
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, x: S::f32s, grad: S::f32s) -> S::f32s {
        simd.mul_f32s(grad, self.0.derivative(simd, x))
    }
}

impl InplaceOp1 for ActivationForward {
    fn name(&self) -> &'static str {
        "activation"
    }

    fn cpu_fwd(&self, x: &mut CpuStorage, layout: &Layout) -> Result<()> {
        parallel_map_in_place(self, x, layout)
    }
}

impl CpuOp<1> for ActivationForward {
    const NAME: &'static str = "activation";

    fn forward(&self, [x]: [CpuInput; 1]) -> Result<(CpuStorage, Shape)> {
        parallel_map(self, x, x)
    }

    fn backward(&self, [x]: [&Tensor; 1], _: &Tensor, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let backward = OnCpu(ActivationBackward(self.0));
        Ok([Some(x.contiguous()?.apply_op2_no_bwd(&grad.contiguous()?, &backward)?)])
    }
}

impl CpuOp<2> for ActivationBackward {
    const NAME: &'static str = "activation-backward";

    fn forward(&self, [x, grad]: [CpuInput; 2]) -> Result<(CpuStorage, Shape)> {
        parallel_map(self, x, grad)
    }
}
