//! Weights that are NaN, and weights that are equal.

use super::Case;
use crate::common::Result;
use candle_core::{Device, Tensor};
use candle_fused::Implementation::{Eager, Fused};
use candle_fused::attention::Chosen;

/// A NaN score turns its row into NaN, except for keys that the row cannot see; on every path to the weights.
#[test]
fn hidden_keys_have_no_weight_beside_one_that_is_not_a_number() -> Result {
    for t in [2, 50] {
        let mut case = Case::random((2, 1, 8), (t, 50), 3)?;
        case.hide(4)?;
        let nan = Tensor::from_iter((0..50).map(|key| if key == 3 { f32::NAN } else { 1.0 }), &Device::Cpu)?;
        case.k = case.k.broadcast_mul(&nan.reshape((1, 1, 50, 1))?)?;
        let kinds = |implementation| -> Result<Vec<u8>> {
            let weights = case.weights(implementation, Chosen::default())?.flatten_all()?.to_vec1::<f32>()?;
            let kind = |w: f32| if w.is_nan() { 2 } else { u8::from(w > 0.0) };
            Ok(weights.into_iter().map(kind).collect())
        };
        let expected = kinds(Eager)?;
        assert!(expected.contains(&2) && expected.contains(&0), "T {t}");
        assert!(kinds(Fused)? == expected, "T {t}: another row or key");
        let entropy = |implementation| -> Result<Vec<bool>> {
            let entropy = case.summary(implementation)?.entropy.flatten_all()?.to_vec1::<f32>()?;
            Ok(entropy.into_iter().map(f32::is_nan).collect())
        };
        assert_eq!(entropy(Fused)?, entropy(Eager)?, "T {t}");
    }
    Ok(())
}

/// Among equal weights, the first key counts as the largest, on every path to a summary.
#[test]
fn the_first_of_equal_weights_is_the_largest() -> Result {
    for t in [2, 90] {
        let mut case = Case::random((1, 2, 8), (t, 400), 3)?;
        case.q = case.q.zeros_like()?;
        for implementation in [Fused, Eager] {
            let positions = case.summary(implementation)?.max_position.flatten_all()?.to_vec1::<u32>()?;
            assert!(positions.iter().all(|&key| key == 0), "{implementation:?}, T {t}: {positions:?}");
        }
    }
    Ok(())
}
