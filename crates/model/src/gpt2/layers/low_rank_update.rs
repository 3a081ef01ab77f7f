//! [`Update`]: what an adapter adds to one linear layer.

use crate::learn::training::Training;
use candle_core::{DType, Result, Tensor};
use candle_fused::Dropout;

/// A low-rank update of a linear layer: `y += scaling·dropout(x)·Aᵀ·Bᵀ` (LoRA, Hu et al. 2021, §4.1). Clones share the
/// numbers.
#[derive(Debug, Clone)]
pub struct Update {
    a: Tensor,
    b: Tensor,
    scaling: f64,
    dropout: f64,
}

impl Update {
    /// An update with PEFT's `lora_A` and `lora_B`. `scaling` is `alpha / r` or, with rank stabilization (Kalajdzievski
    /// 2023), `alpha / sqrt(r)`; `dropout` is the probability of dropping a number of the layer's input in training.
    ///
    /// # Shapes
    /// `a` (r, in), `b` (out, r)
    ///
    /// # Errors
    /// When the two do not fit each other, the scaling is not finite, or the probability is not at least 0 and below 1.
    pub fn new(a: Tensor, b: Tensor, scaling: f64, dropout: f64) -> Result<Self> {
        let ((r, _), (_, of_b)) = (a.dims2()?, b.dims2()?);
        if r != of_b || r == 0 {
            candle_core::bail!(
                "lora: A is {:?} and B {:?}; expected (r, in) and (out, r)",
                a.dims(),
                b.dims()
            )
        }
        if a.dtype() != b.dtype() {
            candle_core::bail!("lora: A is {:?} and B {:?}; expected one dtype", a.dtype(), b.dtype())
        }
        if !scaling.is_finite() {
            candle_core::bail!("lora: the scaling is {scaling}")
        }
        Dropout::new(dropout, 0, 0)?;
        Ok(Self { a, b, scaling, dropout })
    }

    /// The update with its numbers as constants, which no longer learn.
    #[must_use]
    pub fn detach(&self) -> Self {
        Self { a: self.a.detach(), b: self.b.detach(), ..self.clone() }
    }

    /// `lora_A`, (r, in).
    #[must_use]
    pub fn a(&self) -> &Tensor {
        &self.a
    }

    /// `lora_B`, (out, r).
    #[must_use]
    pub fn b(&self) -> &Tensor {
        &self.b
    }

    /// r
    #[must_use]
    pub fn rank(&self) -> usize {
        self.a.dims()[0]
    }

    /// (in, out), the shape of the layer.
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        (self.a.dims()[1], self.b.dims()[0])
    }

    /// The factor on `x·Aᵀ·Bᵀ`.
    #[must_use]
    pub fn scaling(&self) -> f64 {
        self.scaling
    }

    /// The probability of dropping a number of the layer's input in training.
    #[must_use]
    pub fn dropout(&self) -> f64 {
        self.dropout
    }

    /// Multiplies the update by `weight`.
    #[must_use]
    pub fn times(self, weight: f64) -> Self {
        Self { scaling: self.scaling * weight, ..self }
    }

    /// The update with its numbers as constants, through which no gradient flows.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self { a: self.a.detach(), b: self.b.detach(), ..*self }
    }

    /// The change of W: `scaling·Aᵀ·Bᵀ`, (in, out), in f32 or wider.
    ///
    /// # Errors
    /// When the device fails.
    pub fn delta(&self) -> Result<Tensor> {
        let wide = |x: &Tensor| x.detach().to_dtype(candle_fused::accumulator(x.dtype()));
        (wide(&self.a)?.t()?.matmul(&wide(&self.b)?.t()?))? * self.scaling
    }

    /// The Frobenius norm of [`delta`](Self::delta), from products of the size (r, r). It is not finite if a factor is not.
    ///
    /// # Errors
    /// When the device fails.
    pub fn norm(&self) -> Result<f64> {
        let a = self.a.detach().to_dtype(DType::F64)?;
        let b = self.b.detach().to_dtype(DType::F64)?;
        // |B·A|² is the trace of Aᵀ·Bᵀ·B·A, which is the sum of (Bᵀ·B) ∘ (A·Aᵀ).
        let squares = (b.t()?.matmul(&b)? * a.matmul(&a.t()?)?)?.sum_all()?.to_scalar::<f64>()?;
        // `max` would turn NaN into 0.
        Ok(if squares < 0.0 { 0.0 } else { squares.sqrt() * self.scaling.abs() })
    }

    /// In the dtype and on the device of a layer's input.
    pub(crate) fn for_inputs(&self, dtype: DType, device: &candle_core::Device) -> Result<Self> {
        let placed = |x: &Tensor| x.to_dtype(dtype)?.to_device(device);
        Ok(Self { a: placed(&self.a)?, b: placed(&self.b)?, ..*self })
    }

    /// `scaling·dropout(x)·Aᵀ·Bᵀ`, (.., in) -> (.., out). `stream` tells this layer's dropout from others'.
    pub(super) fn forward(&self, x: &Tensor, training: Option<Training>, stream: u32) -> Result<Tensor> {
        candle_fused::linear_transposed(&self.narrow(x, training, stream)?, &self.b)
    }

    /// `scaling·dropout(x)·Aᵀ`, (.., in) -> (.., r)
    pub(super) fn narrow(&self, x: &Tensor, training: Option<Training>, stream: u32) -> Result<Tensor> {
        let dropped = match training.filter(|_| self.dropout > 0.0) {
            Some(training) => training.dropout_at(self.dropout, stream)?.apply(x)?,
            None => x.clone(),
        };
        candle_fused::linear_transposed(&dropped, &self.a)? * self.scaling
    }

    /// Some of the outputs of [`forward`](Self::forward), without dropout.
    pub(super) fn of_columns(&self, columns: std::ops::Range<usize>) -> Result<Self> {
        Ok(Self { a: self.a.clone(), b: self.b.narrow(0, columns.start, columns.len())?, ..*self })
    }
}
