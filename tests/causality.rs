//! Changing a token changes nothing before it, and something at it and after it.

use crate::common::{Result, random_model, some_ids};
use candle_core::{DType, Device, IndexOp, Tensor};
use gpt2_kernels::attention::{CausalAttention, CausalMask, causal_bias};
use gpt2_model::ForwardArgs;
use proptest::prelude::*;

#[test]
fn a_token_reaches_no_position_before_it() -> Result {
    let model = random_model(3, 5, 24)?;
    let t = 24;
    let ids = some_ids(t, 0)?;
    let run = |ids: &Tensor| -> Result<Vec<Vec<f32>>> {
        Ok(model.forward(ids, ForwardArgs::default())?.logits.squeeze(0)?.to_vec2()?)
    };
    let before = run(&ids)?;
    for j in [0, 1, 11, t - 1] {
        let mut changed = ids.squeeze(0)?.to_vec1::<u32>()?;
        changed[j] = (changed[j] + 1) % 37;
        let after = run(&Tensor::new(changed, &Device::Cpu)?.unsqueeze(0)?)?;
        assert_eq!(before[..j], after[..j], "token {j} changed what lies before it");
        for i in j..t {
            assert_ne!(before[i], after[i], "token {j} does not reach position {i}");
        }
    }
    Ok(())
}

/// Attention in f64 by the definition, one number at a time: query i of T sees keys 0..=S-T+i.
fn by_definition(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64, padding: &[Vec<u8>]) -> Result<Vec<f64>> {
    let (b, h, t, d) = q.dims4()?;
    let s = k.dim(2)?;
    let row = |x: &Tensor, b: usize, h: usize, i: usize| -> Result<Vec<f64>> {
        Ok(x.i((b, h, i))?.to_dtype(DType::F64)?.to_vec1()?)
    };
    let mut out = vec![0.0; b * t * h * d];
    for bi in 0..b {
        for hi in 0..h {
            let keys: Vec<_> = (0..s).map(|j| row(k, bi, hi, j)).collect::<Result<_>>()?;
            let values: Vec<_> = (0..s).map(|j| row(v, bi, hi, j)).collect::<Result<_>>()?;
            for i in 0..t {
                let query = row(q, bi, hi, i)?;
                let visible: Vec<usize> = (0..=s - t + i).filter(|&j| padding[bi][j] == 1).collect();
                let score = |&j: &usize| scale * query.iter().zip(&keys[j]).map(|(a, b)| a * b).sum::<f64>();
                let scores: Vec<f64> = visible.iter().map(score).collect();
                let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = scores.iter().map(|x| (x - highest).exp()).sum();
                for (&j, x) in visible.iter().zip(&scores) {
                    for (c, value) in values[j].iter().enumerate() {
                        out[((bi * t + i) * h + hi) * d + c] += (x - highest).exp() / total * value;
                    }
                }
            }
        }
    }
    Ok(out)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Strided views of a packed projection, fewer queries than keys, and padding.
    #[test]
    fn attention_is_the_definition((b, h, d, s) in (1usize..4, 1usize..4, 1usize..9, 1usize..20),
                                   t in 1usize..20, scale in 0.05f64..2.0, seed in 0u64..1000, padded: bool) {
        let t = t.min(s);
        let check = || -> Result {
            let vb = gpt2_model::init::seeded(seed, DType::F32, &Device::Cpu);
            let packed = vb.get_with_hints((b, s, 3, h, d), "x", candle_nn::Init::Randn { mean: 0., stdev: 1.5 })?;
            let part = |i| packed.narrow(2, i, 1)?.squeeze(2)?.transpose(1, 2); // (B, H, S, D), strided
            let (q, k, v) = (part(0)?.narrow(2, s - t, t)?, part(1)?, part(2)?);
            let mask: Vec<Vec<u8>> = (0..b)
                .map(|i| (0..s).map(|j| u8::from(!padded || (seed >> ((i * 7 + j) % 10)) & 1 == 1)).collect())
                .collect();
            let padding = Tensor::new(mask.clone(), &Device::Cpu)?;
            let tril = causal_bias(s + 3, &Device::Cpu)?;
            let mask_arg = CausalMask { tril: &tril, padding: padded.then_some(&padding) };
            let got = CausalAttention::new(scale).forward(&q, &k, &v, mask_arg)?; // (B, T, H, D)
            assert_eq!(got.dims(), [b, t, h, d]);
            let expected = by_definition(&q, &k, &v, scale, &mask)?;
            for (got, expected) in got.flatten_all()?.to_vec1::<f32>()?.iter().zip(&expected) {
                assert!((f64::from(*got) - expected).abs() <= 5e-6, "{got} {expected}");
            }
            Ok(())
        };
        check().map_err(|e| TestCaseError::fail(e.to_string()))?;
    }
}
