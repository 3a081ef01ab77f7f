//! Attention against plain operations.

use super::{Path, Verify, rounding};
use crate::open::attention_layer;
use candle_core::{DType, Device, Tensor, Var};
use candle_fused::Dropout;
use candle_fused::Implementation::{self, Eager, Fused};
use candle_fused::attention::{HeadLayout, Hidden, Inputs, Mask, Sdpa, quantize_rows, widen_rows};
use candle_nn::Init;
use gpt2_model::init;
use gpt2_model::mask::left_padding;

/// An attention case to check: B rows, T queries at the end of S keys, D, and what hides keys or drops weights. Each is
/// checked with keys for each head and, on the CPU, with one head of keys for all.
const ATTENTION: [(usize, usize, usize, usize, &str); 21] = [
    (1, 1, 1, 64, ""),
    (1, 1, 1000, 64, ""),
    (2, 3, 300, 80, ""),
    (1, 128, 128, 64, ""),
    (2, 200, 200, 33, PADDED),
    (1, 300, 1000, 64, ""),
    (1, 500, 500, 128, ""),
    (1, 1024, 1024, 64, ""),
    (2, 1, 400, 64, PADDED),
    (1, 1, 300, 80, ""),
    (1, 1, 300, 96, ""),
    (1, 1, 300, 128, ""),
    (1, 200, 200, 96, ""),
    (2, 200, 200, 64, PADDED),
    // As many tiles as the largest GPU has multiprocessors, which takes other kernels than a few tiles do.
    (32, 129, 129, 32, ""),
    (32, 129, 129, 64, ""),
    (32, 129, 129, 80, ""),
    (32, 129, 129, 96, ""),
    (2, 200, 260, 64, MASKED),
    (1, 70, 70, 96, MASKED),
    (1, 1, 300, 64, MASKED),
];
const PADDED: &str = ", padded";
/// Padding, hidden keys and dropout.
const MASKED: &str = ", padded, with hidden keys and dropout";
const HEADS: usize = 3;

/// The result of one path, and the implementations that ran without and with a gradient.
struct PathResult {
    context: Tensor,
    /// The context when weights are also computed.
    weighted: Tensor,
    ran: Implementation,
    gradient: Tensor,
    trained_by: Implementation,
}

impl Verify<'_> {
    /// Attention alone: its context, its gradient, and its context when weights are also computed.
    pub(super) fn attention(&mut self) -> anyhow::Result<()> {
        let shared = if self.device.is_cpu() { Some(1) } else { None };
        let cases = ATTENTION.into_iter().flat_map(|case| [Some(HEADS), shared].map(|heads| (case, heads)));
        for ((b, t, s, d, masks), key_heads) in cases {
            let Some(key_heads) = key_heads else { continue };
            let vb = init::seeded(self.seed, DType::F32, &Device::Cpu);
            let layout = HeadLayout::grouped(HEADS, key_heads, d);
            let normal = Init::Randn { mean: 0., stdev: 1.3 };
            let packed = vb.get_with_hints((b, s, layout.packed_width()), "qkv", normal)?;
            let grad = vb.get_with_hints((b, t, HEADS, d), "grad", normal)?.to_dtype(DType::F64)?;
            // Of up to three rows; larger batches have no padding.
            let lengths: Vec<usize> = (0..b).map(|i| s.saturating_sub(i * s / 3)).collect();
            let padded = !masks.is_empty();
            let masked = masks == MASKED;
            // Of each query every fifth key, in head 0 or 1.
            let hidden = |query: usize| (query % 5..=s - t + query).step_by(5).map(move |key| (query, key));
            let hidden: Vec<Hidden> = (0..if masked { t } else { 0 })
                .flat_map(hidden)
                .map(|(query, key)| Hidden { head: Some(query % 2), query, key })
                .collect();
            let dropout = masked.then(|| Dropout::new(0.1, self.seed, 1)).transpose()?;
            let padding = padded.then(|| left_padding(&lengths, s, &Device::Cpu)).transpose()?;
            let keys = if key_heads < HEADS { ", one head of keys" } else { "" };
            let case = format!("B {b}, T {t}, S {s}, D {d}{keys}{masks}");
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                let rounded = packed.to_dtype(dtype)?;
                let run = |dtype, device: &Device, implementation: Implementation| {
                    let packed = Var::from_tensor(&rounded.to_dtype(dtype)?.to_device(device)?)?;
                    let padding = padding.as_ref().map(|p| p.to_device(device)).transpose()?;
                    let mask = Mask { padding: padding.as_ref(), hidden: &hidden, ..Mask::default() };
                    let attention = Sdpa { dropout, implementation, ..Sdpa::default() };
                    // Some kernels only run if no gradient is needed.
                    let [q, k, v] = attention_layer::views(&packed.as_detached_tensor(), layout, t)?;
                    let ran = attention.code_for(&Inputs::from_tensors(&q, &k, &v, mask))?;
                    let context = attention.forward(&q, &k, &v, mask)?;
                    let (weighted, _) = attention.forward_with_weights(&q, &k, &v, mask)?;

                    let [q, k, v] = attention_layer::views(&packed, layout, t)?;
                    let trained_by = attention.code_for(&Inputs::from_tensors(&q, &k, &v, mask))?;
                    let trained = attention.forward(&q, &k, &v, mask)?;
                    let wide = trained.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
                    let gradients = (wide * &grad)?.sum_all()?.backward()?;
                    let Some(gradient) = gradients.get(&packed) else {
                        anyhow::bail!("attention has no gradient on this path")
                    };
                    Ok(PathResult { context, weighted, ran, gradient: gradient.clone(), trained_by })
                };
                let expected = run(DType::F64, &Device::Cpu, Eager)?;
                // f32 sums of up to 1024 numbers; a half's result is rounded once, its gradient three times.
                let (value, slope) = if dtype == DType::F32 {
                    (1e-5, 1e-5)
                } else {
                    (1.1 * rounding(dtype), 4. * rounding(dtype))
                };
                for implementation in [Fused, Eager] {
                    let got = run(dtype, &self.device.clone(), implementation)?;
                    // Without a kernel for this, it would be the eager path once more.
                    if got.ran == implementation {
                        // Candle's kernel on Metal rounds the scale, and then q times the scale.
                        let metal = self.device.is_metal() && implementation == Fused && dtype != DType::F32;
                        let tolerance = if metal { 4. * rounding(dtype) } else { value };
                        let path = Path { case: &case, implementation, dtype, tolerance };
                        self.check("attention", path, &got.context, &expected.context)?;
                        self.check("with weights", path, &got.weighted, &expected.context)?;
                    }
                    if got.trained_by == implementation {
                        let path = Path { case: &case, implementation, dtype, tolerance: slope };
                        self.check("its gradient", path, &got.gradient, &expected.gradient)?;
                    }
                }
            }
            if self.device.is_cpu() {
                let mask = Mask { padding: padding.as_ref(), hidden: &hidden, ..Mask::default() };
                let attention = Sdpa { dropout, implementation: Fused, ..Sdpa::default() };
                self.quantized_keys(&case, attention_layer::views(&packed, layout, t)?, &attention, mask)?;
            }
        }
        Ok(())
    }

    /// The context over keys and values in 8 bits, which have to be read as the numbers that they stand for.
    fn quantized_keys(
        &mut self,
        case: &str,
        [q, k, v]: [Tensor; 3],
        attention: &Sdpa,
        mask: Mask,
    ) -> anyhow::Result<()> {
        let k = quantize_rows(&k)?;
        let v = quantize_rows(&v)?;
        let wide = |codes: &Tensor| widen_rows(codes)?.to_dtype(DType::F64);
        let eager = Sdpa { implementation: Eager, ..attention.clone() };
        let expected = eager.forward(&q.to_dtype(DType::F64)?, &wide(&k)?, &wide(&v)?, mask)?;
        let path = Path { case, implementation: Fused, dtype: DType::F32, tolerance: 1e-5 };
        self.check("over q8_0 keys", path, &attention.forward(&q, &k, &v, mask)?, &expected)
    }
}
