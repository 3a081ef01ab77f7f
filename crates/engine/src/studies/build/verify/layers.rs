//! The layers around attention against plain operations.

use super::{Path, Verify, rounding};
use anyhow::Context;
use candle_core::{DType, Device, Tensor, Var};
use candle_fused::Implementation::{self, Auto, Eager, Fused};
use candle_fused::{
    Activation, BlockFormat, Dispatch, Epilogue, Weight, WeightLayout, layer_norm, linear,
    linear_cross_entropy,
};
use candle_nn::Init;
use gpt2_model::init;

impl Verify<'_> {
    /// Layer norm, linear layers and the loss, with each implementation that the device has.
    pub(super) fn layers(&mut self) -> anyhow::Result<()> {
        self.layers_of(37)?;
        self.layers_of(200) // on CUDA, other products than for a few rows
    }

    fn layers_of(&mut self, rows: usize) -> anyhow::Result<()> {
        let (n_in, n_out) = (256, 768);
        let vb = init::seeded(self.seed, DType::F32, &Device::Cpu);
        let normal = |shape: &[usize], name: &str, mean, stdev| {
            vb.get_with_hints(shape, name, Init::Randn { mean, stdev })
        };
        let x = normal(&[rows, n_in], "x", 0.5, 1.)?;
        let weight = normal(&[n_in, n_out], "weight", 0., 0.06)?;
        let bias = normal(&[n_out], "bias", 0., 1.)?;
        let residual = normal(&[rows, n_out], "residual", 0., 1.)?;
        let scale = normal(&[n_in], "scale", 1., 0.5)?;
        let shift = normal(&[n_in], "shift", 0., 0.5)?;
        let case = format!("{rows} rows, {n_in} to {n_out}");
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let run = |wide,
                       device: &Device,
                       implementation: Implementation|
             -> anyhow::Result<[Tensor; 4]> {
                let to = |x: &Tensor| x.to_dtype(dtype)?.to_dtype(wide)?.to_device(device);
                let x = to(&x)?;
                let weight = to(&weight)?;
                let bias = to(&bias)?;
                let residual = to(&residual)?;
                let dispatch = Dispatch::of(implementation, &x);
                Ok([
                    layer_norm(&x, &to(&scale)?, Some(&to(&shift)?), 1e-5, dispatch)?,
                    linear(&x, &weight, Some(&bias), Epilogue::None, dispatch)?,
                    linear(&x, &weight, Some(&bias), Epilogue::Activation(Activation::GeluTanh), dispatch)?,
                    linear(&x, &weight, Some(&bias), Epilogue::Residual(&residual), dispatch)?,
                ])
            };
            // In a half, the product is rounded, and the operations after it round once or twice more.
            let tolerance = if dtype == DType::F32 { 1e-5 } else { 3. * rounding(dtype) };
            let whats = ["layer norm", "linear", "linear, gelu", "linear, onto"];
            self.compare(whats, Path { case: &case, implementation: Auto, dtype, tolerance }, run)?;
        }
        self.loss(&x, &weight.t()?.contiguous()?, &case)?;
        self.quantized(&x, &weight, &case)
    }

    /// The cross-entropy of `x·Wᵀ` and its gradients, for `x` (rows, C) and a table (V, C).
    fn loss(&mut self, x: &Tensor, table: &Tensor, case: &str) -> anyhow::Result<()> {
        let v = u32::try_from(table.dim(0)?)?;
        let targets = Tensor::from_iter((0..u32::try_from(x.dim(0)?)?).map(|i| i * 31 % v), &Device::Cpu)?;
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let run = |wide, device: &Device, implementation| -> anyhow::Result<[Tensor; 3]> {
                let to =
                    |x: &Tensor| Var::from_tensor(&x.to_dtype(dtype)?.to_dtype(wide)?.to_device(device)?);
                let x = to(x)?;
                let table = to(table)?;
                let dispatch = Dispatch::of(implementation, &x);
                let loss = linear_cross_entropy(&x, &table, &targets.to_device(device)?, dispatch)?;
                let gradients = loss.backward()?;
                let of = |x: &Var| gradients.get(x).cloned().context("the loss has no gradient on this path");
                Ok([loss.detach(), of(&x)?, of(&table)?])
            };
            // In a half, logits are rounded, then their gradients, and then what these add up to.
            let tolerance = if dtype == DType::F32 { 1e-5 } else { 4. * rounding(dtype) };
            let whats = ["cross-entropy", "its x's gradient", "its table's gradient"];
            self.compare(whats, Path { case, implementation: Auto, dtype, tolerance }, run)?;
        }
        Ok(())
    }

    /// Compares what `run` computes with each implementation that the device has with its results in eager f64 on the CPU.
    fn compare<const N: usize>(
        &mut self,
        whats: [&'static str; N],
        path: Path,
        run: impl Fn(DType, &Device, Implementation) -> anyhow::Result<[Tensor; N]>,
    ) -> anyhow::Result<()> {
        let expected = run(DType::F64, &Device::Cpu, Eager)?;
        let all: &[Implementation] = if self.device.is_cuda() { &[Fused, Eager] } else { &[Auto] };
        for &implementation in all {
            let got = run(path.dtype, &self.device.clone(), implementation)?;
            for ((what, got), expected) in whats.into_iter().zip(&got).zip(&expected) {
                let path = Path { implementation, ..path };
                self.check(what, path, got, expected)?;
            }
        }
        Ok(())
    }

    /// Linear layers with quantized weights, which run on the CPU, against the same codes and scales in f64.
    fn quantized(&mut self, x: &Tensor, weight: &Tensor, case: &str) -> anyhow::Result<()> {
        let rounded = x.flatten_all()?.to_vec1::<f32>()?.chunks(32).flat_map(in_8_bits).collect::<Vec<f64>>();
        let rounded = Tensor::from_vec(rounded, x.shape(), &Device::Cpu)?;
        for &format in BlockFormat::ALL {
            let what = format!("linear, {format}");
            let quantized = Weight::quantize(weight, WeightLayout::InOut, format)?;
            let expected = rounded.matmul(&quantized.in_out()?.to_dtype(DType::F64)?)?;
            let many = quantized.forward(x, None, Epilogue::None)?;
            let path = Path { case, implementation: Auto, dtype: DType::F32, tolerance: 1e-6 };
            self.check(what.clone(), path, &many, &expected)?;
            let one = quantized.forward(&x.narrow(0, 0, 1)?, None, Epilogue::None)?;
            let alone = Path { case: "its first row alone", tolerance: 0., ..path };
            self.check(what, alone, &one, &many.narrow(0, 0, 1)?)?;
        }
        Ok(())
    }
}

/// Numbers that share a scale, rounded to 127 codes of each sign.
fn in_8_bits(block: &[f32]) -> Vec<f64> {
    let largest = block.iter().fold(0f32, |most, x| most.max(x.abs()));
    let scale = f64::from(largest / 127.0);
    let inverse = 127.0 / largest;
    block.iter().map(|x| f64::from((x * inverse).round_ties_even()) * scale).collect()
}
