//! A table with a vector for each token, which can be the output projection, too.

use crate::parameters::Values;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::{PackedWeight, QuantizedWeight};

/// A table (V, C): `wte`. Clones share the numbers.
#[derive(Debug, Clone)]
pub struct Embedding(Kind);

#[derive(Debug, Clone)]
enum Kind {
    /// (V, C)
    Plain(Tensor),
    /// The transpose, (C, V), of which `lm_head` is the product and the embedding the columns.
    Packed(PackedWeight),
    /// The same, quantized.
    Quantized(QuantizedWeight),
}

impl Embedding {
    /// A plain table.
    ///
    /// # Shapes
    /// `table` (V, C)
    ///
    /// # Errors
    /// When `table` does not have rank 2.
    pub fn new(table: Tensor) -> Result<Self> {
        table.dims2()?;
        Ok(Self(Kind::Plain(table)))
    }

    /// A table that is also, or only, an output projection: packed for its product if it does not change.
    ///
    /// # Shapes
    /// `table` (V, C)
    ///
    /// # Errors
    /// When `table` does not have rank 2.
    pub fn of_projection(table: Tensor) -> Result<Self> {
        if table.rank() == 2 && PackedWeight::suits(&[&table]) {
            return Ok(Self(Kind::Packed(PackedWeight::new(&table.t()?)?)));
        }
        Self::new(table)
    }

    /// A quantized table, on the CPU.
    ///
    /// # Shapes
    /// `transpose` (C, V)
    #[must_use]
    pub fn quantized(transpose: QuantizedWeight) -> Self {
        Self(Kind::Quantized(transpose))
    }

    /// (V, C)
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        match &self.0 {
            Kind::Plain(table) => (table.dims()[0], table.dims()[1]),
            Kind::Packed(weight) => (weight.shape().1, weight.shape().0),
            Kind::Quantized(weight) => (weight.shape().1, weight.shape().0),
        }
    }

    /// The dtype of the vectors.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match &self.0 {
            Kind::Plain(table) => table.dtype(),
            Kind::Packed(weight) => weight.dtype(),
            Kind::Quantized(_) => DType::F32,
        }
    }

    /// Where the table is.
    #[must_use]
    pub fn device(&self) -> &Device {
        match &self.0 {
            Kind::Plain(table) => table.device(),
            Kind::Packed(_) | Kind::Quantized(_) => &Device::Cpu,
        }
    }

    /// The vectors of some tokens.
    ///
    /// # Shapes
    /// `ids` (n), integers -> (n, C)
    ///
    /// # Errors
    /// When an id is not below V.
    pub fn vectors(&self, ids: &Tensor) -> Result<Tensor> {
        match &self.0 {
            Kind::Plain(table) => table.index_select(ids, 0),
            Kind::Packed(weight) => weight.columns(&ids.to_dtype(DType::U32)?),
            Kind::Quantized(weight) => weight.columns(&ids.to_dtype(DType::U32)?),
        }
    }

    /// Logits: `x·Wᵀ`.
    ///
    /// # Shapes
    /// `x` (.., C) -> (.., V)
    ///
    /// # Errors
    /// When a shape does not fit.
    pub fn logits(&self, x: &Tensor) -> Result<Tensor> {
        match &self.0 {
            Kind::Plain(table) => candle_fused::linear_transposed(x, table),
            Kind::Packed(weight) => weight.forward(x, None, candle_fused::Epilogue::None),
            Kind::Quantized(weight) => weight.forward(x, None, candle_fused::Epilogue::None),
        }
    }

    /// The table (V, C), which is a copy if it is packed or quantized.
    ///
    /// # Errors
    /// When Candle cannot make the tensor.
    pub fn weight(&self) -> Result<Tensor> {
        self.values().tensor()
    }

    /// The table as a parameter.
    pub(crate) fn values(&self) -> Values {
        match &self.0 {
            Kind::Plain(table) => Values::Tensor(table.clone()),
            Kind::Packed(weight) => Values::PackedTransposed(weight.clone()),
            Kind::Quantized(weight) => Values::QuantizedTransposed(weight.clone()),
        }
    }

    /// Whether the two are one table.
    #[must_use]
    pub fn shares_memory(&self, other: &Self) -> bool {
        self.values().id() == other.values().id()
    }
}
