//! `lm_head`, which turns the last hidden state into logits: `x·Wᵀ` with W (V, C).

use crate::embedding::Embedding;
use crate::linear::{Epilogue, LinearLayer};
use crate::parameters::{Role, Values, Visitor};
use candle_core::{D, DType, Module, Result, Tensor};
use candle_fused::Dispatch;
use std::sync::Arc;

/// The output projection. Clones share the weight.
#[derive(Debug, Clone)]
pub struct LmHead(Kind);

#[derive(Debug, Clone)]
enum Kind {
    /// W, (V, C)
    Table(Embedding),
    Layer(Arc<dyn LinearLayer>),
}

impl LmHead {
    /// A dense projection with this table.
    ///
    /// # Shapes
    /// `weight` (V, C)
    ///
    /// # Errors
    /// When `weight` does not have rank 2.
    pub fn new(weight: Tensor) -> Result<Self> {
        Ok(Self::of(Embedding::of_projection(weight)?))
    }

    /// A projection with this table; it is tied if the table is `wte`.
    #[must_use]
    pub fn of(table: Embedding) -> Self {
        Self(Kind::Table(table))
    }

    /// A layer of any kind from C to V, see [`crate::linear`].
    #[must_use]
    pub fn from_layer(layer: Arc<dyn LinearLayer>) -> Self {
        Self(Kind::Layer(layer))
    }

    /// (in, out), which is (C, V).
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        match &self.0 {
            Kind::Table(table) => (table.shape().1, table.shape().0),
            Kind::Layer(layer) => layer.shape(),
        }
    }

    /// W, (V, C); a copy if it is packed or quantized.
    ///
    /// # Errors
    /// When the layer cannot produce a dense weight.
    pub fn weight(&self) -> Result<Tensor> {
        match &self.0 {
            Kind::Table(table) => table.weight(),
            Kind::Layer(layer) => layer.weight()?.t(),
        }
    }

    /// The direction of a token's logit, (C): its row of W.
    ///
    /// # Errors
    /// When the token is not below V, or the layer cannot produce a dense weight.
    pub fn direction(&self, token: u32) -> Result<Tensor> {
        match &self.0 {
            Kind::Table(table) => table.vectors(&Tensor::new(&[token], table.device())?)?.squeeze(0),
            Kind::Layer(layer) => layer.weight()?.t()?.get(token as usize),
        }
    }

    /// Whether the table is this one.
    pub(crate) fn shares(&self, wte: &Embedding) -> bool {
        matches!(&self.0, Kind::Table(table) if table.shares_memory(wte))
    }

    /// The mean cross-entropy in nats of predicting `targets` from `x`. With a dense table, the logits are never all in
    /// memory at once where `dispatch` has a kernel; see [`candle_fused::linear_cross_entropy`].
    ///
    /// # Shapes
    /// `x` (B, T, C), `targets` (B, T) -> scalar
    ///
    /// # Errors
    /// When a shape does not fit, or a target is not below V.
    pub fn cross_entropy(&self, x: &Tensor, targets: &Tensor, dispatch: Dispatch) -> Result<Tensor> {
        match &self.0 {
            Kind::Table(table) => match table.values() {
                Values::Tensor(table) => candle_fused::linear_cross_entropy(x, &table, targets, dispatch),
                // The parts' logits would all stay in the graph.
                Values::QuantizedTransposed(weight) if x.track_op() => weight.cross_entropy(x, targets),
                Values::PackedTransposed(weight) if x.track_op() && x.dtype() == DType::F32 => {
                    weight.cross_entropy(x, targets)
                }
                packed if x.track_op() => {
                    candle_fused::linear_cross_entropy(x, &packed.tensor()?, targets, dispatch)
                }
                _ => self.cross_entropy_in_parts(x, targets),
            },
            Kind::Layer(_) => crate::training::cross_entropy(&self.forward(x)?, targets),
        }
    }

    /// The mean cross-entropy, from the logits of a few rows at a time.
    fn cross_entropy_in_parts(&self, x: &Tensor, targets: &Tensor) -> Result<Tensor> {
        const ROWS: usize = 256;
        let (x, targets) = (x.reshape(((), x.dim(D::Minus1)?))?, targets.flatten_all()?); // (rows, C), (rows)
        let rows = x.dim(0)?;
        if targets.elem_count() != rows {
            candle_core::bail!(
                "cross-entropy: {rows} rows need as many targets, got {}",
                targets.elem_count()
            )
        }
        let mut sum: Option<Tensor> = None;
        for first in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - first);
            let logits = self.forward(&x.narrow(0, first, count)?)?; // (count, V)
            let logits = logits.to_dtype(candle_fused::accumulator(logits.dtype()))?;
            let mean = candle_fused::cross_entropy(&logits, &targets.narrow(0, first, count)?)?;
            #[allow(clippy::cast_precision_loss)] // shares of rows
            let part = (mean * (count as f64 / rows as f64))?;
            sum = Some(sum.map_or_else(|| Ok(part.clone()), |sum| sum + &part)?);
        }
        sum.ok_or_else(|| candle_core::Error::msg("cross-entropy: there are no rows"))
    }

    /// Names the parameters.
    pub fn visit(&self, visitor: &mut Visitor) {
        match &self.0 {
            Kind::Table(table) => visitor.values("weight", Role::OutputProjection, &table.values()),
            Kind::Layer(layer) => layer.visit(visitor),
        }
    }
}

impl Module for LmHead {
    /// Logits.
    ///
    /// # Shapes
    /// `x` (.., C) -> (.., V)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.0 {
            Kind::Table(table) => table.logits(x),
            Kind::Layer(layer) => layer.forward(x, Epilogue::None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};

    /// More rows than a part has; a packed table gives the loss and the gradient of the plain one.
    #[test]
    fn the_loss_is_the_same_however_the_table_lies() -> Result<()> {
        let numbers = |shape: (usize, usize), step: usize| {
            let values = (0..shape.0 * shape.1).map(|i| ((i * step % 97) as f32 - 48.0) / 60.0);
            Tensor::from_iter(values, &Device::Cpu)?.reshape(shape)
        };
        let table = numbers((70, 12), 31)?;
        let dispatch = Dispatch::of(candle_fused::Implementation::Auto, &table);
        for count in [1u32, 257, 600] {
            let rows = count as usize;
            let x = numbers((rows, 12), 17)?.reshape((1, rows, 12))?;
            let targets =
                Tensor::from_iter((0..count).map(|i| i * 7 % 70), &Device::Cpu)?.reshape((1, rows))?;
            let expected =
                candle_fused::linear_cross_entropy(&x, &table, &targets, dispatch)?.to_scalar::<f32>()?;
            let head = LmHead::new(table.clone())?;
            assert!(
                matches!(&head.0, Kind::Table(table) if matches!(table.values(), Values::PackedTransposed(_)))
            );
            let got = head.cross_entropy(&x, &targets, dispatch)?.to_scalar::<f32>()?;
            assert!((got - expected).abs() < 1e-5, "{rows} rows: {got}, not {expected}");
            let gradient = |table: &dyn Fn(&Tensor) -> Result<Tensor>| -> Result<Vec<f32>> {
                let var = Var::from_tensor(&x)?;
                let gradients = table(var.as_tensor())?.backward()?;
                gradients.get(&var).expect("a gradient").flatten_all()?.to_vec1()
            };
            let got = gradient(&|x| head.cross_entropy(x, &targets, dispatch))?;
            let expected_gradient =
                gradient(&|x| candle_fused::linear_cross_entropy(x, &table, &targets, dispatch))?;
            let largest = expected_gradient.iter().fold(0f32, |most, x| most.max(x.abs()));
            for (got, expected) in got.iter().zip(&expected_gradient) {
                assert!((got - expected).abs() <= 1e-5 * largest, "{rows} rows: {got}, not {expected}");
            }
            let half = LmHead::new(table.to_dtype(DType::BF16)?)?;
            let got =
                half.cross_entropy(&x.to_dtype(DType::BF16)?, &targets, dispatch)?.to_scalar::<f32>()?;
            assert!((got - expected).abs() < 0.02, "{rows} rows in bf16: {got}, not {expected}");
            let more = Tensor::zeros((1, rows + 1), DType::U32, &Device::Cpu)?;
            let error = head.cross_entropy(&x, &more, dispatch).expect_err("one too many").to_string();
            assert!(error.contains(&(rows + 1).to_string()), "{error}");
        }
        Ok(())
    }
}
