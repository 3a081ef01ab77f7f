//! Layer normalisation over the last dimension (Ba, Kiros, Hinton 2016).
//!
//! `y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias`, with the biased variance, as PyTorch has it.

use candle_core::{D, Result, Tensor};

/// Normalises each row of `x`, in f32 at least, and returns the dtype of `x`.
///
/// The variance is taken from the centred values: the shorter `E[x²] - E[x]²` loses all its digits on
/// the residual stream of a trained GPT-2, whose mean is large beside its spread. Candle's own
/// `ops::layer_norm` computes that shorter form and has no backward, so it is not used here.
///
/// # Shapes
/// `x` (.., C), `weight` (C), `bias` (C) -> (.., C)
///
/// # Errors
/// When the last dimension of `x` is not that of `weight` and `bias`.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    if weight.dims() != [width] || bias.dims() != [width] {
        candle_core::bail!(
            "layer_norm: x {:?} needs weight and bias of shape [{width}], got {:?} and {:?}",
            x.dims(),
            weight.dims(),
            bias.dims()
        )
    }
    let wide = crate::accumulator(x.dtype());
    let centred = {
        let x = x.to_dtype(wide)?;
        x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?
    };
    let variance = centred.sqr()?.mean_keepdim(D::Minus1)?; // (.., 1)
    centred
        .broadcast_div(&(variance + eps)?.sqrt()?)?
        .broadcast_mul(&weight.to_dtype(wide)?)?
        .broadcast_add(&bias.to_dtype(wide)?)?
        .to_dtype(x.dtype())
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn keeps_its_digits_when_the_mean_is_large() -> Result<()> {
        // Spread 1 around a mean of 4096: in f32 the one-pass variance is off by whole units.
        let x = Tensor::new(&[[4095f32, 4097., 4095., 4097.]], &Device::Cpu)?;
        let one = Tensor::new(&[1f32, 1., 1., 1.], &Device::Cpu)?;
        let y = layer_norm(&x, &one, &one.zeros_like()?, 0.)?.to_vec2::<f32>()?;
        assert_eq!(y, [[-1., 1., -1., 1.]]);
        Ok(())
    }

    #[test]
    fn refuses_a_weight_of_another_width() -> Result<()> {
        let x = Tensor::zeros((2, 4), candle_core::DType::F32, &Device::Cpu)?;
        let w = Tensor::zeros(3, candle_core::DType::F32, &Device::Cpu)?;
        let err = layer_norm(&x, &w, &w, 1e-5).expect_err("3 is not 4").to_string();
        assert!(err.contains("[2, 4]") && err.contains("[3]"), "{err}");
        Ok(())
    }
}
