//! A table with a vector for each token, which may be the output projection as well.

use super::linear::{Weight, WeightLayout};
use candle_core::{DType, Device, Result, Tensor};

/// A table (V, C): `wte`. It is the weight from C to V of the projection that may share it. Clones share the numbers.
#[derive(Debug, Clone)]
pub struct Embedding {
    pub(crate) weight: Weight,
    /// The dtype of the vectors.
    dtype: DType,
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
        let dtype = table.dtype();
        Ok(Self { weight: Weight::plain(table, WeightLayout::OutIn)?, dtype })
    }

    /// A table that is also, or only, the weight of an output projection. Its vectors are in `dtype`, however it holds them.
    #[must_use]
    pub fn from_weight(weight: Weight, dtype: DType) -> Self {
        Self { weight, dtype }
    }

    /// (V, C)
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        let (c, v) = self.weight.shape();
        (v, c)
    }

    /// The dtype of the vectors.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device of the table.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.weight.device()
    }

    /// The vectors of some tokens.
    ///
    /// # Shapes
    /// `ids` (n), integers -> (n, C)
    ///
    /// # Errors
    /// When an id is not below V.
    pub fn vectors(&self, ids: &Tensor) -> Result<Tensor> {
        self.weight.columns(ids)?.to_dtype(self.dtype)
    }

    /// [`vectors`](Self::vectors) plus rows of a table of positions, by one kernel; `None` if there is none: see
    /// [`Weight::columns_and_positions`].
    pub(crate) fn with_positions(
        &self,
        ids: &Tensor,
        positions: &Tensor,
        first: usize,
        list: Option<&Tensor>,
    ) -> Result<Option<Tensor>> {
        if positions.dtype() != self.dtype {
            return Ok(None);
        }
        self.weight.columns_and_positions(ids, positions, first, list)
    }

    /// The table (V, C), which is a copy if it is frozen.
    ///
    /// # Errors
    /// When Candle cannot make the tensor.
    pub fn weight(&self) -> Result<Tensor> {
        self.weight.tensor()?.to_dtype(self.dtype)
    }
}
