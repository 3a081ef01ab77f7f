//! The loss and the gradients of `x·Wᵀ` from a chunk of rows at a time, in Candle's operations around one function of
//! the rows: for GPUs.

use candle_core::{DType, Result, Tensor};

/// The bytes of a chunk's logits: enough for products at full speed, and small beside a GPU's memory.
const BYTES: usize = 256 << 20;

/// The most rows of a chunk, so that its sums stay far below the largest f16.
const ROWS: usize = 4096;

/// The mean loss of `x` (rows, C) under `weight` (V, C), a scalar in f32, and those gradients of the *sum* of the losses,
/// of `x` and of `weight`, that are `wanted`. `of_rows` returns the losses (rows) of logits (rows, V) in f32 and, if told to, turns the logits into the
/// gradients of their sum, in place.
pub(super) fn in_chunks(
    x: &Tensor,
    weight: &Tensor,
    targets: &Tensor,
    wanted: [bool; 2],
    of_rows: impl Fn(&Tensor, &Tensor, bool) -> Result<Tensor>,
) -> Result<(Tensor, [Option<Tensor>; 2])> {
    let (rows, v) = (x.dim(0)?, weight.dim(0)?);
    let together = (BYTES / (v * x.dtype().size_in_bytes()).max(1)).clamp(1, rows.min(ROWS));
    in_chunks_of(together, (x, weight, targets), wanted, of_rows)
}

fn in_chunks_of(
    together: usize,
    (x, weight, targets): (&Tensor, &Tensor, &Tensor),
    wanted: [bool; 2],
    of_rows: impl Fn(&Tensor, &Tensor, bool) -> Result<Tensor>,
) -> Result<(Tensor, [Option<Tensor>; 2])> {
    let rows = x.dim(0)?;
    let (mut losses, mut d_x, mut d_weight) = (vec![], vec![], None::<Tensor>);
    for first in (0..rows).step_by(together) {
        let count = together.min(rows - first);
        let x = x.narrow(0, first, count)?; // (count, C)
        let logits = x.matmul(&weight.t()?)?; // (count, V)
        losses.push(of_rows(&logits, &targets.narrow(0, first, count)?, wanted != [false; 2])?);
        if wanted[0] {
            d_x.push(logits.matmul(weight)?);
        }
        if wanted[1] {
            // Chunks add up in f32: their sum in a half would lose digits with each of them. Within a chunk, f16 has
            // room for sums of 4096 numbers up to 250.
            let (x, scale) = if x.dtype() == DType::F16 { ((x / 16.0)?, 16.0) } else { (x, 1.0) };
            let part = (logits.t()?.matmul(&x)?.to_dtype(DType::F32)? * scale)?;
            d_weight = Some(d_weight.map_or_else(|| Ok(part.clone()), |sum| sum + &part)?);
        }
    }
    let d_x = wanted[0].then(|| Tensor::cat(&d_x, 0)).transpose()?;
    Ok((Tensor::cat(&losses, 0)?.mean_all()?, [d_x, d_weight]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cross_entropy::linear_cross_entropy;
    use crate::test_numbers::numbers;
    use crate::{Dispatch, Implementation};
    use candle_core::{D, Device, Var};

    /// In plain operations, with the logits replaced in place as a kernel would.
    fn of_rows(logits: &Tensor, targets: &Tensor, gradients: bool) -> Result<Tensor> {
        let log_weights = candle_nn::ops::log_softmax(logits, D::Minus1)?;
        let losses = log_weights.gather(&targets.unsqueeze(1)?, 1)?.neg()?.flatten_all()?;
        if gradients {
            let ones = Tensor::ones((targets.dim(0)?, 1), logits.dtype(), logits.device())?;
            let onehot = logits.zeros_like()?.scatter_add(&targets.unsqueeze(1)?, &ones, 1)?;
            logits.slice_set(&(log_weights.exp()? - onehot)?, 0, 0)?;
        }
        Ok(losses)
    }

    #[test]
    fn chunks_add_up_to_the_whole() -> Result<()> {
        let (x, weight) =
            (Var::from_tensor(&numbers((11, 6), 1)?)?, Var::from_tensor(&numbers((9, 6), 500)?)?);
        let targets = Tensor::from_iter((0..11u32).map(|i| i * 4 % 9), &Device::Cpu)?;
        let whole = linear_cross_entropy(&x, &weight, &targets, Dispatch::of(Implementation::Auto, &x))?;
        let gradients = whole.backward()?;
        let close = |a: &Tensor, b: &Tensor| -> Result<()> {
            let error = (a - b)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
            assert!(error < 1e-6, "{error}");
            Ok(())
        };
        let (plain_x, plain_weight) = (x.as_detached_tensor(), weight.as_detached_tensor());
        let inputs = (&plain_x, &plain_weight, &targets);
        for together in [1, 4, 11] {
            for wanted in [[true, true], [true, false], [false, true], [false, false]] {
                let (loss, [d_x, d_weight]) = in_chunks_of(together, inputs, wanted, of_rows)?;
                close(&loss, &whole)?;
                assert_eq!([d_x.is_some(), d_weight.is_some()], wanted);
                for (found, var) in [(d_x, &x), (d_weight, &weight)] {
                    if let Some(found) = found {
                        close(&(found / 11.0)?, gradients.get(var).expect("a gradient"))?;
                    }
                }
            }
        }
        Ok(())
    }
}
