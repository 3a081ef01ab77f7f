//! Rotary positions (Su et al. 2021, "RoFormer", §3.2): `candle_nn::rotary_emb`, with gradients.
//!
//! Pairs of a head's channels turn by an angle that grows with the position. [`rope`] and [`rope_thd`] pair channel i with channel
//! i + w, as Llama's checkpoints on the Hub do; [`rope_i`] pairs neighbors, 2i and 2i + 1. The w columns of `cos` and `sin` can be
//! fewer than D / 2: the channels after 2w stay as they are (Phi, GPT-NeoX). On a GPU these are plain operations.

pub use super::rope_scaling::{RopeScaling, RotaryTables};

use crate::cpu::cpu_op::{CpuInput, CpuOp, OnCpu};
use crate::cpu::dispatch::has_cpu_kernels;
use crate::cpu::element::Element;
use crate::cpu::explain::{Explained, no_kernel, note, ours, shown};
use crate::cpu::isa;
use candle_core::{CpuStorage, D, Result, Shape, Tensor, WithDType};
use half::{bf16, f16};
use rayon::prelude::*;

/// Turns the first half of the channels against the second; differentiable in `x`.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::nn::rotary_emb::{RopeScaling, RotaryTables, rope};
///
/// # fn main() -> candle_core::Result<()> {
/// let tables = RotaryTables::new(4, 16, 10_000., RopeScaling::None, DType::F32, &Device::Cpu)?;
/// let x = Tensor::new(&[[[[1f32, 0., 0., 0.]]]], &Device::Cpu)?; // (B, H, T, D)
/// let (cos, sin) = tables.at(2, 1)?; // a token at position 2
/// let y = rope(&x, &cos, &sin)?.flatten_all()?.to_vec1::<f32>()?;
/// assert!((y[0] - 2f32.cos()).abs() < 1e-6 && (y[2] - 2f32.sin()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Shapes
/// `x` (B, H, T, D), with any strides; `cos` and `sin` (T or more, w) or (B, T or more, w), w at most D / 2 -> (B, H, T, D)
///
/// # Errors
/// When the shapes, dtypes or devices do not fit each other.
pub fn rope(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    run(x, cos, sin, Rope { neighbors: false, time: 2 })
}

/// Turns neighbors, channels 2i and 2i + 1; differentiable in `x`.
///
/// # Shapes
/// Same as [`rope`].
///
/// # Errors
/// When the shapes, dtypes or devices do not fit each other.
pub fn rope_i(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    run(x, cos, sin, Rope { neighbors: true, time: 2 })
}

/// [`rope`] of heads that lie position by position.
///
/// # Shapes
/// `x` (B, T, H, D), with any strides; `cos` and `sin` as for [`rope`] -> (B, T, H, D)
///
/// # Errors
/// When the shapes, dtypes or devices do not fit each other.
pub fn rope_thd(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    run(x, cos, sin, Rope { neighbors: false, time: 1 })
}

/// The variant of the rotation: whether neighboring channels are pairs, and the dimension of x that is T.
#[derive(Debug, Clone, Copy)]
struct Rope {
    neighbors: bool,
    time: usize,
}

fn run(x: &Tensor, cos: &Tensor, sin: &Tensor, rope: Rope) -> Result<Tensor> {
    let (b, ..) = x.dims4()?;
    let (t, d) = (x.dim(rope.time)?, x.dim(D::Minus1)?);
    let fits = |table: &Tensor| match *table.dims() {
        [n, w] => n >= t && 2 * w <= d,
        [of, n, w] => of == b && n >= t && 2 * w <= d,
        _ => false,
    };
    if !fits(cos) || cos.dims() != sin.dims() {
        candle_core::bail!(
            "rope: x {:?} needs cos and sin of shape [{t} or more, up to {}], or [{b}, {t} or more, up to {}], got {:?} and {:?}",
            x.dims(),
            d / 2,
            d / 2,
            cos.dims(),
            sin.dims()
        )
    }
    if cos.dtype() != x.dtype() || sin.dtype() != x.dtype() {
        candle_core::bail!(
            "rope: x is {}, but cos and sin are {} and {}",
            x.dtype().as_str(),
            cos.dtype().as_str(),
            sin.dtype().as_str()
        )
    }
    let tables = |table: &Tensor| table.narrow(D::Minus2, 0, t)?.contiguous(); // (T, w) or (B, T, w)
    let cos = tables(cos)?;
    let sin = tables(sin)?;
    let has_kernel = x.device().is_cpu() && has_cpu_kernels(x.dtype());
    note(|| Explained {
        operation: "rope",
        inputs: shown("x", x),
        code: if has_kernel { ours("one pass") } else { "plain operations".to_owned() },
        slower_because: no_kernel(&[x]),
    });
    if has_kernel {
        return x.contiguous()?.apply_op3(&cos.detach(), &sin.detach(), OnCpu(rope));
    }
    rope.plain(x, &cos, &sin)
}

impl Rope {
    /// By plain operations.
    fn plain(self, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
        let w = cos.dim(D::Minus1)?;
        let d = x.dim(D::Minus1)?;
        // (1 or B, 1, T, w), or (1 or B, T, 1, w)
        let table = |table: &Tensor| {
            let table = if table.rank() == 2 { table.unsqueeze(0)? } else { table.clone() };
            table.unsqueeze(3 - self.time)
        };
        let cos = table(cos)?;
        let sin = table(sin)?;
        let turned = x.narrow(3, 0, 2 * w)?;
        let (first, second) = if self.neighbors {
            let pairs = turned.reshape((x.dim(0)?, x.dim(1)?, x.dim(2)?, w, 2))?;
            (pairs.narrow(4, 0, 1)?.squeeze(4)?, pairs.narrow(4, 1, 1)?.squeeze(4)?)
        } else {
            (turned.narrow(3, 0, w)?, turned.narrow(3, w, w)?)
        };
        let a = (first.broadcast_mul(&cos)? - second.broadcast_mul(&sin)?)?;
        let b = (first.broadcast_mul(&sin)? + second.broadcast_mul(&cos)?)?;
        let turned = if self.neighbors {
            Tensor::stack(&[a, b], 4)?.flatten_from(3)?
        } else {
            Tensor::cat(&[a, b], 3)?
        };
        let all = if 2 * w < d { Tensor::cat(&[turned, x.narrow(3, 2 * w, d - 2 * w)?], 3)? } else { turned };
        all.contiguous()
    }

    /// On the CPU: `x` (B, .., .., D), tables (T, w) or (B, T, w), all contiguous.
    fn compute<E: Element + WithDType>(self, [x, cos, sin]: [CpuInput; 3]) -> Result<(CpuStorage, Shape)> {
        let shape = x.shape().clone();
        let (b, _, n, d) = shape.dims4()?;
        let t = shape.dims()[self.time];
        let of_row = cos.shape().rank() == 3;
        let w = cos.shape().dims()[cos.shape().rank() - 1];
        let x = x.slice::<E>()?;
        let cos = cos.slice::<E>()?;
        let sin = sin.slice::<E>()?;
        let mut out = vec![E::from_f32(0.0); x.len()];
        if d == 0 {
            return Ok((E::to_cpu_storage_owned(out), shape));
        }
        let rows = x.len() / d;
        let arch = isa::arch();
        // A chunk is all vectors of a position, or all positions of a head.
        let chunk = n.max(1) * d;
        out.par_chunks_mut(chunk).zip(x.par_chunks(chunk)).enumerate().for_each(|(i, (out, x))| {
            arch.dispatch(|| {
                for (j, (out, x)) in out.chunks_exact_mut(d).zip(x.chunks_exact(d)).enumerate() {
                    let row = i * n + j;
                    let position = if self.time == 1 { i % t } else { j };
                    let table = if of_row { row / (rows / b) * t + position } else { position };
                    self.turn(x, &cos[table * w..][..w], &sin[table * w..][..w], out);
                }
            });
        });
        Ok((E::to_cpu_storage_owned(out), shape))
    }

    /// One vector.
    #[inline(always)]
    fn turn<E: Element>(self, x: &[E], cos: &[E], sin: &[E], out: &mut [E]) {
        let w = cos.len();
        let pair = |a: E, b: E, cos: E, sin: E| {
            let a = a.to_f32();
            let b = b.to_f32();
            let cos = cos.to_f32();
            let sin = sin.to_f32();
            (E::from_f32(a * cos - b * sin), E::from_f32(a * sin + b * cos))
        };
        let (turned, rest) = out.split_at_mut(2 * w);
        rest.copy_from_slice(&x[2 * w..]);
        let angles = cos.iter().zip(sin);
        if self.neighbors {
            let pairs = turned.as_chunks_mut::<2>().0.iter_mut().zip(x.as_chunks::<2>().0);
            for (([p, q], [a, b]), (cos, sin)) in pairs.zip(angles) {
                (*p, *q) = pair(*a, *b, *cos, *sin);
            }
        } else {
            let (first, second) = turned.split_at_mut(w);
            let pairs = first.iter_mut().zip(second).zip(x[..w].iter().zip(&x[w..]));
            for (((p, q), (a, b)), (cos, sin)) in pairs.zip(angles) {
                (*p, *q) = pair(*a, *b, *cos, *sin);
            }
        }
    }
}

impl CpuOp<3> for Rope {
    const NAME: &'static str = "rope";

    fn forward(&self, inputs: [CpuInput; 3]) -> Result<(CpuStorage, Shape)> {
        match inputs[0].storage {
            CpuStorage::F16(_) => self.compute::<f16>(inputs),
            CpuStorage::BF16(_) => self.compute::<bf16>(inputs),
            _ => self.compute::<f32>(inputs),
        }
    }

    /// Turns the gradient back.
    fn backward(
        &self,
        [_, cos, sin]: [&Tensor; 3],
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let dx = grad.contiguous()?.apply_op3_no_bwd(cos, &sin.neg()?, &OnCpu(*self))?;
        Ok([Some(dx), None, None])
    }
}
