//! [`QuantizedWeight`]: the weight of a linear layer in blocks of a few bits a number.

use super::activations::BLOCK;
use super::format::BlockFormat;
use super::panels::Panels;
use super::product::product;
use crate::epilogue::Epilogue;
use crate::isa::Isa;
use crate::linear::{check_residual, flatten, gradient_of_rows};
use crate::product::Finish;
use crate::vector::contiguous;
use candle_core::{CpuStorage, CustomOp1, D, DType, Device, Layout, Result, Shape, Storage, Tensor};
use rayon::prelude::*;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The weight (in, out) of a linear layer on the CPU, quantized. Clones share the memory.
///
/// What it multiplies is in f32, and is quantized, too: to 8 bits, in blocks of 32 numbers that share a scale in f32. The
/// result has the same bits on every instruction set, for any number of threads, and for a row alone or among others; only
/// GELU in portable code, which does not fuse multiplications with additions, may differ in its last bit.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::{BlockFormat, Epilogue, QuantizedWeight};
///
/// # fn main() -> candle_core::Result<()> {
/// let weight = Tensor::ones((64, 3), DType::F32, &Device::Cpu)?; // (in, out)
/// let quantized = QuantizedWeight::quantize(&weight, BlockFormat::Q8_0)?;
/// let x = Tensor::ones((1, 64), DType::F32, &Device::Cpu)?;
/// let y = quantized.forward(&x, None, Epilogue::None)?;
/// assert!((y.to_vec2::<f32>()?[0][2] - 64.0).abs() < 0.1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct QuantizedWeight {
    panels: Arc<Panels>,
    id: u64,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

impl QuantizedWeight {
    /// Refuses a number of inputs that a format's blocks do not divide.
    ///
    /// # Errors
    /// Names the format and the length of its blocks.
    pub fn check_inputs(format: BlockFormat, n_in: usize) -> Result<()> {
        if n_in > 0 && n_in.is_multiple_of(format.block_len()) {
            return Ok(());
        }
        let len = format.block_len();
        candle_core::bail!(
            "{format} has blocks of {len} weights, which do not divide the {n_in} inputs of the layer"
        )
    }

    /// Packs blocks of `format`: those of all inputs to the first output, then those to the next.
    ///
    /// # Shapes
    /// `shape` is (in, out)
    ///
    /// # Errors
    /// When the blocks do not divide the inputs, or the bytes are not so many.
    pub fn from_blocks(format: BlockFormat, bytes: &[u8], shape: (usize, usize)) -> Result<Self> {
        let row = format.bytes_of(shape.0).unwrap_or_default();
        if row.checked_mul(shape.1) != Some(bytes.len()) {
            Self::check_inputs(format, shape.0)?;
            candle_core::bail!(
                "{format} weight {shape:?} needs {} rows of {row} bytes, got {} bytes",
                shape.1,
                bytes.len()
            )
        }
        Self::read_blocks(format, shape, |at, out| {
            out.copy_from_slice(&bytes[at..at + out.len()]);
            Ok(())
        })
    }

    /// Like [`from_blocks`](Self::from_blocks), for bytes that are read in parts, on all threads: `read(at, out)` fills `out`
    /// with those from byte `at` on.
    ///
    /// # Errors
    /// When the blocks do not divide the inputs, there are no outputs, or `read` fails.
    pub fn read_blocks(
        format: BlockFormat,
        shape: (usize, usize),
        read: impl Fn(usize, &mut [u8]) -> Result<()> + Sync,
    ) -> Result<Self> {
        Self::check_inputs(format, shape.0)?;
        if shape.1 == 0 {
            candle_core::bail!("{format} weight {shape:?} has no outputs")
        }
        let row = format.bytes_of(shape.0).unwrap_or_default();
        Ok(Self::of(Panels::pack(format, shape, |outputs, out| read(outputs.start * row, out))?))
    }

    /// Quantizes a weight in f32, f16 or bf16, on all threads.
    ///
    /// # Shapes
    /// `weight` (in, out), of any strides
    ///
    /// # Errors
    /// When the blocks do not divide the inputs, or a number is not finite or beyond f16's largest; when the weight has another
    /// rank, is not on the CPU or has no elements, or a gradient is tracked for it.
    pub fn quantize(weight: &Tensor, format: BlockFormat) -> Result<Self> {
        let shape = weight.dims2()?;
        Self::check_inputs(format, shape.0)?;
        if weight.track_op() {
            candle_core::bail!("quantized weight: it would get no gradient; detach it, or keep it plain")
        }
        if shape.1 == 0 || !weight.device().is_cpu() {
            candle_core::bail!("quantized weight: expected a weight on the CPU with elements, got {weight:?}")
        }
        let weight = weight.to_dtype(DType::F32)?;
        let (storage, layout) = weight.storage_and_layout();
        let Storage::Cpu(CpuStorage::F32(data)) = &*storage else {
            candle_core::bail!("quantized weight: expected f32 on the CPU")
        };
        let (data, stride) = (&data[layout.start_offset()..], layout.stride());
        let limit = half::f16::MAX.to_f32(); // scales are in f16
        let fits = (0..shape.0)
            .into_par_iter()
            .all(|k| (0..shape.1).all(|j| data[k * stride[0] + j * stride[1]].abs() <= limit));
        if !fits {
            candle_core::bail!("quantized weight: it holds a number that is not finite, or beyond ±{limit}")
        }
        let row = format.bytes_of(shape.0).unwrap_or_default();
        Ok(Self::of(Panels::pack(format, shape, |outputs, out| {
            for (j, out) in outputs.zip(out.chunks_exact_mut(row)) {
                let inputs: Vec<f32> = (0..shape.0).map(|k| data[k * stride[0] + j * stride[1]]).collect();
                out.copy_from_slice(&format.quantize(&inputs));
            }
            Ok(())
        })?))
    }

    fn of(panels: Panels) -> Self {
        Self { panels: Arc::new(panels), id: NEXT_ID.fetch_add(1, Ordering::Relaxed) }
    }

    /// (in, out)
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        (self.panels.depth(), self.panels.width())
    }

    /// How the weights are held.
    #[must_use]
    pub fn format(&self) -> BlockFormat {
        self.panels.format()
    }

    /// What tells this weight from every other of the process: clones have the same id.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// `x·W + bias`, then `epilogue`; differentiable in `x`, in `bias` and in a residual, as if `x` were not quantized.
    ///
    /// # Shapes
    /// `x` (.., in), `bias` (out), a residual (.., out) -> (.., out), all in f32
    ///
    /// # Errors
    /// When a shape does not fit, or a tensor is not in f32 on the CPU.
    pub fn forward(&self, x: &Tensor, bias: Option<&Tensor>, epilogue: Epilogue) -> Result<Tensor> {
        self.run(x, bias, epilogue, 0..self.shape().1)
    }

    /// Some columns of `x·W + bias`; differentiable, as above.
    ///
    /// # Shapes
    /// `x` (.., in), `bias` (out) -> (.., `columns.len()`)
    ///
    /// # Errors
    /// As above, or when the columns are not below `out`.
    pub fn forward_columns(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        columns: Range<usize>,
    ) -> Result<Tensor> {
        let n_out = self.shape().1;
        if columns.is_empty() || columns.end > n_out {
            candle_core::bail!("quantized weight: columns {columns:?} of {n_out}")
        }
        let first = columns.start / super::panels::PANEL * super::panels::PANEL;
        let bias = bias.map(|bias| bias.narrow(0, first, columns.end - first)).transpose()?;
        let y = self.run(x, bias.as_ref(), Epilogue::None, first..columns.end)?;
        if first == columns.start { Ok(y) } else { y.narrow(D::Minus1, columns.start - first, columns.len()) }
    }

    /// Columns of W, one for each id: the rows of the table if W is an embedding's transpose.
    ///
    /// # Shapes
    /// `ids` (n), u32 -> (n, in), f32
    ///
    /// # Errors
    /// When an id is not below `out`.
    pub fn columns(&self, ids: &Tensor) -> Result<Tensor> {
        let (n_in, n_out) = self.shape();
        let ids = ids.to_vec1::<u32>()?;
        if let Some(id) = ids.iter().find(|id| **id as usize >= n_out) {
            candle_core::bail!("quantized weight: column {id} of {n_out}")
        }
        let mut data = vec![0.0; ids.len() * n_in];
        let rows = data.par_chunks_exact_mut(n_in).zip(&ids);
        rows.for_each(|(out, id)| self.panels.output(*id as usize, out));
        Tensor::from_vec(data, (ids.len(), n_in), &Device::Cpu)
    }

    /// The weight in f32, (in, out): a copy.
    ///
    /// # Errors
    /// When Candle cannot make the tensor.
    pub fn to_tensor(&self) -> Result<Tensor> {
        self.to_transposed()?.t()?.contiguous()
    }

    /// The transpose of the weight in f32, (out, in): a copy.
    ///
    /// # Errors
    /// When Candle cannot make the tensor.
    pub fn to_transposed(&self) -> Result<Tensor> {
        self.outputs(0..self.shape().1)
    }

    /// The weights of some outputs, (`columns.len()`, in).
    fn outputs(&self, columns: Range<usize>) -> Result<Tensor> {
        let shape = (columns.len(), self.shape().0);
        Tensor::from_vec(self.values_of(columns), shape, &Device::Cpu)
    }

    /// The transpose of some columns of W in f32, in the panels of a plain product: (`columns.len()`, in).
    pub(crate) fn transposed_panels(&self, columns: Range<usize>) -> crate::product::Panels<f32> {
        let shape = (columns.len(), self.shape().0);
        crate::product::Panels::pack(&self.values_of(columns), shape, (shape.1, 1))
    }

    /// `x·W`, and what `finish` adds: (rows, in) -> (rows, out)
    pub(crate) fn product_of(&self, x: &[f32], finish: Finish<f32>) -> Vec<f32> {
        let (depth, width) = self.shape();
        let rows = x.len() / depth;
        let mut out: Vec<f32> = Vec::with_capacity(rows * width);
        // SAFETY: there is room for the rows, and the product writes all of them.
        unsafe {
            product(Isa::current(), x, &self.panels, 0..width, finish, out.as_mut_ptr());
            out.set_len(rows * width);
        }
        out
    }

    /// The numbers of [`outputs`](Self::outputs).
    fn values_of(&self, columns: Range<usize>) -> Vec<f32> {
        let n_in = self.shape().0;
        let mut data = vec![0.0; columns.len() * n_in];
        let rows = data.par_chunks_exact_mut(n_in).enumerate();
        rows.for_each(|(j, out)| self.panels.output(columns.start + j, out));
        data
    }

    fn run(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        epilogue: Epilogue,
        columns: Range<usize>,
    ) -> Result<Tensor> {
        let (n_in, n_out) = (self.shape().0, columns.len());
        if let Some(bias) = bias.filter(|bias| bias.dims() != [n_out]) {
            candle_core::bail!("linear: {n_out} outputs need a bias of [{n_out}], got {:?}", bias.dims())
        }
        let (flat, shape) = flatten(x, n_in, n_out)?;
        check_residual(epilogue, &shape)?;
        let others = [bias, epilogue.residual()];
        for tensor in others.into_iter().flatten().chain([x]) {
            if tensor.dtype() != DType::F32 || !tensor.device().is_cpu() {
                candle_core::bail!("linear: a quantized weight multiplies f32 on the CPU, got {tensor:?}")
            }
        }
        let mut operation =
            Product { weight: self.clone(), columns, bias: None, residual: None, gelu: false };
        if x.track_op() || others.into_iter().flatten().any(Tensor::track_op) {
            let later = bias.filter(|bias| bias.track_op());
            operation.bias = bias.filter(|bias| !bias.track_op()).cloned();
            let y = flat.apply_op1(operation)?.reshape(shape)?;
            let y = later.map_or_else(|| Ok(y.clone()), |bias| y.broadcast_add(bias))?;
            return epilogue.apply(y);
        }
        operation.bias = bias.cloned();
        match epilogue {
            Epilogue::None => {}
            Epilogue::Gelu => operation.gelu = true,
            Epilogue::Residual(residual) => operation.residual = Some(residual.contiguous()?),
        }
        flat.apply_op1_no_bwd(&operation)?.reshape(shape)
    }
}

impl fmt::Debug for QuantizedWeight {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (n_in, n_out) = self.shape();
        write!(f, "QuantizedWeight[{n_in}, {n_out}; {}]", self.format())
    }
}

/// `x·W + bias`, and what else is wanted. Only the product itself has a backward pass.
struct Product {
    weight: QuantizedWeight,
    columns: Range<usize>,
    bias: Option<Tensor>,
    residual: Option<Tensor>,
    gelu: bool,
}

impl CustomOp1 for Product {
    fn name(&self) -> &'static str {
        "quantized-linear"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (depth, width) = (self.weight.shape().0, self.columns.len());
        debug_assert!(depth.is_multiple_of(BLOCK));
        let x = contiguous::<f32>(x, layout)?;
        let rows = x.len() / depth;
        let bias = self.bias.as_ref().map(Tensor::to_vec1::<f32>).transpose()?;
        let residual = self.residual.as_ref().map(Tensor::storage_and_layout);
        let residual = match &residual {
            None => None,
            Some((storage, layout)) => match &**storage {
                Storage::Cpu(storage) => Some(contiguous::<f32>(storage, layout)?),
                _ => candle_core::bail!("linear: the residual is on another device"),
            },
        };
        let finish = Finish { bias: bias.as_deref(), residual, gelu: self.gelu, onto: false };
        let mut out: Vec<f32> = Vec::with_capacity(rows * width);
        // SAFETY: there is room for the rows, and the product writes all of them.
        unsafe {
            product(Isa::current(), x, &self.weight.panels, self.columns.clone(), finish, out.as_mut_ptr());
            out.set_len(rows * width);
        }
        Ok((CpuStorage::F32(out), Shape::from((rows, width))))
    }

    /// The gradient of the product with the weights as they are and `x` as it was before it was quantized.
    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let panels = self.weight.transposed_panels(self.columns.clone());
        gradient_of_rows(grad, &panels).map(Some)
    }
}
