//! Joins attention over several sets of keys into attention over all of them.

use super::eager::{log_sums, softmax};
use crate::cpu::element::accumulator;
use candle_core::{D, Result, Tensor};

/// Attention over all keys from attention over disjoint sets of them, each with its log-sums
/// ([`Wanted::lse`](crate::attention::Wanted)): Flash-Decoding's last step (Dao et al. 2023), and that of a prefix that several requests
/// share (Juravsky et al. 2024, "Hydragen", §3.1).
///
/// ```text
/// lse = ln Σ_p exp(lse_p)        context = Σ_p exp(lse_p - lse)·context_p
/// ```
///
/// A query that sees no key of a part has the log-sum -inf there, and one that sees none at all gets zeros and -inf. Gradients
/// flow to all contexts and log-sums, in memory for the parts. A part that holds a sink counts it; give it to one part only.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::attention::{Mask, Sdpa, Wanted, Window, merge};
///
/// # fn main() -> candle_core::Result<()> {
/// let numbers = |s: usize| Tensor::randn(0f32, 1., (1, 2, s, 8), &Device::Cpu);
/// let (q, k, v) = (numbers(3)?, numbers(40)?, numbers(40)?);
/// let attention = Sdpa { window: Window::ALL, ..Sdpa::default() };
/// let of_keys = |first, len| {
///     let (k, v) = (k.narrow(2, first, len)?, v.narrow(2, first, len)?);
///     let attended = attention.attend(&q, &k, &v, Mask::default(), Wanted { lse: true, ..Wanted::default() })?;
///     candle_core::Result::Ok((attended.context, attended.lse.expect("it was asked for")))
/// };
/// let [(left, left_lse), (right, right_lse)] = [of_keys(0, 25)?, of_keys(25, 15)?];
/// let (context, _) = merge(&[(&left, &left_lse), (&right, &right_lse)])?;
/// let whole = attention.forward(&q, &k, &v, Mask::default())?;
/// assert!((context - whole)?.abs()?.max_all()?.to_scalar::<f32>()? < 1e-5);
/// # Ok(())
/// # }
/// ```
///
/// # Shapes
/// Of each part, the context (B, T, H, Dv) and the log-sums (B, H, T) -> the same of all; the context in the parts' dtype, the
/// log-sums in f32, or in f64 for f64 contexts
///
/// # Errors
/// When there is no part, or the shapes or the contexts' dtypes do not fit each other.
pub fn merge(parts: &[(&Tensor, &Tensor)]) -> Result<(Tensor, Tensor)> {
    let [(first, _), others @ ..] = parts else { candle_core::bail!("attention: no part to merge") };
    let (b, t, h, _) = first.dims4()?;
    for (context, lse) in parts {
        if context.dims() != first.dims() || context.dtype() != first.dtype() || lse.dims() != [b, h, t] {
            candle_core::bail!(
                "attention: parts to merge need contexts {:?} in {} with log-sums {:?}, got {:?} in {} with {:?}",
                first.dims(),
                first.dtype().as_str(),
                [b, h, t],
                context.dims(),
                context.dtype().as_str(),
                lse.dims()
            )
        }
    }
    let wide = accumulator(first.dtype());
    let logs: Vec<Tensor> = parts.iter().map(|(_, lse)| lse.to_dtype(wide)).collect::<Result<_>>()?;
    let logs = Tensor::stack(&logs, 3)?; // (B, H, T, parts)
    let visible = logs.ne(f64::NEG_INFINITY)?;
    let shares = softmax(&logs, &visible)?.transpose(1, 2)?; // (B, T, H, parts)
    let share =
        |part: usize, context: &Tensor| context.to_dtype(wide)?.broadcast_mul(&shares.narrow(3, part, 1)?);
    let mut all = share(0, first)?;
    for (part, (context, _)) in others.iter().enumerate() {
        all = (all + share(part + 1, context)?)?;
    }
    Ok((all.to_dtype(first.dtype())?, log_sums(&logs, &visible, D::Minus1)?.squeeze(3)?))
}
