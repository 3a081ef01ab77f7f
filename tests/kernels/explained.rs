//! The report of `explain` on a run.

use crate::common::Result;
use candle_core::{DType, Device, Module, Tensor, Var};
use candle_fused::attention::{Mask, Sdpa, Window};
use candle_fused::nn::rotary_emb::rope;
use candle_fused::nn::{Linear, RmsNorm};
use candle_fused::{
    Activation, BlockFormat, Epilogue, Explanation, Implementation, Weight, WeightLayout, explain,
};

fn zeros(shape: &[usize], dtype: DType) -> candle_core::Result<Tensor> {
    Tensor::zeros(shape, dtype, &Device::Cpu)
}

/// The one operation: its name, its code, and why there is no faster one.
fn only(explanation: &Explanation) -> (&str, &str, &str) {
    let [one] = &explanation.0[..] else { panic!("expected one operation, got {explanation:?}") };
    (one.operation, &one.code, one.slower_because.as_deref().unwrap_or(""))
}

#[test]
fn a_linear_layer_says_what_ran_and_why() -> Result {
    let x = zeros(&[2, 64], DType::F32)?;
    let of_linear = |weight: Tensor| explain(|| Linear::new(weight, None)?.forward(&x));
    let (_, packed) = of_linear(zeros(&[32, 64], DType::F32)?)?;
    assert!(matches!(only(&packed), ("linear", code, "") if code.starts_with("packed weight, ")));
    assert_eq!(packed.0[0].inputs, "x f32 [2, 64], W f32 [64, 32]");
    let (_, learning) = of_linear(Var::zeros((32, 64), DType::F32, &Device::Cpu)?.as_tensor().clone())?;
    assert!(only(&learning).2.contains("learns"), "{learning}");
    let plain = Weight::plain(zeros(&[64, 32], DType::F32)?, WeightLayout::InOut)?;
    assert!(only(&explain(|| plain.forward(&x, None, Epilogue::None))?.1).2.contains("not packed"));
    let quantized = Weight::quantize(&zeros(&[32, 64], DType::F32)?, WeightLayout::OutIn, BlockFormat::Q8_0)?;
    let (_, blocks) = explain(|| quantized.forward(&x, None, Epilogue::None))?;
    assert_eq!((blocks.0[0].inputs.as_str(), only(&blocks).2), ("x f32 [2, 64], W q8_0 [64, 32]", ""));

    let w = zeros(&[64, 64], DType::F32)?;
    let row = zeros(&[2, 64], DType::F32)?;
    for (epilogue, shown) in [
        (Epilogue::Activation(Activation::Gelu), ", then Gelu"),
        (Epilogue::Residual(&row), ", then a residual"),
        (Epilogue::Gated(Activation::Silu, &row), ", then a gate of Silu"),
    ] {
        for weight in [Weight::pack(&w, WeightLayout::InOut)?, Weight::plain(w.clone(), WeightLayout::InOut)?]
        {
            let (_, explanation) = explain(|| weight.forward(&x, None, epilogue))?;
            assert!(explanation.0[0].inputs.ends_with(shown), "{explanation}");
        }
    }
    Ok(())
}

#[test]
fn attention_says_what_ran_and_why() -> Result {
    let of_attention = |q: DType, k: DType, implementation| {
        let q = zeros(&[1, 2, 9, 8], q)?;
        let k = zeros(&[1, 2, 9, 8], k)?;
        explain(|| Sdpa { implementation, ..Sdpa::default() }.forward(&q, &k, &k, Mask::default()))
    };
    for (q, k, implementation, code, why) in [
        (DType::F32, DType::F32, Implementation::Auto, "fused", ""),
        (DType::F32, DType::BF16, Implementation::Auto, "fused", ""),
        (
            DType::BF16,
            DType::F32,
            Implementation::Auto,
            "fused",
            "keys in f32 and values in f32 are converted to bf16",
        ),
        (DType::F64, DType::F64, Implementation::Auto, "plain operations", "no kernel for f64"),
        (DType::F32, DType::F32, Implementation::Eager, "plain operations", "the caller chose"),
    ] {
        let (_, explanation) = of_attention(q, k, implementation)?;
        let (what, ran, because) = only(&explanation);
        assert!(what == "attention" && ran.starts_with(code), "{explanation}");
        assert!(because.contains(why) && because.is_empty() == why.is_empty(), "{explanation}");
    }

    let heads = zeros(&[1, 2, 9, 8], DType::F32)?;
    let bias = zeros(&[9, 9, 2], DType::F32)?.permute((2, 0, 1))?.unsqueeze(0)?; // as a table of relative positions gives it
    let shared = zeros(&[1, 2, 1, 9], DType::F32)?.broadcast_as((1, 2, 9, 9))?;
    for (added, why) in [(bias.contiguous()?, ""), (shared, ""), (bias, "not contiguous")] {
        let mask = Mask { added: Some(&added), ..Mask::default() };
        let (_, explanation) = explain(|| Sdpa::default().forward(&heads, &heads, &heads, mask))?;
        let because = only(&explanation).2;
        assert!(because.contains(why) && because.is_empty() == why.is_empty(), "{explanation}");
    }
    for (window, shown) in [
        (Window::CAUSAL, "causal"),
        (Window::ALL, "all keys"),
        (Window::sliding(4), "a window of 4 keys"),
        (Window { left: None, right: Some(3) }, "all keys before and 3 after"),
    ] {
        let sdpa = Sdpa { window, ..Sdpa::default() };
        let (_, explanation) = explain(|| sdpa.forward(&heads, &heads, &heads, Mask::default()))?;
        assert!(explanation.0[0].inputs.ends_with(&format!(", {shown}")), "{explanation}");
    }
    Ok(())
}

#[test]
fn norms_activations_and_rotations_say_what_ran_and_why() -> Result {
    let x = zeros(&[2, 64], DType::F32)?;
    let norm = RmsNorm::new(zeros(&[64], DType::F32)?, 1e-6);
    assert_eq!(only(&explain(|| norm.forward(&x))?.1).2, "");
    let (_, mixed) = explain(|| norm.forward(&x.to_dtype(DType::F16)?))?;
    assert_eq!(only(&mixed), ("rms_norm", "plain operations", "f16 and f32 do not go together"));
    let (_, alone) = explain(|| Activation::Silu.forward(&x))?;
    assert!(only(&alone).2.contains("Epilogue"), "{alone}");
    let heads = zeros(&[1, 2, 3, 8], DType::F64)?;
    let table = zeros(&[3, 4], DType::F64)?;
    assert_eq!(
        only(&explain(|| rope(&heads, &table, &table))?.1),
        ("rope", "plain operations", "there is no kernel for f64")
    );
    Ok(())
}

#[test]
fn runs_inside_a_run_are_part_of_it() -> Result {
    let layer = Linear::new(zeros(&[8, 8], DType::F32)?, None)?;
    let x = zeros(&[1, 8], DType::F32)?;
    let ((y, inner), outer) = explain(|| {
        let y = layer.forward(&x)?;
        let (y, inner) = explain(|| layer.forward(&y))?;
        Ok((layer.forward(&y)?, inner))
    })?;
    assert_eq!((y.dims(), inner.0.len(), outer.0.len()), (&[1, 8][..], 1, 3));
    // Equal operations share a row.
    let table = outer.to_string();
    assert!(table.lines().count() == 1 && table.contains("3x linear  x f32 [1, 8], W f32 [8, 8]"), "{table}");
    assert!(explain(|| layer.forward(&zeros(&[1, 9], DType::F32)?)).is_err());
    // A failed run leaves nothing behind.
    assert_eq!(explain(|| Ok(()))?.1, Explanation::default());
    Ok(())
}
