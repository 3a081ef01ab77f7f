//! [`Conv1d`]: a convolution over positions, as a product.

use super::linear::Linear;
use crate::pointwise::epilogue::Epilogue;
use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv1dConfig, VarBuilder};

/// `candle_nn::Conv1d` on our products: each position's window is a row, which the weight multiplies; packed if it does not learn.
/// The product computes the gradients, since candle-core 0.11's convolution gets them wrong in batches of more than one.
///
/// Groups take Candle's convolution, with Candle's gradients.
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_fused::nn::Conv1d;
/// use candle_nn::Conv1dConfig;
///
/// # fn main() -> candle_core::Result<()> {
/// // Whisper's second: stride 2, one position of padding at each end
/// let config = Conv1dConfig { padding: 1, stride: 2, ..Conv1dConfig::default() };
/// let conv = Conv1d::new(Tensor::ones((4, 2, 3), DType::F32, &Device::Cpu)?, None, config)?;
/// let y = conv.forward(&Tensor::ones((1, 2, 10), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(y.dims(), [1, 4, 5]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Conv1d {
    kernel: ConvWeight,
    config: Conv1dConfig,
}

#[derive(Debug, Clone)]
enum ConvWeight {
    /// From windows (k·in) to outputs: position by position, each with all inputs.
    Fixed {
        layer: Linear,
        len: usize,
    },
    /// The weight (out, in, k), a variable or made of one.
    Learns {
        weight: Tensor,
        bias: Option<Tensor>,
    },
    Groups(candle_nn::Conv1d),
}

/// A weight (out, in, k) as a layer from windows to outputs.
fn of_windows(weight: &Tensor, bias: Option<&Tensor>) -> Result<Linear> {
    let (n_out, n_in, len) = weight.dims3()?;
    let rows = weight.transpose(1, 2)?.contiguous()?.reshape((n_out, len * n_in))?;
    Linear::new(rows, bias.cloned())
}

impl Conv1d {
    /// Packs the weight if it does not learn, and there are no groups.
    ///
    /// # Shapes
    /// `weight` (out, in / groups, k), `bias` (out)
    ///
    /// # Errors
    /// When the weight or the bias has another shape, or the stride, the dilation or the groups are 0.
    pub fn new(weight: Tensor, bias: Option<Tensor>, config: Conv1dConfig) -> Result<Self> {
        let (n_out, _, len) = weight.dims3()?;
        if config.stride == 0 || config.dilation == 0 || config.groups == 0 || len == 0 {
            candle_core::bail!(
                "conv1d: stride {}, dilation {}, {} groups and a kernel of {len} positions, expected at least 1 of each",
                config.stride,
                config.dilation,
                config.groups
            )
        }
        if let Some(bias) = bias.as_ref().filter(|bias| bias.dims() != [n_out]) {
            candle_core::bail!("conv1d: {n_out} outputs need a bias of [{n_out}], got {:?}", bias.dims())
        }
        let kernel = if config.groups > 1 {
            // Candle's convolution takes a strided weight for a contiguous one.
            ConvWeight::Groups(candle_nn::Conv1d::new(weight.contiguous()?, bias, config))
        } else if weight.track_op() {
            ConvWeight::Learns { weight, bias }
        } else {
            ConvWeight::Fixed { layer: of_windows(&weight, bias.as_ref())?, len }
        };
        Ok(Self { kernel, config })
    }

    /// Padding, stride, dilation and groups.
    #[must_use]
    pub fn config(&self) -> &Conv1dConfig {
        &self.config
    }

    /// The convolution, then `epilogue`, in the pass of the product where the weight is packed; differentiable in all tensors that are
    /// not packed.
    ///
    /// # Shapes
    /// `x` (B, in, L), a residual or gate (B, out, L') -> (B, out, L') with L' = (L + 2·padding − dilation·(k − 1) − 1) / stride + 1.
    /// The result may be a view of (B, L', out).
    ///
    /// # Errors
    /// When a shape does not fit, or L with its padding is shorter than one window.
    pub fn forward_with(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
        let (n_in, len) = match &self.kernel {
            ConvWeight::Fixed { layer, len } => (layer.weight().shape().0 / len, *len),
            ConvWeight::Learns { weight, .. } => (weight.dim(1)?, weight.dim(2)?),
            ConvWeight::Groups(conv) => (conv.weight().dim(1)? * self.config.groups, conv.weight().dim(2)?),
        };
        let (_, of_x, l) = x.dims3()?;
        let Conv1dConfig { padding, stride, dilation, .. } = self.config;
        let reach = dilation.saturating_mul(len - 1).saturating_add(1);
        let rest = l.saturating_add(padding.saturating_mul(2)).checked_sub(reach);
        let (Some(rest), true) = (rest, of_x == n_in) else {
            candle_core::bail!(
                "conv1d: x {:?} is not (B, {n_in}, L), where L and {padding} of padding at each end hold a window of {reach} positions",
                x.dims()
            )
        };
        let windows = || self.windows(x, len, rest / stride + 1);
        match &self.kernel {
            ConvWeight::Fixed { layer, .. } => by_position(layer, &windows()?, epilogue),
            ConvWeight::Learns { weight, bias } => {
                by_position(&of_windows(weight, bias.as_ref())?, &windows()?, epilogue)
            }
            ConvWeight::Groups(conv) => epilogue.apply(conv.forward(x)?),
        }
    }

    /// `count` windows of `x` (B, in, L), one position after another: (B, count, k·in)
    fn windows(&self, x: &Tensor, len: usize, count: usize) -> Result<Tensor> {
        let (b, n_in, _) = x.dims3()?;
        let Conv1dConfig { padding, stride, dilation, .. } = self.config;
        // Each tap takes `stride` positions for each window, and keeps the first of them.
        let x = x.transpose(1, 2)?.contiguous()?.pad_with_zeros(1, padding, padding + stride - 1)?;
        let tap = |i: usize| {
            let part = x.narrow(1, i * dilation, count * stride)?;
            if stride == 1 {
                return Ok(part);
            }
            part.reshape((b, count, stride, n_in))?.narrow(2, 0, 1)?.squeeze(2)
        };
        Tensor::cat(&(0..len).map(tap).collect::<Result<Vec<_>>>()?, 2)
    }
}

/// A layer on windows (B, L', k·in), with a residual or gate (B, out, L'): -> (B, out, L')
fn by_position(layer: &Linear, windows: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
    let turned = epilogue.join().map(|join| join.try_map(|x: &Tensor| x.transpose(1, 2))).transpose()?;
    let epilogue = turned.as_ref().map_or(epilogue, Epilogue::of_join);
    layer.forward_with(windows, epilogue)?.transpose(1, 2)
}

impl Module for Conv1d {
    /// (B, in, L) -> (B, out, L')
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, Epilogue::None)
    }
}

impl TryFrom<candle_nn::Conv1d> for Conv1d {
    type Error = candle_core::Error;

    fn try_from(conv: candle_nn::Conv1d) -> Result<Self> {
        Self::new(conv.weight().clone(), conv.bias().cloned(), *conv.config())
    }
}

/// Loads `weight` (out, in / groups, k) and `bias` (out), drawn as `candle_nn::conv1d` draws them where a variable is made.
///
/// # Errors
/// When a tensor is missing or has another shape.
pub fn conv1d(
    n_in: usize,
    n_out: usize,
    kernel_size: usize,
    config: Conv1dConfig,
    vb: VarBuilder,
) -> Result<Conv1d> {
    candle_nn::conv1d(n_in, n_out, kernel_size, config, vb)?.try_into()
}

/// [`conv1d()`] without a bias.
///
/// # Errors
/// When the tensor is missing or has another shape.
pub fn conv1d_no_bias(
    n_in: usize,
    n_out: usize,
    kernel_size: usize,
    config: Conv1dConfig,
    vb: VarBuilder,
) -> Result<Conv1d> {
    candle_nn::conv1d_no_bias(n_in, n_out, kernel_size, config, vb)?.try_into()
}
