//! Attention rollout (Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", §3).

use candle_core::{D, DType, Result, Tensor};

/// How much of each input token each position holds after every layer, if attention alone moved information: the
/// product of the layers' matrices `(A + I) / 2`, where A is the mean over the heads and I represents the residual
/// stream.
///
/// # Shapes
/// each of `attentions` (B, H, T, T), as [`ForwardArgs::output_attentions`] gives them -> L tensors (B, T, T): row i of
/// the l-th describes position i after block l and sums to 1
///
/// [`ForwardArgs::output_attentions`]: crate::ForwardArgs::output_attentions
///
/// # Errors
/// When a layer's weights are not square, or differ in shape from the first layer's.
pub fn attention_rollout(attentions: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut rollout: Vec<Tensor> = vec![];
    for weights in attentions {
        let (_, _, t, s) = weights.dims4()?;
        if t != s {
            candle_core::bail!(
                "attention rollout: weights {:?} come from a cache, expected T x T",
                weights.dims()
            )
        }
        let mean = weights.to_dtype(DType::F32)?.mean(1)?; // (B, T, T)
        let mixed = ((mean.broadcast_add(&Tensor::eye(t, DType::F32, weights.device())?))? * 0.5)?;
        // Padding rows attend to nothing, so they sum to one half.
        let mixed = mixed.broadcast_div(&mixed.sum_keepdim(D::Minus1)?)?;
        let next = match rollout.last() {
            Some(before) => mixed.matmul(before)?,
            None => mixed,
        };
        rollout.push(next);
    }
    Ok(rollout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn it_is_the_product_of_the_layers() -> Result<()> {
        let layer = |w: f32| {
            Tensor::new(&[[1f32, 0., 0.], [w, 1. - w, 0.], [0.2, 0.3, 0.5]], &Device::Cpu)?
                .reshape((1, 1, 3, 3))
        };
        let other = Tensor::new(&[[1f32, 0., 0.], [1., 0., 0.], [0., 1., 0.]], &Device::Cpu)?
            .reshape((1, 1, 3, 3))?;
        let two_heads = Tensor::cat(&[layer(0.5)?, other], 1)?; // (1, 2, 3, 3)
        let rollout = attention_rollout(&[two_heads, layer(0.25)?])?;
        // Computed by hand: the first layer's mean, with the residual added to its rows.
        let first = [[1.0f32, 0.0, 0.0], [0.375, 0.625, 0.0], [0.05, 0.325, 0.625]];
        let mixed = [[1.0f32, 0.0, 0.0], [0.125, 0.875, 0.0], [0.1, 0.15, 0.75]];
        let mut product = [[0.0f32; 3]; 3];
        for i in 0..3 {
            for j in 0..3 {
                product[i][j] = (0..3).map(|k| mixed[i][k] * first[k][j]).sum();
            }
        }
        for (got, expected) in [(&rollout[0], first), (&rollout[1], product)] {
            let got = got.squeeze(0)?.to_vec2::<f32>()?;
            for (got, expected) in got.iter().flatten().zip(expected.iter().flatten()) {
                assert!((got - expected).abs() < 1e-6, "{got}, not {expected}");
            }
        }
        assert!(attention_rollout(&[Tensor::zeros((1, 1, 1, 3), DType::F32, &Device::Cpu)?]).is_err());
        Ok(())
    }

    #[test]
    fn a_row_of_padding_holds_its_own_token_and_every_row_sums_to_1() -> Result<()> {
        // The first token is padding: it attends to nothing, and nothing attends to it.
        let layer = Tensor::new(&[[0f32, 0., 0.], [0., 1., 0.], [0., 0.5, 0.5]], &Device::Cpu)?;
        let layer = layer.reshape((1, 1, 3, 3))?;
        let rollout = attention_rollout(&[layer.clone(), layer])?;
        let first = [[1f32, 0., 0.], [0., 1., 0.], [0., 0.25, 0.75]];
        let second = [[1f32, 0., 0.], [0., 1., 0.], [0., 0.4375, 0.5625]];
        for (got, expected) in rollout.iter().zip([first, second]) {
            assert_eq!(got.squeeze(0)?.to_vec2::<f32>()?, expected);
        }
        Ok(())
    }
}
