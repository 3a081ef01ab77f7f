//! Tensors that NumPy reads in place, through its array interface.

use crate::error::Failed;
use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Result, Storage, Tensor};
use half::f16;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A tensor on the CPU whose numbers NumPy reads and writes where they are: `numpy.asarray(array)` copies nothing and keeps this alive.
/// No part of the model has the same memory.
#[pyclass(frozen, module = "gpt2_candle._native")]
#[derive(Debug)]
pub(crate) struct Array {
    tensor: Tensor,
    /// The address of the first number.
    address: usize,
    type_code: &'static str,
    /// The count of a clone tells whether Python has let this go.
    alive: Arc<()>,
}

impl Array {
    /// Takes a tensor that nothing else writes to. bf16, which NumPy lacks, becomes f32.
    pub(crate) fn new(tensor: &Tensor) -> Result<Self> {
        let tensor = tensor.to_device(&Device::Cpu)?.detach();
        let tensor = if tensor.dtype() == DType::BF16 { tensor.to_dtype(DType::F32)? } else { tensor };
        // What is broadcast has the same memory at several places.
        let broadcast =
            tensor.dims().iter().zip(tensor.stride()).any(|(&dim, &stride)| dim > 1 && stride == 0);
        let tensor = if broadcast { tensor.force_contiguous()? } else { tensor };
        let (type_code, _) = type_code(tensor.dtype())?;
        let start = Start(AtomicUsize::new(0));
        if tensor.elem_count() > 0 {
            tensor.inplace_op1(&start)?;
        }
        Ok(Self { address: start.0.into_inner(), tensor, type_code, alive: Arc::new(()) })
    }

    /// Copies the numbers into memory of their own.
    pub(crate) fn copy_of(tensor: &Tensor) -> Result<Self> {
        Self::new(&tensor.to_device(&Device::Cpu)?.force_contiguous()?)
    }

    pub(crate) fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Its count is 1 once Python has let the array go.
    pub(crate) fn alive(&self) -> Arc<()> {
        Arc::clone(&self.alive)
    }

    /// Whether the bits are those of another contiguous tensor of the same shape and dtype.
    pub(crate) fn has_bits_of(&self, other: &Self) -> Result<bool> {
        fn same<T: PartialEq, F: candle_core::WithDType>(
            a: &Tensor,
            b: &Tensor,
            bits: impl Fn(F) -> T,
        ) -> Result<bool> {
            let a = a.flatten_all()?;
            let b = b.flatten_all()?;
            let ((a, of_a), (b, of_b)) = (a.storage_and_layout(), b.storage_and_layout());
            let (Storage::Cpu(a), Storage::Cpu(b)) = (&*a, &*b) else { return Ok(false) };
            let a = a.as_slice::<F>()?;
            let b = b.as_slice::<F>()?;
            let a = &a[of_a.start_offset()..];
            let b = &b[of_b.start_offset()..];
            let n = of_a.shape().elem_count();
            Ok(a[..n].iter().zip(&b[..n]).all(|(a, b)| bits(*a) == bits(*b)))
        }
        let a = &self.tensor;
        let b = &other.tensor;
        match a.dtype() {
            DType::F32 => same(a, b, f32::to_bits),
            DType::F64 => same(a, b, f64::to_bits),
            DType::F16 => same(a, b, f16::to_bits),
            dtype => candle_core::bail!("hooks see floats, not {dtype:?}"),
        }
    }
}

/// NumPy's code of a dtype, and the bytes of a number.
fn type_code(dtype: DType) -> Result<(&'static str, usize)> {
    Ok(match dtype {
        DType::F32 => ("<f4", 4),
        DType::F64 => ("<f8", 8),
        DType::F16 => ("<f2", 2),
        DType::U8 => ("|u1", 1),
        DType::U32 => ("<u4", 4),
        DType::I64 => ("<i8", 8),
        other => candle_core::bail!("NumPy has no {}", other.as_str()),
    })
}

/// Finds where a tensor's numbers begin.
struct Start(AtomicUsize);

impl InplaceOp1 for Start {
    fn name(&self) -> &'static str {
        "start"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        fn at<T>(numbers: &mut [T], layout: &Layout) -> usize {
            numbers[layout.start_offset()..].as_mut_ptr() as usize
        }
        let start = match storage {
            CpuStorage::F32(numbers) => at(numbers, layout),
            CpuStorage::F64(numbers) => at(numbers, layout),
            CpuStorage::F16(numbers) => at(numbers, layout),
            CpuStorage::U8(numbers) => at(numbers, layout),
            CpuStorage::U32(numbers) => at(numbers, layout),
            CpuStorage::I64(numbers) => at(numbers, layout),
            other => candle_core::bail!("NumPy has no array for {other:?}"),
        };
        self.0.store(start, Ordering::Relaxed);
        Ok(())
    }
}

#[pymethods]
impl Array {
    /// Zeros of a shape, for NumPy to fill: `float16`, `float32`, `float64` or `uint32`.
    #[staticmethod]
    fn zeros(shape: Vec<usize>, dtype: &str) -> std::result::Result<Self, Failed> {
        let dtype = match dtype {
            "float16" => DType::F16,
            "float32" => DType::F32,
            "float64" => DType::F64,
            "uint32" => DType::U32,
            other => {
                return Err(Failed::value(format!(
                    "an array of {other}: expected float16, float32, float64 or uint32"
                )));
            }
        };
        Ok(Self::new(&Tensor::zeros(shape, dtype, &Device::Cpu)?)?)
    }

    /// NumPy's array interface, version 3.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let size = type_code(self.tensor.dtype()).map_err(Failed::from)?.1;
        let strides: Vec<usize> = self.tensor.stride().iter().map(|stride| stride * size).collect();
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", pyo3::types::PyTuple::new(py, self.tensor.dims())?)?;
        interface.set_item("typestr", self.type_code)?;
        interface.set_item("data", (self.address, false))?;
        interface.set_item("strides", pyo3::types::PyTuple::new(py, strides)?)?;
        Ok(interface)
    }
}
