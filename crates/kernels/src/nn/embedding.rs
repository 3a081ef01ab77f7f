//! [`Embedding`]: the vectors of tokens, and the output layer that shares them.

use super::linear::Linear;
use super::weight_format::held;
use crate::linear::weight::{Weight, WeightLayout};
use candle_core::{DType, Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};

/// A table of V vectors (V, C): `candle_nn::Embedding`, packed like a [`Linear`], so that an output layer can share its memory.
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_fused::nn::Embedding;
///
/// # fn main() -> candle_core::Result<()> {
/// let table = Embedding::new(Tensor::new(&[[1f32, 0.], [0., 2.], [3., 3.]], &Device::Cpu)?, 2)?;
/// let x = table.forward(&Tensor::new(&[[2u32, 1]], &Device::Cpu)?)?; // (1, 2, 2)
/// assert_eq!(x.to_vec3::<f32>()?, [[[3., 3.], [0., 2.]]]);
/// let logits = table.as_linear()?.forward(&x)?; // (1, 2, 3)
/// assert_eq!(logits.to_vec3::<f32>()?, [[[3., 6., 18.], [0., 4., 6.]]]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Embedding {
    table: Weight,
    /// Of the vectors, however the table is held.
    dtype: DType,
}

impl Embedding {
    /// Packs the table if it does not learn.
    ///
    /// # Shapes
    /// `embeddings` (V, `hidden_size`)
    ///
    /// # Errors
    /// When the table has another shape.
    pub fn new(embeddings: Tensor, hidden_size: usize) -> Result<Self> {
        if embeddings.dims2()?.1 != hidden_size {
            candle_core::bail!(
                "embedding: expected vectors of {hidden_size} numbers, got a table of {:?}",
                embeddings.dims()
            )
        }
        let dtype = embeddings.dtype();
        Ok(Self { table: Weight::new(embeddings, WeightLayout::OutIn)?, dtype })
    }

    /// With vectors that come out in `dtype`, however `table` (C, V) is held.
    pub(super) fn of(table: Weight, dtype: DType) -> Self {
        Self { table, dtype }
    }

    /// The table as a weight (C, V).
    #[must_use]
    pub fn weight(&self) -> &Weight {
        &self.table
    }

    /// The table (V, C): a copy if it is packed.
    ///
    /// # Errors
    /// When Candle cannot make the tensor.
    pub fn embeddings(&self) -> Result<Tensor> {
        self.table.tensor()
    }

    /// C
    #[must_use]
    pub fn hidden_size(&self) -> usize {
        self.table.shape().0
    }

    /// The output layer with this table as its weight, in the same memory: (.., C) -> (.., V). One with a bias is
    /// `Linear::from_weight(table.weight().clone(), Some(bias))`, in the same memory as well.
    ///
    /// # Errors
    /// Never for a table that [`new`](Self::new) took.
    pub fn as_linear(&self) -> Result<Linear> {
        Linear::from_weight(self.table.clone(), None)
    }
}

impl Module for Embedding {
    /// `ids`, integers of any shape (..) -> (.., C), in the dtype in which the table was given or loaded
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let of_table = |error: candle_core::Error| {
            let (width, count) = self.table.shape();
            error.context(format!("embedding: an id is not in a table of {count} vectors of {width} numbers"))
        };
        let vectors = self.table.columns(&ids.flatten_all()?).map_err(of_table)?.to_dtype(self.dtype)?; // (n, C)
        vectors.reshape([ids.dims(), &[self.hidden_size()]].concat())
    }
}

impl TryFrom<candle_nn::Embedding> for Embedding {
    type Error = candle_core::Error;

    fn try_from(layer: candle_nn::Embedding) -> Result<Self> {
        Self::new(layer.embeddings().clone(), layer.hidden_size())
    }
}

/// Loads `weight` (`in_size`, `out_size`), drawn as `candle_nn::embedding` draws it where a variable is made.
///
/// # Errors
/// When the tensor is missing or has another shape.
pub fn embedding(in_size: usize, out_size: usize, vb: VarBuilder) -> Result<Embedding> {
    let init = Init::Randn { mean: 0., stdev: 1. };
    let embeddings = vb.get_with_hints((in_size, out_size), "weight", init)?;
    let dtype = embeddings.dtype();
    Ok(Embedding { table: held(embeddings, &vb)?, dtype })
}
