//! Muon's steps are PyTorch's.

use crate::common::{Result, reference, relative_error};
use candle_core::{DType, Tensor, Var};
use gpt2_model::linear::WeightLayout;
use gpt2_train::{HiddenMatrices, MuonStep};
use std::collections::HashMap;

const RATES: [f64; 4] = [0.02, 0.1, 0.05, 0.01];

/// The largest difference between our weights and PyTorch's after any step, over the largest weight.
fn worst(reference: &HashMap<String, Tensor>, layout: WeightLayout, dtype: DType) -> Result<f64> {
    let mut worst = 0.0f64;
    for shape in ["6x14", "14x6", "8x8", "1x5"] {
        // PyTorch's are (out, in).
        let at = |name: String| {
            let value = reference[&name].to_dtype(dtype)?;
            if layout == WeightLayout::OutIn { Ok(value) } else { value.t()?.contiguous() }
        };
        let weight = Var::from_tensor(&at(format!("{shape}.weight"))?)?;
        let m = Var::zeros(weight.shape(), dtype, weight.device())?;
        let outputs = vec![reference[&format!("{shape}.weight")].dim(0)?];
        let matrices = HiddenMatrices { layout, outputs };
        for (i, lr) in RATES.into_iter().enumerate() {
            let step = MuonStep { lr, momentum: 0.95, weight_decay: 0.1, gradient_scale: 0.5 };
            // Twice the gradient, halved: as if two batches were summed.
            let gradient = (at(format!("{shape}.gradient.{i}"))? * 2.0)?;
            step.apply(&weight, &gradient, &m, &matrices)?;
            worst = worst.max(relative_error(&weight, &at(format!("{shape}.after.{i}"))?)?);
        }
    }
    Ok(worst)
}

/// In f64, nothing but the order of sums differs. In f32, the iteration raises small singular values, and with them their rounding,
/// by up to 3.4^5 = 485, of which a rate of at most 0.1 enters the weights.
#[test]
fn four_steps_are_those_of_pytorch() -> Result {
    let reference = reference("muon")?;
    for layout in [WeightLayout::InOut, WeightLayout::OutIn] {
        for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 5e-6)] {
            let worst = worst(&reference, layout, dtype)?;
            assert!(worst < tolerance, "{layout:?} {dtype:?}: {worst:e}");
        }
    }
    Ok(())
}
