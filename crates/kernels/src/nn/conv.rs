//! [`Conv1d`]: a convolution over positions, as a product.

use super::linear::Linear;
use crate::epilogue::Epilogue;
use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv1dConfig, VarBuilder};

/// `candle_nn::Conv1d` on our products: each position's window is a row, which a packed weight multiplies.
///
/// A weight that learns, groups, other dtypes than f32, f16 and bf16, and GPUs take Candle's own convolution.
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
    kernel: Kernel,
    config: Conv1dConfig,
}

#[derive(Debug, Clone)]
enum Kernel {
    /// From windows (k·in) to outputs: position by position, each with all inputs.
    Windows {
        layer: Linear,
        len: usize,
    },
    Candles(candle_nn::Conv1d),
}

impl Conv1d {
    /// Packs the weight if it does not learn and there are no groups.
    ///
    /// # Shapes
    /// `weight` (out, in / groups, k), `bias` (out)
    ///
    /// # Errors
    /// When the weight or the bias has another shape, or the stride, the dilation or the groups are 0.
    pub fn new(weight: Tensor, bias: Option<Tensor>, config: Conv1dConfig) -> Result<Self> {
        let (n_out, n_in, len) = weight.dims3()?;
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
        if config.groups == 1 && !weight.track_op() {
            let rows = weight.transpose(1, 2)?.contiguous()?.reshape((n_out, len * n_in))?;
            let layer = Linear::new(rows, bias.clone())?;
            if layer.weight().is_frozen() {
                return Ok(Self { kernel: Kernel::Windows { layer, len }, config });
            }
        }
        Ok(Self { kernel: Kernel::Candles(candle_nn::Conv1d::new(weight, bias, config)), config })
    }

    /// Padding, stride, dilation and groups.
    #[must_use]
    pub fn config(&self) -> &Conv1dConfig {
        &self.config
    }

    /// The convolution, then `epilogue`, in the pass of the product where the weight is packed; differentiable in `x`.
    ///
    /// # Shapes
    /// `x` (B, in, L), a residual or gate (B, out, L') -> (B, out, L') with L' = (L + 2·padding − dilation·(k − 1) − 1) / stride + 1.
    /// The result may be a view of (B, L', out).
    ///
    /// # Errors
    /// When a shape does not fit, or the text is shorter than one window.
    pub fn forward_with(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
        let (layer, len) = match &self.kernel {
            Kernel::Windows { layer, len } => (layer, *len),
            Kernel::Candles(conv) => return epilogue.apply(conv.forward(x)?),
        };
        let n_in = layer.weight().shape().0 / len;
        if x.dims3()?.1 != n_in {
            candle_core::bail!("conv1d: x {:?} is not (B, {n_in}, L)", x.dims())
        }
        let windows = self.windows(x, len)?;
        let by_position = |x: &Tensor| x.transpose(1, 2);
        let joined = epilogue.join().map(|join| join.try_map(by_position)).transpose()?;
        let epilogue = joined.as_ref().map_or(epilogue, Epilogue::of_join);
        by_position(&layer.forward_with(&windows, epilogue)?)
    }

    /// The windows of `x` (B, in, L), one position after another: (B, L', k·in)
    fn windows(&self, x: &Tensor, len: usize) -> Result<Tensor> {
        let (b, n_in, l) = x.dims3()?;
        let Conv1dConfig { padding, stride, dilation, .. } = self.config;
        let reach = dilation.saturating_mul(len - 1).saturating_add(1);
        let Some(rest) = l.saturating_add(padding.saturating_mul(2)).checked_sub(reach) else {
            candle_core::bail!(
                "conv1d: {l} positions with {padding} of padding at each end are shorter than a window of {reach}"
            )
        };
        let count = rest / stride + 1;
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
