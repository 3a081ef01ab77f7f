//! Gradients of more tensors than one operation of Candle has inputs.
//!
//! An operation has three inputs at most, and attention's are q, k and v. Any other tensor that needs a gradient travels with
//! v: [`returning_copy`] returns v and has the other tensor as its second input. A backward pass reaches attention first, which leaves
//! the gradient of the other tensor in [`SideGradient`], and then this operation, which returns it.

use crate::cpu::cpu_op::{CpuInput, CpuOp, OnCpu};
use candle_core::{CpuStorage, Result, Shape, Tensor};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// A gradient on its way from attention to [`returning_copy`]. A backward pass runs on one thread, and nothing between
/// `put` and `take` waits for other threads, so that two passes at the same time do not mix.
#[derive(Default)]
pub(super) struct SideGradient(Mutex<Vec<(ThreadId, Tensor)>>);

impl SideGradient {
    /// Leaves a gradient for this thread.
    pub(super) fn put(&self, gradient: Tensor) {
        // An earlier pass may have failed on its way.
        self.take();
        self.all(|all| all.push((thread::current().id(), gradient)));
    }

    fn take(&self) -> Option<Tensor> {
        let here = thread::current().id();
        self.all(|all| {
            let place = all.iter().position(|(thread, _)| *thread == here)?;
            Some(all.swap_remove(place).1)
        })
    }

    fn all<T>(&self, read: impl FnOnce(&mut Vec<(ThreadId, Tensor)>) -> T) -> T {
        read(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A copy of `v` (B, key heads, S, Dv) whose gradient pass returns what attention leaves for `other`, in its shape and dtype.
pub(super) fn returning_copy(v: &Tensor, other: &Tensor) -> Result<(Tensor, Arc<SideGradient>)> {
    let returned = Arc::<SideGradient>::default();
    let v = v.contiguous()?.apply_op2(other, OnCpu(ReturningCopy(returned.clone())))?;
    Ok((v, returned))
}

struct ReturningCopy(Arc<SideGradient>);

impl CpuOp<2> for ReturningCopy {
    const NAME: &'static str = "attention-carry";

    fn forward(&self, [v, _]: [CpuInput; 2]) -> Result<(CpuStorage, Shape)> {
        let copy = match v.storage {
            CpuStorage::F32(_) => CpuStorage::F32(v.slice()?.to_vec()),
            CpuStorage::F16(_) => CpuStorage::F16(v.slice()?.to_vec()),
            CpuStorage::BF16(_) => CpuStorage::BF16(v.slice()?.to_vec()),
            _ => candle_core::bail!("attention: values must be f32, f16 or bf16"),
        };
        Ok((copy, v.shape().clone()))
    }

    fn backward(&self, [_, other]: [&Tensor; 2], _: &Tensor, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let Some(gradient) = self.0.take() else {
            candle_core::bail!("attention: the backward pass came to the values before it came to attention")
        };
        Ok([Some(grad.clone()), Some(gradient.to_dtype(other.dtype())?)])
    }
}
