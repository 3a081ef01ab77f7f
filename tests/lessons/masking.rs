//! Both ways to hide the future: equal, except for scores that are too far apart for f32.

use super::normal;
use crate::common::{Result, assert_close, cases};
use candle_core::{D, DType, Device, Tensor};
use gpt2_lessons::causal_attention::{causal_mask, masked_weights, renormalized_weights};
use gpt2_lessons::simple::{softmax, softmax_naive};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(64)))]

    /// For any shape and spread, and with a mask of any length.
    #[test]
    fn both_ways_are_equal(b in 1usize..4, t in 1usize..24, longer in 0usize..9, seed: u64, spread in 0.1f64..8.) {
        let check = || -> Result {
            let scores = (normal(seed, (b, t, t))? * spread)?;
            let mask = causal_mask(t + longer, &Device::Cpu)?;
            let after = renormalized_weights(&scores, &mask)?;
            let before = masked_weights(&scores, &mask)?;
            // With a spread of 8, hidden scores are up to some 60 above visible ones, and f32 can still hold exp(-60).
            assert_close("weights", &after, &before, 1e-5);
            let ones = Tensor::ones((b, t), DType::F32, &Device::Cpu)?;
            assert_close("row sums", &before.sum(D::Minus1)?, &ones, 1e-6);
            Ok(())
        };
        check().map_err(|e| TestCaseError::fail(e.to_string()))?;
    }
}

/// A hidden score 200 above the visible one: its share is 1, all others round to 0, and for the visible rest the first
/// way computes 0/0.
#[test]
fn only_masking_before_the_softmax_survives_a_loud_future() -> Result {
    let scores = Tensor::new(&[[0f32, 200.], [0., 200.]], &Device::Cpu)?;
    let mask = causal_mask(2, &Device::Cpu)?;
    assert!(renormalized_weights(&scores, &mask)?.to_vec2::<f32>()?[0][0].is_nan());
    assert_eq!(masked_weights(&scores, &mask)?.to_vec2::<f32>()?, [[1., 0.], [0., 1.]]);
    Ok(())
}

/// The stable softmax, with scores for which plain `exp` works and for which it does not.
#[test]
fn the_naive_softmax_has_limits_that_the_stable_one_has_not() -> Result {
    let tensor = |scores: [f32; 2]| Tensor::new(&scores, &Device::Cpu);
    let fits = tensor([87., 88.])?;
    assert_close("both", &softmax_naive(&fits)?, &softmax(&fits)?, 1e-6);
    for (scores, weights, why) in [
        ([0., 100.], [0., 1.], "infinity over infinity"),
        ([-200., -200.], [0.5, 0.5], "0 over 0"),
        ([-200., f32::NEG_INFINITY], [1., 0.], "0 over 0"),
    ] {
        let scores = tensor(scores)?;
        assert!(softmax_naive(&scores)?.to_vec1::<f32>()?.iter().any(|w| w.is_nan()), "{why}");
        assert_close(why, &softmax(&scores)?, &tensor(weights)?, 1e-6);
    }
    Ok(())
}
