//! [`Frozen`]: a weight that does not change, laid out once for our matrix products on the CPU.
//!
//! Panels of f32, f16 and bf16 and panels of quantized blocks implement it. A new format is one more implementation.

use crate::cpu::cpu_op::CpuInput;
use crate::linear::product::finish::Finish;
use crate::linear::product::multiply::new_product;
use crate::linear::product::numbers::{PANEL, PanelNumber, STRIP};
use crate::linear::product::panels::Panels;
use crate::linear::quantized;
use crate::linear::quantized::format::BlockFormat;
use crate::linear::quantized::panels::BlockPanels;
use crate::pointwise::activation::Activation;
use crate::pointwise::epilogue::ResidualOrGate;
use candle_core::{CpuStorage, DType, Result, Storage, Tensor, WithDType};
use rayon::prelude::*;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The number format of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightDType {
    /// Plain numbers.
    Plain(DType),
    /// Blocks of quantized numbers.
    Blocks(BlockFormat),
}

impl fmt::Display for WeightDType {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Plain(dtype) => f.write_str(dtype.as_str()),
            Self::Blocks(format) => format.fmt(f),
        }
    }
}

/// The fused epilogue of a product: `activation(x·W + bias)`, then a join. Every part is optional.
#[derive(Clone, Copy, Default)]
pub(crate) struct FusedEpilogue<'a> {
    /// (columns)
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) activation: Option<Activation>,
    /// (rows, columns)
    pub(crate) join: Option<ResidualOrGate<CpuInput<'a>>>,
}

impl<'a> FusedEpilogue<'a> {
    fn finish<X: WithDType>(self) -> Result<Finish<'a, X>> {
        let join = self.join.map(|join| join.try_map(CpuInput::slice)).transpose()?;
        Ok(Finish { bias: self.bias, activation: self.activation, join, onto: false })
    }
}

/// A weight W (in, out) that does not change.
pub(crate) trait Frozen: Send + Sync {
    /// (in, out)
    fn shape(&self) -> (usize, usize);

    fn dtype(&self) -> WeightDType;

    /// Ranges of columns start at a multiple of this.
    fn alignment(&self) -> usize;

    /// `x·W[:, columns]` with sums in f32, and what follows: (rows, in) -> (rows, `columns.len()`), in the dtype of `x`, which
    /// is f32 or the weight's own half.
    fn product(&self, x: CpuInput, columns: Range<usize>, then: FusedEpilogue) -> Result<CpuStorage>;

    /// The weights of some outputs, (`outputs.len()`, in): in the weight's own dtype, or f32 if it is quantized.
    fn outputs(&self, outputs: &[u32]) -> CpuStorage;

    /// W[:, columns]ᵀ, (`columns.len()`, in), for the gradient of `x`.
    fn transposed(&self, columns: Range<usize>) -> Arc<dyn Frozen>;
}

impl<E: PanelNumber + WithDType> Frozen for Panels<E> {
    fn shape(&self) -> (usize, usize) {
        (self.depth(), self.width())
    }

    fn dtype(&self) -> WeightDType {
        WeightDType::Plain(E::DTYPE)
    }

    fn alignment(&self) -> usize {
        PANEL * STRIP
    }

    fn product(&self, x: CpuInput, columns: Range<usize>, then: FusedEpilogue) -> Result<CpuStorage> {
        Ok(match x.storage {
            CpuStorage::F32(_) => CpuStorage::F32(new_product(x.slice()?, self, columns, then.finish()?)),
            _ => E::to_cpu_storage_owned(new_product(x.slice::<E>()?, self, columns, then.finish()?)),
        })
    }

    fn outputs(&self, outputs: &[u32]) -> CpuStorage {
        let mut data = vec![E::from_f32(0.0); outputs.len() * self.depth()];
        let rows = data.par_chunks_exact_mut(self.depth()).zip(outputs);
        rows.for_each(|(row, j)| self.column(*j as usize, row));
        E::to_cpu_storage_owned(data)
    }

    fn transposed(&self, columns: Range<usize>) -> Arc<dyn Frozen> {
        Arc::new(Self::transposed(self, columns))
    }
}

impl Frozen for BlockPanels {
    fn shape(&self) -> (usize, usize) {
        (self.depth(), self.width())
    }

    fn dtype(&self) -> WeightDType {
        WeightDType::Blocks(self.format())
    }

    fn alignment(&self) -> usize {
        PANEL
    }

    fn product(&self, x: CpuInput, columns: Range<usize>, then: FusedEpilogue) -> Result<CpuStorage> {
        Ok(CpuStorage::F32(quantized::product::product(x.slice()?, self, columns, then.finish()?)))
    }

    fn outputs(&self, outputs: &[u32]) -> CpuStorage {
        let mut data = vec![0.0; outputs.len() * self.depth()];
        let rows = data.par_chunks_exact_mut(self.depth()).zip(outputs);
        rows.for_each(|(row, j)| self.output(*j as usize, row));
        CpuStorage::F32(data)
    }

    fn transposed(&self, columns: Range<usize>) -> Arc<dyn Frozen> {
        let n_in = self.depth();
        let n_out = columns.len();
        let mut data = vec![0.0; n_out * n_in];
        let rows = data.par_chunks_exact_mut(n_in).enumerate();
        rows.for_each(|(j, row)| self.output(columns.start + j, row));
        Arc::new(Panels::pack(&data, (n_out, n_in), (n_in, 1)))
    }
}

/// A copy of a weight (in, out) in its own dtype.
pub(crate) fn pack(weight: &Tensor) -> Result<Arc<dyn Frozen>> {
    check(weight)?;
    let (storage, layout) = weight.storage_and_layout();
    let shape = layout.shape().dims2()?;
    let start = layout.start_offset();
    let strides = (layout.stride()[0], layout.stride()[1]);
    Ok(match &*storage {
        Storage::Cpu(CpuStorage::F32(data)) => Arc::new(Panels::pack(&data[start..], shape, strides)),
        Storage::Cpu(CpuStorage::F16(data)) => Arc::new(Panels::pack(&data[start..], shape, strides)),
        Storage::Cpu(CpuStorage::BF16(data)) => Arc::new(Panels::pack(&data[start..], shape, strides)),
        _ => candle_core::bail!("weight: expected f32, f16 or bf16, got {:?}", weight.dtype()),
    })
}

/// A weight (in, out) in quantized blocks.
pub(crate) fn quantize(weight: &Tensor, format: BlockFormat) -> Result<Arc<dyn Frozen>> {
    let (n_in, n_out) = weight.dims2()?;
    format.check_inputs(n_in)?;
    check(weight)?;
    let weight = weight.to_dtype(DType::F32)?;
    let (storage, layout) = weight.storage_and_layout();
    let Storage::Cpu(CpuStorage::F32(data)) = &*storage else {
        candle_core::bail!("weight: expected f32 on the CPU")
    };
    let data = &data[layout.start_offset()..];
    let stride = layout.stride();
    let number = |k: usize, j: usize| data[k * stride[0] + j * stride[1]];
    let limit = half::f16::MAX.to_f32(); // scales are in f16
    if !(0..n_in).into_par_iter().all(|k| (0..n_out).all(|j| number(k, j).abs() <= limit)) {
        candle_core::bail!("weight: it holds a number that is not finite, or beyond ±{limit}")
    }
    let row = format.bytes_of(n_in).unwrap_or_default();
    Ok(Arc::new(BlockPanels::pack(format, (n_in, n_out), |outputs, out| {
        for (j, out) in outputs.zip(out.chunks_exact_mut(row)) {
            let inputs: Vec<f32> = (0..n_in).map(|k| number(k, j)).collect();
            out.copy_from_slice(&format.quantize(&inputs));
        }
        Ok(())
    })?))
}

/// A weight from blocks, see `Weight::read_blocks`.
pub(crate) fn read_blocks(
    format: BlockFormat,
    n_in: usize,
    n_out: usize,
    read: impl Fn(usize, &mut [u8]) -> Result<()> + Sync,
) -> Result<Arc<dyn Frozen>> {
    format.check_inputs(n_in)?;
    if n_out == 0 {
        candle_core::bail!("a weight in {format} of {n_in} inputs has no outputs")
    }
    let row = format.bytes_of(n_in).unwrap_or_default();
    let read = |outputs: Range<usize>, out: &mut [u8]| read(outputs.start * row, out);
    Ok(Arc::new(BlockPanels::pack(format, (n_in, n_out), read)?))
}

/// Fails if a weight cannot be frozen.
fn check(weight: &Tensor) -> Result<()> {
    if weight.track_op() {
        candle_core::bail!("weight: it would get no gradient; detach it, or keep it plain")
    }
    if weight.elem_count() == 0 || !weight.device().is_cpu() {
        candle_core::bail!("weight: expected elements on the CPU, got {weight:?}")
    }
    Ok(())
}
