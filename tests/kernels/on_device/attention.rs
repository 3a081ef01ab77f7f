//! Attention: its context, and the gradients of q, k and v.

use super::{assert_ours, device, difference, largest, numbers, rounding, wide};
use crate::common::Result;
use crate::packed_views;
use candle_core::{DType, Device, Tensor, Var};
use candle_fused::attention::{HeadLayout, Hidden, Mask, Sdpa};
use candle_fused::{Dropout, Explanation, Implementation, explain};

/// The widths of a head that our kernels for CUDA take; the CPU takes any.
const WIDTHS: [usize; 5] = [32, 64, 80, 96, 128];

#[derive(Debug, Clone, Copy)]
struct Case {
    dtype: DType,
    b: usize,
    h: usize,
    t: usize,
    s: usize,
    d: usize,
    padded: bool,
    /// Some keys are hidden, and some weights dropped.
    masked: bool,
}

/// The context, and the gradient of q, k and v as they lie side by side, if it is wanted.
struct Computed {
    context: Tensor,
    gradient: Option<Tensor>,
    explanation: Explanation,
}

impl Case {
    /// The layer has two more heads than are here, one before them and one after.
    fn heads(&self) -> HeadLayout {
        HeadLayout::all(self.h + 2, self.d).part(1, self.h).expect("heads in the middle")
    }

    fn hidden(&self) -> Vec<Hidden> {
        let past = self.s - self.t;
        let all = (0..if self.masked { self.t } else { 0 }).flat_map(|query| {
            let keys = (0..=past + query).filter(move |key| (query * 31 + key * 17) % 11 == 3);
            keys.map(move |key| Hidden { head: (key % 3).checked_sub(1), query, key })
        });
        all.filter(|x| x.head.is_none_or(|head| head < self.h)).collect()
    }

    /// Whether position `i`, counted over all rows, is no padding.
    fn visible(&self, i: usize) -> bool {
        !self.padded || (i % self.s >= (i / self.s) * self.s / self.b && i % 7 != 3)
    }

    /// q, k and v of (B, S, 3, H, D); the rows of k and v that are padding are multiplied by the numbers of `padding` in turn.
    fn packed(&self, padding: [f64; 2]) -> Result<Tensor> {
        let &Self { b, s, h, d, .. } = self;
        let factor = |i: usize| {
            if !i.is_multiple_of(3) && !self.visible(i / 3) { padding[i / 3 % 2] } else { 1.0 }
        };
        let factors =
            Tensor::from_iter((0..3 * b * s).map(factor), &Device::Cpu)?.reshape((b, s, 3, 1, 1))?;
        let packed = numbers(b * s * 3 * h * d, 0)?.reshape((b, s, 3, h, d))?;
        Ok(packed.broadcast_mul(&factors)?.to_dtype(self.dtype)?)
    }

    fn run(
        &self,
        device: &Device,
        dtype: DType,
        code: Implementation,
        grad: Option<&Tensor>,
    ) -> Result<Computed> {
        // Padding may hold anything, and counts as 0: NaN, and numbers whose scores would be the largest, since a GPU's maximum
        // leaves NaN out.
        let padding = if code == Implementation::Fused { [f64::NAN, 30.0] } else { [0.0; 2] };
        let packed = Var::from_tensor(&self.packed(padding)?.to_dtype(dtype)?.to_device(device)?)?;
        let tracked = if grad.is_some() { packed.as_tensor().clone() } else { packed.as_detached_tensor() };
        let [q, k, v] = packed_views(&tracked, self.t)?;
        let visible = (0..self.b * self.s).map(|i| u8::from(self.visible(i)));
        let padding = Tensor::from_iter(visible, device)?.reshape((self.b, self.s))?;
        let hidden = self.hidden();
        let mask = Mask { padding: self.padded.then_some(&padding), hidden: &hidden, ..Mask::default() };
        let sdpa = Sdpa {
            scale: Some(1. / (self.d as f64).sqrt()),
            heads: Some(self.heads()),
            dropout: self.masked.then(|| Dropout::new(0.2, 0x77_0000_0042, 3)).transpose()?,
            implementation: code,
            ..Sdpa::default()
        };
        let (context, explanation) = explain(|| sdpa.forward(&q, &k, &v, mask))?;
        if grad.is_none() && code == Implementation::Fused {
            // Another pass finds the counters of finished blocks as the first one left them.
            let again = sdpa.forward(&q, &k, &v, mask)?;
            assert!(difference(&again, &wide(&context)?)? <= 0.0, "{self:?} again");
        }
        let gradient = grad.map(|grad| -> Result<Tensor> {
            let loss = (&context * grad.to_dtype(dtype)?.to_device(device)?)?.sum_all()?;
            Ok(loss.backward()?.get(&packed).ok_or("no gradient")?.clone())
        });
        Ok(Computed { context: context.detach(), gradient: gradient.transpose()?, explanation })
    }

    /// The errors of the context, and of dq, dk and dv if they are `wanted`. Those of the context and of dv are relative to the
    /// largest expected value. dq and dk are sums of ds·k and ds·q, and ds is a difference of two numbers up to the largest dp,
    /// which cancel where a weight is close to 1: their errors are relative to one such term.
    fn errors(&self, wanted: bool) -> Result<Vec<f64>> {
        let &Self { dtype, b, h, t, d, .. } = self;
        let device = device();
        let grad = numbers(b * t * h * d, 1 << 20)?.reshape((b, t, h, d))?.to_dtype(dtype)?;
        let grad = wanted.then_some(&grad);
        let expected = self.run(&Device::Cpu, DType::F64, Implementation::Eager, grad)?;
        let got = self.run(&device, dtype, Implementation::Fused, grad)?;
        assert_ours(&got.explanation, "attention", &device);
        let mut errors = vec![difference(&got.context, &expected.context)? / largest(&expected.context)?];
        let (Some(grad), Some(got), Some(expected)) = (grad, got.gradient, expected.gradient) else {
            return Ok(errors);
        };
        let [q, k, v] = packed_views(&wide(&self.packed([0.0; 2])?)?, t)?;
        let dp = wide(grad)?.transpose(1, 2)?.contiguous()?.matmul(&v.contiguous()?.t()?)?; // (B, H, T, S)
        let term = |x: &Tensor| Ok::<_, candle_core::Error>(largest(&dp)? * largest(x)? / (d as f64).sqrt());
        for (i, term) in [Some(term(&k)?), Some(term(&q)?), None].into_iter().enumerate() {
            let expected = expected.narrow(2, i, 1)?;
            let term = term.map_or_else(|| largest(&expected), Ok)?;
            errors.push(difference(&got.narrow(2, i, 1)?, &expected)? / term);
        }
        Ok(errors)
    }

    /// Allows for f32 sums of up to 333 numbers, for weights rounded before they multiply v, and for a rounded result. A
    /// gradient also meets the rounded context and rounded ds; the largest error is 1.4 units of dv in f16, D 80.
    fn tolerance(&self, gradient: bool) -> f64 {
        let place = rounding(self.dtype);
        let kept = if self.masked { 1.25 } else { 1.0 }; // what dropout scales weights by, and their rounding
        match self.dtype {
            DType::F32 => 1e-5,
            _ if gradient => 1.5 * place,
            _ => 1.1 * kept * place,
        }
    }

    fn check(&self, gradients: bool) -> Result {
        for (i, error) in self.errors(gradients)?.into_iter().enumerate() {
            let what = ["context", "dq", "dk", "dv"][i];
            let tolerance = self.tolerance(i > 0);
            assert!(error <= tolerance, "{what} of {self:?}: {error:.1e} > {tolerance:.1e}");
        }
        Ok(())
    }
}

/// Prompts and chunks that end inside a tile, and decoded tokens, with one batch row, several rows, and padded rows.
fn check_contexts(dtype: DType) -> Result {
    for d in WIDTHS {
        for (b, h, t, s, padded) in [
            (1, 1, 1, 1, false),
            (1, 2, 1, 333, false),
            (2, 3, 1, 300, true), // more heads than before, each with a counter of its own
            (1, 1, 2, 2, false),
            (2, 2, 65, 65, true),
            (1, 2, 33, 150, false),
            (1, 1, 197, 197, false),
            (2, 1, 130, 160, true),
        ] {
            Case { dtype, b, h, t, s, d, padded, masked: false }.check(false)?;
        }
    }
    Ok(())
}

#[test]
fn f32_contexts() -> Result {
    check_contexts(DType::F32)
}

#[test]
fn f16_contexts() -> Result {
    check_contexts(DType::F16)
}

#[test]
fn bf16_contexts() -> Result {
    check_contexts(DType::BF16)
}

/// The backward kernels with and without masks, and the forward kernels with them: prompts and chunks that end inside a tile, one
/// query, more keys than queries, padded rows, and heads in sections.
fn check_gradients(dtype: DType) -> Result {
    for d in WIDTHS {
        for (b, h, t, s, padded, masked) in [
            (1, 1, 1, 5, false, true),
            (1, 2, 1, 40, true, false),
            (1, 2, 3, 3, false, false),
            (2, 2, 70, 70, true, true),
            (1, 3, 70, 135, true, false),
            (1, 1, 130, 197, false, true),
        ] {
            Case { dtype, b, h, t, s, d, padded, masked }.check(true)?;
        }
    }
    Ok(())
}

#[test]
fn f32_gradients() -> Result {
    check_gradients(DType::F32)
}

#[test]
fn f16_gradients() -> Result {
    check_gradients(DType::F16)
}

#[test]
fn bf16_gradients() -> Result {
    check_gradients(DType::BF16)
}

/// The kernels that fit a T4.
#[test]
fn of_an_older_gpu() -> Result {
    for (dtype, d, masked) in
        [(DType::F16, 32, false), (DType::F16, 64, false), (DType::F16, 96, true), (DType::F32, 32, true)]
    {
        Case { dtype, b: 1, h: 2, t: 70, s: 75, d, padded: true, masked }.check(true)?;
    }
    Ok(())
}
