//! Attention against what PyTorch computes: `scaled_dot_product_attention` and `flex_attention`, with gradients.

use crate::common::{Result, data};
use candle_core::{DType, Device, Tensor, Var};
use candle_fused::Implementation::{Eager, Fused};
use candle_fused::attention::{Mask, Sdpa, Window};
use std::sync::Arc;

/// The files, and what `scripts/make_attention_reference.py` gave PyTorch for each.
const CASES: [(&str, Window, Option<f64>); 9] = [
    ("grouped", Window::CAUSAL, None),
    ("single_key_head", Window::CAUSAL, None),
    ("full", Window::ALL, None),
    ("sliding", Window { left: Some(15), right: Some(0) }, None),
    ("both_sides", Window { left: Some(9), right: Some(4) }, None),
    ("added", Window::ALL, None),
    ("softcap", Window::CAUSAL, Some(1.5)),
    ("alibi", Window::CAUSAL, None),
    ("softcap_alibi_sliding", Window { left: Some(20), right: Some(0) }, Some(2.0)),
];

#[test]
fn context_and_gradients_are_pytorchs() -> Result {
    for (name, window, softcap) in CASES {
        let file = data("attention").join(format!("{name}.safetensors"));
        let stored = candle_core::safetensors::load(file, &Device::Cpu)?;
        let get = |name: &str| stored.get(name).ok_or_else(|| format!("no {name}"));
        let slopes: Option<Arc<[f32]>> =
            stored.get("slopes").map(Tensor::to_vec1::<f32>).transpose()?.map(Arc::from);
        for (implementation, dtype, tolerance) in [(Eager, DType::F64, 1e-7), (Fused, DType::F32, 3e-6)] {
            let variable =
                |name: &str| -> Result<Var> { Ok(Var::from_tensor(&get(name)?.to_dtype(dtype)?)?) };
            let (q, k, v) = (variable("q")?, variable("k")?, variable("v")?);
            let sdpa = Sdpa { window, softcap, slopes: slopes.clone(), implementation, ..Sdpa::default() };
            let mask = Mask { added: stored.get("added"), ..Mask::default() };
            let context = sdpa.forward(&q, &k, &v, mask)?.transpose(1, 2)?; // (B, H, T, Dv)
            let gradients = (&context * get("grad")?.to_dtype(dtype)?)?.sum_all()?.backward()?;
            let of = |x: &Var| gradients.get(x).cloned().ok_or("no gradient");
            for (what, got) in [("context", context), ("dq", of(&q)?), ("dk", of(&k)?), ("dv", of(&v)?)] {
                let expected = get(what)?.to_dtype(DType::F64)?;
                let error = (got.to_dtype(DType::F64)? - &expected)?.abs()?.max_all()?.to_scalar::<f64>()?;
                let error = error / expected.abs()?.max_all()?.to_scalar::<f64>()?;
                assert!(error < tolerance, "{what} of {name}, {implementation:?}: {error}");
            }
        }
    }
    Ok(())
}
