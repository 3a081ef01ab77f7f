//! [`Linear`]: `x·Wᵀ + b`.

use super::weight_format::held;
use crate::linear::quantized::format::BlockFormat;
use crate::linear::weight::frozen::WeightDType;
use crate::linear::weight::{Weight, WeightLayout};
use crate::pointwise::epilogue::Epilogue;
use candle_core::{DType, Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};

/// A linear layer, `x·Wᵀ + b` with W (out, in): `candle_nn::Linear` with a weight that is laid out for our products.
///
/// The weight is packed where that is possible: in f32, f16 or bf16 on the CPU, and not a variable. Then activations can be in
/// f32, or in the weight's own dtype; sums are in f32 either way. A variable stays plain and gets its gradient; so do all
/// weights on a GPU, and in builds with the products of MKL or Accelerate, where activations need the dtype of the weight.
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_fused::nn::Linear;
///
/// # fn main() -> candle_core::Result<()> {
/// let weight = Tensor::new(&[[1f32, 2.], [3., 4.], [5., 6.]], &Device::Cpu)?; // (out, in)
/// let x = Tensor::new(&[[10f32, 100.]], &Device::Cpu)?;
/// let y = Linear::new(weight, None)?.forward(&x)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[210., 430., 650.]]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Weight,
    bias: Option<Tensor>,
}

impl Linear {
    /// Packs the weight if it does not learn.
    ///
    /// A weight that lies the wrong way round, (in, out), is an error here if the bias does not fit, and in
    /// [`forward`](Module::forward) if `x` does not fit. Nothing can tell for a square weight without comparing values: the query
    /// and output projections of most models are square.
    ///
    /// # Shapes
    /// `weight` (out, in), `bias` (out)
    ///
    /// # Errors
    /// When the weight or the bias has another shape, or they are on different devices.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        let same_device = |bias: &Tensor| bias.device().same_device(weight.device());
        if let Some(bias) = bias.as_ref().filter(|bias| !same_device(bias)) {
            candle_core::bail!(
                "linear: the weight is on {:?}, its bias on {:?}",
                weight.device().location(),
                bias.device().location()
            )
        }
        Self::from_weight(Weight::new(weight, WeightLayout::OutIn)?, bias)
    }

    /// Of a weight that is already laid out, as for [`Weight::quantize`] or [`Weight::read_blocks`].
    ///
    /// # Shapes
    /// `weight` (in, out), `bias` (out)
    ///
    /// # Errors
    /// When the bias has another shape.
    pub fn from_weight(weight: Weight, bias: Option<Tensor>) -> Result<Self> {
        let (n_in, n_out) = weight.shape();
        if let Some(bias) = bias.as_ref().filter(|bias| bias.dims() != [n_out]) {
            let turned = if bias.dims() == [n_in] { "; is the weight transposed?" } else { "" };
            candle_core::bail!(
                "linear: a weight of {n_out} outputs and {n_in} inputs needs a bias of [{n_out}], got {:?}{turned}",
                bias.dims()
            )
        }
        Ok(Self { weight, bias })
    }

    /// The layer with its weight in quantized blocks, on the CPU. A weight in other blocks is widened first.
    ///
    /// # Errors
    /// When the format's blocks do not divide the inputs, a number is not finite, or the weight is a variable.
    pub fn quantized(self, format: BlockFormat) -> Result<Self> {
        let weight = Weight::quantize(&self.weight.tensor()?, self.weight.layout(), format)?;
        Ok(Self { weight, bias: self.bias })
    }

    /// The weight, (in, out).
    #[must_use]
    pub fn weight(&self) -> &Weight {
        &self.weight
    }

    /// The bias, (out).
    #[must_use]
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// `x·Wᵀ + b`, then `epilogue`, in the same pass where the weight is packed and nothing needs a gradient; differentiable in
    /// all tensors that are not packed.
    ///
    /// Halves that meet a quantized weight, or a packed one in another half, are widened to f32, and the result is rounded once.
    ///
    /// # Shapes
    /// `x` (.., in), a residual or gate (.., out) -> (.., out)
    ///
    /// # Errors
    /// When a shape or a device does not fit, or a dtype has no product.
    pub fn forward_with(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
        let (n_in, n_out) = self.weight.shape();
        if x.dims().last() != Some(&n_in) {
            let turned = if x.dims().last() == Some(&n_out) { "; is the weight transposed?" } else { "" };
            candle_core::bail!(
                "linear: x {:?} does not end in the {n_in} inputs of a weight of {n_out} outputs{turned}",
                x.dims()
            )
        }
        let half = matches!(x.dtype(), DType::F16 | DType::BF16);
        if half && self.weight.dtype() != WeightDType::Plain(x.dtype()) {
            let wide = epilogue.join().map(|join| join.try_map(|t| t.to_dtype(DType::F32))).transpose()?;
            let epilogue = wide.as_ref().map_or(epilogue, Epilogue::of_join);
            return self.run(&x.to_dtype(DType::F32)?, epilogue)?.to_dtype(x.dtype());
        }
        self.run(x, epilogue)
    }

    fn run(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
        let bias = self.bias.as_ref().map(|bias| bias.to_dtype(x.dtype())).transpose()?;
        self.weight.forward(x, bias.as_ref(), epilogue)
    }
}

impl Module for Linear {
    /// `x·Wᵀ + b`: (.., in) -> (.., out)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, Epilogue::None)
    }
}

impl TryFrom<candle_nn::Linear> for Linear {
    type Error = candle_core::Error;

    fn try_from(layer: candle_nn::Linear) -> Result<Self> {
        Self::new(layer.weight().clone(), layer.bias().cloned())
    }
}

/// Loads `weight` (out, in) and `bias` (out), drawn as `candle_nn::linear` draws them where a variable is made. The weight keeps
/// the dtype of `vb`: `vb.to_dtype(DType::BF16)` halves its memory under activations in f32.
///
/// # Errors
/// When a tensor is missing or has another shape.
pub fn linear(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    linear_b(in_dim, out_dim, true, vb)
}

/// [`linear()`] without a bias.
///
/// # Errors
/// When the tensor is missing or has another shape.
pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    linear_b(in_dim, out_dim, false, vb)
}

/// [`linear()`] with or without a bias.
///
/// # Errors
/// When a tensor is missing or has another shape.
pub fn linear_b(in_dim: usize, out_dim: usize, bias: bool, vb: VarBuilder) -> Result<Linear> {
    let weight = vb.get_with_hints((out_dim, in_dim), "weight", candle_nn::init::DEFAULT_KAIMING_NORMAL)?;
    let bound = (in_dim as f64).powf(-0.5);
    let init = Init::Uniform { lo: -bound, up: bound };
    let bias = bias.then(|| vb.get_with_hints(out_dim, "bias", init)).transpose()?;
    Linear::from_weight(held(weight, &vb)?, bias)
}
