//! One step of AdamW (Loshchilov & Hutter 2019, algorithm 2) in place, without a temporary tensor.

use crate::cpu::cpu_op::contiguous;
use crate::cpu::dispatch::cpu_f32;
use crate::cpu::isa;
use crate::cpu::vector::with_slices;
use candle_core::{CpuStorage, DType, InplaceOp2, InplaceOp3, Layout, Result, Tensor, Var};
use rayon::prelude::*;

pub use crate::cpu::vector::CHUNK;

/// The coefficients of a step of AdamW.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWStep {
    /// The learning rate.
    pub lr: f64,
    /// The decay of the running mean of the gradients.
    pub beta1: f64,
    /// The decay of the running mean of their squares.
    pub beta2: f64,
    /// Added to the square root of the mean of squares.
    pub eps: f64,
    /// The decay of the parameter itself, times `lr`.
    pub weight_decay: f64,
    /// The step, counted from 1: bias correction divides each mean by `1 - beta^step`.
    pub step: u64,
    /// Gradients are multiplied by this factor first, which is how they are clipped.
    pub gradient_scale: f64,
}

/// The three operations of a step take this many elements one after the other, so that each finds in the processor's cache
/// what the one before left there.
const PIECE: usize = 1 << 19;

impl AdamWStep {
    /// Takes one step of `parameter` along `gradient`, whose first and second moments are `m` and `v`:
    ///
    /// ```text
    /// m = beta1·m + (1 - beta1)·g      v = beta2·v + (1 - beta2)·g²
    /// p = p - lr·weight_decay·p - lr·(m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
    /// ```
    ///
    /// On the CPU, another thread that reads the variables meanwhile may see a part of the step.
    ///
    /// # Shapes
    /// All four have the same shape and dtype.
    ///
    /// # Errors
    /// When the shapes or dtypes differ.
    pub fn apply(&self, parameter: &Var, gradient: &Tensor, m: &Var, v: &Var) -> Result<()> {
        for other in [gradient, m, v] {
            if other.dims() != parameter.dims() || other.dtype() != parameter.dtype() {
                candle_core::bail!(
                    "AdamW: the parameter is {:?} {:?}, but its gradient or moment is {:?} {:?}",
                    parameter.dtype(),
                    parameter.dims(),
                    other.dtype(),
                    other.dims()
                )
            }
        }
        // Other variables would be stepped in a copy.
        if cpu_f32(&[parameter, m, v]) && [parameter, m, v].iter().all(|x| x.is_contiguous()) {
            let parameter = parameter.flatten_all()?;
            let gradient = gradient.flatten_all()?;
            let m = m.flatten_all()?;
            let v = v.flatten_all()?;
            let len = parameter.elem_count();
            for start in (0..len).step_by(PIECE) {
                let piece = |x: &Tensor| x.narrow(0, start, PIECE.min(len - start));
                let gradient = piece(&gradient)?;
                let m = piece(&m)?;
                let v = piece(&v)?;
                m.inplace_op2(&gradient, &Moment { step: *self, second: false })?;
                v.inplace_op2(&gradient, &Moment { step: *self, second: true })?;
                piece(&parameter)?.inplace_op3(&m, &v, &ParameterUpdate(*self))?;
            }
            return Ok(());
        }
        let g = (gradient * self.gradient_scale)?;
        m.set(&((m.as_tensor() * self.beta1)? + (&g * (1.0 - self.beta1))?)?)?;
        v.set(&((v.as_tensor() * self.beta2)? + (g.sqr()? * (1.0 - self.beta2))?)?)?;
        let (rate, root) = self.corrections();
        let direction = (m.as_tensor() * rate)?.div(&((v.as_tensor().sqrt()? * root)? + self.eps)?)?;
        parameter.set(&((parameter.as_tensor() * (1.0 - self.lr * self.weight_decay))? - direction)?)
    }

    /// `lr / (1 - beta1^t)` and `1 / sqrt(1 - beta2^t)`
    fn corrections(&self) -> (f64, f64) {
        let t = i32::try_from(self.step).unwrap_or(i32::MAX);
        (self.lr / (1.0 - self.beta1.powi(t)), 1.0 / (1.0 - self.beta2.powi(t)).sqrt())
    }
}

/// `Σ x²` over all elements, in f64. The result does not depend on the number of threads.
///
/// # Errors
/// When the device fails.
pub fn sum_of_squares(x: &Tensor) -> Result<f64> {
    Ok(squares_of_chunks(x)?.iter().sum())
}

/// `Σ x²` over each [`CHUNK`] of elements; [`sum_of_squares`] adds these up. Processes that each have some chunks of a tensor
/// get the same bits from all of their sums together.
///
/// # Errors
/// When the device fails.
pub fn squares_of_chunks(x: &Tensor) -> Result<Vec<f64>> {
    if cpu_f32(&[x]) {
        let arch = isa::arch();
        return with_slices([&x.contiguous()?], |[x]| {
            x.par_chunks(CHUNK).map(|part| arch.dispatch(|| squares(part))).collect()
        });
    }
    let x = x.flatten_all()?;
    let rest = x.dim(0)? % CHUNK;
    let whole = x.dim(0)? - rest;
    let squares = |start, len| x.narrow(0, start, len)?.to_dtype(DType::F64)?.sqr();
    let mut sums = vec![];
    if whole > 0 {
        // On a GPU, Candle sums up a row in one block.
        sums.push(squares(0, whole)?.reshape((whole / CHUNK, CHUNK))?.sum(1)?);
    }
    if rest > 0 {
        sums.push(squares(whole, rest)?.sum_keepdim(0)?);
    }
    if sums.is_empty() { Ok(vec![]) } else { Tensor::cat(&sums, 0)?.to_vec1() }
}

/// `Σ x²`, in lanes that the compiler turns into vectors.
#[inline(always)]
fn squares(x: &[f32]) -> f64 {
    let mut sums = [0f64; 16];
    let (lanes, tail) = x.as_chunks::<16>();
    for x in lanes {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum += f64::from(*x) * f64::from(*x);
        }
    }
    sums.iter().sum::<f64>() + tail.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>()
}

/// The first moment or, of the squares of gradients, the second.
struct Moment {
    step: AdamWStep,
    second: bool,
}

/// The parameter, from both moments.
struct ParameterUpdate(AdamWStep);

fn numbers<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(data), Some((start, end))) if end <= data.len() => Ok(&mut data[start..end]),
        _ => candle_core::bail!("AdamW: expected a contiguous f32 tensor, got {layout:?}"),
    }
}

impl InplaceOp2 for Moment {
    fn name(&self) -> &'static str {
        "adamw-moment"
    }

    #[allow(clippy::cast_possible_truncation)] // the coefficients of f32 numbers
    fn cpu_fwd(
        &self,
        moment: &mut CpuStorage,
        layout: &Layout,
        gradient: &CpuStorage,
        gradient_layout: &Layout,
    ) -> Result<()> {
        let AdamWStep { beta1, beta2, gradient_scale, .. } = self.step;
        let gradient = contiguous::<f32>(gradient, gradient_layout)?;
        let chunks = numbers(moment, layout)?.par_chunks_mut(CHUNK).zip(gradient.par_chunks(CHUNK));
        let arch = isa::arch();
        if self.second {
            let weights = [beta2, 1.0 - beta2, gradient_scale].map(|x| x as f32);
            chunks.for_each(|(v, g)| arch.dispatch(|| second_moments(v, g, weights)));
        } else {
            let weights = [beta1, (1.0 - beta1) * gradient_scale].map(|x| x as f32);
            chunks.for_each(|(m, g)| arch.dispatch(|| first_moments(m, g, weights)));
        }
        Ok(())
    }
}

#[inline(always)]
fn first_moments(m: &mut [f32], g: &[f32], [keep, add]: [f32; 2]) {
    m.iter_mut().zip(g).for_each(|(m, g)| *m = keep * *m + add * g);
}

#[inline(always)]
fn second_moments(v: &mut [f32], g: &[f32], [keep, add, scale]: [f32; 3]) {
    v.iter_mut().zip(g).for_each(|(v, g)| *v = keep * *v + add * (g * scale) * (g * scale));
}

impl InplaceOp3 for ParameterUpdate {
    fn name(&self) -> &'static str {
        "adamw-update"
    }

    #[allow(clippy::cast_possible_truncation)] // as above
    fn cpu_fwd(
        &self,
        p: &mut CpuStorage,
        p_layout: &Layout,
        m: &CpuStorage,
        m_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<()> {
        let (rate, root) = self.0.corrections();
        let keep = 1.0 - self.0.lr * self.0.weight_decay;
        let factors = [keep, rate, root, self.0.eps].map(|x| x as f32);
        let m = contiguous::<f32>(m, m_layout)?;
        let v = contiguous::<f32>(v, v_layout)?;
        let moments = m.par_chunks(CHUNK).zip(v.par_chunks(CHUNK));
        let arch = isa::arch();
        let chunks = numbers(p, p_layout)?.par_chunks_mut(CHUNK).zip(moments);
        chunks.for_each(|(p, (m, v))| arch.dispatch(|| step_parameters(p, m, v, factors)));
        Ok(())
    }
}

#[inline(always)]
fn step_parameters(p: &mut [f32], m: &[f32], v: &[f32], [keep, rate, root, eps]: [f32; 4]) {
    for (p, (m, v)) in p.iter_mut().zip(m.iter().zip(v)) {
        *p = keep * *p - rate * m / (v.sqrt() * root + eps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    const STEP: AdamWStep = AdamWStep {
        lr: 0.01,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.1,
        step: 1,
        gradient_scale: 0.5,
    };

    #[test]
    fn a_gradient_or_moment_of_another_shape_or_dtype_is_refused() -> Result<()> {
        let var = |len: usize, dtype| Var::zeros(len, dtype, &Device::Cpu);
        let p = var(3, DType::F32)?;
        let good = || var(3, DType::F32);
        STEP.apply(&p, &good()?.as_detached_tensor(), &good()?, &good()?)?;
        for bad in [var(4, DType::F32)?, var(3, DType::F64)?] {
            for (g, m, v) in [
                (bad.clone(), good()?, good()?),
                (good()?, bad.clone(), good()?),
                (good()?, good()?, bad.clone()),
            ] {
                let error = STEP
                    .apply(&p, &g.as_detached_tensor(), &m, &v)
                    .expect_err("another shape or dtype")
                    .to_string();
                assert!(error.contains("AdamW") && error.contains("[3]"), "{error}");
            }
        }
        Ok(())
    }

    /// Compares each number with the formula in f64, over several steps.
    #[test]
    fn steps_are_the_formulas() -> Result<()> {
        for dtype in [DType::F32, DType::F64] {
            let len = PIECE + 5;
            #[allow(clippy::cast_possible_truncation)] // half a million
            let n = len as u32;
            let start: Vec<f64> = (0..n).map(|i| f64::from(i % 97) / 50.0 - 1.0).collect();
            let var =
                |x: &[f64]| Var::from_tensor(&Tensor::from_slice(x, len, &Device::Cpu)?.to_dtype(dtype)?);
            let p = var(&start)?;
            let m = var(&vec![0.0; len])?;
            let v = var(&vec![0.0; len])?;
            let mut expected: Vec<[f64; 3]> = start.iter().map(|p| [*p, 0.0, 0.0]).collect();
            for step in 1..=4u32 {
                let g: Vec<f64> = (0..n).map(|i| f64::from((i * 31 + step) % 89) / 60.0 - 0.7).collect();
                let AdamWStep {
                    lr, beta1: b1, beta2: b2, eps, weight_decay: wd, gradient_scale: scale, ..
                } = STEP;
                let op = AdamWStep { step: u64::from(step), ..STEP };
                op.apply(&p, &Tensor::from_slice(&g, len, &Device::Cpu)?.to_dtype(dtype)?, &m, &v)?;
                for ([p, m, v], g) in expected.iter_mut().zip(&g) {
                    let g = g * scale;
                    *m = b1 * *m + (1.0 - b1) * g;
                    *v = b2 * *v + (1.0 - b2) * g * g;
                    let (m_hat, v_hat) =
                        (*m / (1.0 - b1.powi(step.cast_signed())), *v / (1.0 - b2.powi(step.cast_signed())));
                    *p -= lr * wd * *p + lr * m_hat / (v_hat.sqrt() + eps);
                }
            }
            let got: Vec<f64> = p.to_dtype(DType::F64)?.to_vec1()?;
            let tolerance = if dtype == DType::F32 { 2e-6 } else { 1e-12 };
            for (a, [b, ..]) in got.iter().zip(&expected) {
                assert!((a - b).abs() <= tolerance, "{dtype:?}: {a} {b}");
            }
        }
        Ok(())
    }
}
