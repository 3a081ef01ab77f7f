//! Operations on tensors in the CPU's memory: [`CpuOp`] is what each one says of itself, [`OnCpu`] what Candle runs.

use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, Error, Layout, Result, Shape, Storage, Tensor, WithDType,
};

/// A tensor's numbers.
#[derive(Clone, Copy)]
pub(crate) struct CpuInput<'a> {
    pub(crate) storage: &'a CpuStorage,
    pub(crate) layout: &'a Layout,
}

impl<'a> CpuInput<'a> {
    /// Of a tensor's storage, which has to be on the CPU.
    pub(crate) fn new(storage: &'a Storage, layout: &'a Layout) -> Result<Self> {
        match storage {
            Storage::Cpu(storage) => Ok(Self { storage, layout }),
            _ => candle_core::bail!("expected a tensor on the CPU, got {layout:?} on another device"),
        }
    }

    /// The numbers of a contiguous tensor.
    pub(crate) fn slice<E: WithDType>(self) -> Result<&'a [E]> {
        contiguous(self.storage, self.layout)
    }

    pub(crate) fn shape(self) -> &'a Shape {
        self.layout.shape()
    }
}

/// An operation on `N` tensors.
pub(crate) trait CpuOp<const N: usize> {
    const NAME: &'static str;

    fn forward(&self, inputs: [CpuInput; N]) -> Result<(CpuStorage, Shape)>;

    /// The gradients of the inputs, from the inputs, the result and its gradient.
    fn backward(&self, _: [&Tensor; N], _: &Tensor, _: &Tensor) -> Result<[Option<Tensor>; N]> {
        Err(Error::BackwardNotSupported { op: Self::NAME })
    }
}

/// A [`CpuOp`] as Candle runs it.
pub(crate) struct OnCpu<T>(pub(crate) T);

macro_rules! custom_op {
    ($CustomOp:ident, $n:literal, $gradients:ty, $($storage:ident $layout:ident $tensor:ident),+) => {
        impl<T: CpuOp<$n>> $CustomOp for OnCpu<T> {
            fn name(&self) -> &'static str {
                T::NAME
            }

            fn cpu_fwd(&self, $($storage: &CpuStorage, $layout: &Layout),+) -> Result<(CpuStorage, Shape)> {
                self.0.forward([$(CpuInput { storage: $storage, layout: $layout }),+])
            }

            fn bwd(&self, $($tensor: &Tensor),+, result: &Tensor, grad: &Tensor) -> Result<$gradients> {
                let [$($tensor),+] = self.0.backward([$($tensor),+], result, grad)?;
                Ok(($($tensor),+))
            }
        }
    };
}

custom_op!(CustomOp1, 1, Option<Tensor>, s1 l1 t1);
custom_op!(CustomOp2, 2, (Option<Tensor>, Option<Tensor>), s1 l1 t1, s2 l2 t2);
custom_op!(CustomOp3, 3, (Option<Tensor>, Option<Tensor>, Option<Tensor>), s1 l1 t1, s2 l2 t2, s3 l3 t3);

/// The elements of a contiguous tensor.
pub(crate) fn contiguous<'a, E: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [E]> {
    let data = storage.as_slice::<E>()?;
    match layout.contiguous_offsets() {
        Some((start, end)) if end <= data.len() => Ok(&data[start..end]),
        _ => candle_core::bail!("expected a contiguous tensor, got {layout:?} of {} numbers", data.len()),
    }
}
