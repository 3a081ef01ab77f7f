//! A checkpoint's logits against plain operations.

use super::{Path, Verify, rounding};
use crate::open::attention_layer;
use candle_core::{DType, Device, Tensor};
use candle_fused::Implementation::{Eager, Fused};
use gpt2_loader::Checkpoint;
use gpt2_model::mask::{left_padding, position_ids};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel, KvCache};

/// Computes the logits of one path.
type ComputePath<'a> = &'a dyn Fn() -> anyhow::Result<Tensor>;

impl Verify<'_> {
    /// Compares the logits of each path of the checkpoint's model with one pass in eager f64 on the CPU, where every
    /// operation is Candle's own.
    pub(super) fn model(&mut self, checkpoint: &Checkpoint) -> anyhow::Result<()> {
        let load = |dtype, device: &Device, implementation| {
            checkpoint.clone().with_implementation(implementation).load_model(dtype, device)
        };
        let config = checkpoint.config();
        let t = config.n_positions.min(256);
        let count = u32::try_from(config.vocab_size)?;
        let ids: Vec<u32> = (0..u32::try_from(t)?).map(|i| i.wrapping_mul(7919) % count).collect();
        let ids = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?; // (1, T)
        let reference = load(DType::F64, &Device::Cpu, Eager)?;
        let expected = reference.forward(&ids, ForwardArgs::default())?.logits;
        drop(reference);

        let device = self.device.clone();
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for implementation in [Fused, Eager] {
                let model = load(dtype, &device, implementation)?;
                let ids = ids.to_device(&device)?;
                // Rounding the weights and every activation of each block adds up in a half.
                let quantized = dtype == DType::F32 && device.is_cpu() && !checkpoint.formats().is_empty();
                let tolerance = match dtype {
                    // The inputs of every layer are rounded to 8 bits.
                    DType::F32 if quantized => 0.1,
                    DType::F32 => 3e-5,
                    half => 16. * rounding(half),
                };
                let mut check = |what, case: String, shape, run: ComputePath, expected: &Tensor| {
                    // Without a kernel for this, it would be the eager path once more.
                    let ran = attention_layer::implementation_of(model.config(), shape, dtype, &device)?;
                    if ran != implementation {
                        return Ok(());
                    }
                    self.check(
                        what,
                        Path { case: &case, implementation, dtype, tolerance },
                        &run()?,
                        expected,
                    )
                };
                let forward = |last_logits_only| {
                    let args = ForwardArgs { last_logits_only, ..Default::default() };
                    Ok(model.forward(&ids, args)?.logits)
                };
                check("prompt", format!("T {t}"), (t, t, false), &|| forward(false), &expected)?;
                let of_last = expected.narrow(1, t - 1, 1)?;
                check("last logits", format!("T {t}"), (t, t, false), &|| forward(true), &of_last)?;
                for (what, size) in [("chunks", 7), ("decode", 1)] {
                    let case = format!("{t} tokens, {size} at a time");
                    let shape = (size.min(t), t, false);
                    check(what, case, shape, &|| in_chunks(&model, &ids, size), &expected)?;
                }
                let (case, half) =
                    (format!("half of T {t}, beside it"), expected.narrow(1, 0, t.div_ceil(2))?);
                check("padded", case, (t, t, true), &|| padded(&model, &ids), &half)?;
            }
        }
        Ok(())
    }
}

/// The logits of all positions, read `size` at a time through a cache.
fn in_chunks(model: &Gpt2LMHeadModel, ids: &Tensor, size: usize) -> anyhow::Result<Tensor> {
    let t = ids.dim(1)?;
    let mut cache = KvCache::new(model.config(), 1, t, model.dtype(), ids.device())?;
    let mut logits = vec![];
    for start in (0..t).step_by(size) {
        let args = ForwardArgs { cache: Some(&mut cache), ..Default::default() };
        logits.push(model.forward(&ids.narrow(1, start, size.min(t - start))?, args)?.logits);
    }
    Ok(Tensor::cat(&logits, 1)?)
}

/// The logits of the first half of the tokens, padded on the left, in a batch with a row of all of them.
fn padded(model: &Gpt2LMHeadModel, ids: &Tensor) -> anyhow::Result<Tensor> {
    let t = ids.dim(1)?;
    let half = t.div_ceil(2);
    let short = Tensor::cat(&[&ids.narrow(1, 0, t - half)?, &ids.narrow(1, 0, half)?], 1)?;
    let mask = left_padding(&[t, half], t, ids.device())?;
    let positions = position_ids(&mask)?;
    let args =
        ForwardArgs { attention_mask: Some(&mask), position_ids: Some(&positions), ..Default::default() };
    let logits = model.forward(&Tensor::cat(&[ids, &short], 0)?, args)?.logits;
    Ok(logits.narrow(0, 1, 1)?.narrow(1, t - half, half)?)
}
