//! [`Updates`]: the low-rank updates of one linear layer.

use super::linear::{Epilogue, Layer};
use super::low_rank_update::Update;
use super::parameters::{Role, Visitor};
use crate::learn::training::Training;
use candle_core::{Result, Tensor};
use std::ops::Range;

/// `y += Σ scaling·dropout(x)·Aᵀ·Bᵀ` over the adapters of a layer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Updates {
    /// By the adapter's name.
    updates: Vec<(String, Update)>,
    /// Tells the dropout of this layer from that of others.
    stream: u32,
}

impl Updates {
    /// These updates and one more, see [`Conv1D::with_update`](crate::Conv1D::with_update).
    pub(crate) fn with(&self, name: &str, update: Update, stream: u32) -> Result<Self> {
        if stream >> 20 != 0 {
            candle_core::bail!("lora: the stream is {stream}, expected less than {}", 1 << 20)
        }
        let mut updates = self.updates.clone();
        if updates.iter().any(|(held, _)| held == name) {
            candle_core::bail!("adapter {name}: the layer has one of that name")
        }
        if !updates.is_empty() && self.stream != stream {
            candle_core::bail!(
                "adapter {name}: the updates of a layer share a stream, which is {}",
                self.stream
            )
        }
        updates.push((name.to_string(), update));
        Ok(Self { updates, stream })
    }

    pub(crate) fn as_slice(&self) -> &[(String, Update)] {
        &self.updates
    }

    /// `x·W + b` by `layer`, all updates, then `epilogue`: (.., in) -> (.., out)
    pub(crate) fn forward(
        &self,
        layer: &Layer,
        x: &Tensor,
        epilogue: Epilogue,
        training: Option<Training>,
    ) -> Result<Tensor> {
        if let ([(_, update)], Epilogue::None | Epilogue::Activation(_)) = (&self.updates[..], epilogue) {
            let narrow = update.narrow(x, training, self.stream)?; // (.., r)
            return epilogue.apply(layer.forward_low_rank(x, &narrow, update.b(), training)?);
        }
        let mut sum: Option<Tensor> = None;
        for (_, update) in &self.updates {
            let added = update.forward(x, training, self.stream)?; // (.., out)
            sum = Some(match sum {
                Some(sum) => (sum + added)?,
                None => added,
            });
        }
        let layer = layer.get();
        // The layer adds its product to the updates.
        match (sum, epilogue) {
            (None, epilogue) => layer.forward_training(x, epilogue, training),
            (Some(sum), Epilogue::Residual(residual)) => {
                layer.forward_training(x, Epilogue::Residual(&(residual + sum)?), training)
            }
            (Some(sum), epilogue) => {
                epilogue.apply(layer.forward_training(x, Epilogue::Residual(&sum), training)?)
            }
        }
    }

    /// Adds the updates of some columns to those of a layer's output, `y` (.., `columns.len()`), without dropout.
    pub(crate) fn add_columns(&self, mut y: Tensor, x: &Tensor, columns: Range<usize>) -> Result<Tensor> {
        for (_, update) in &self.updates {
            y = (y + update.of_columns(columns.clone())?.forward(x, None, self.stream)?)?;
        }
        Ok(y)
    }

    /// Adds all updates to a layer's weight (in, out).
    pub(crate) fn add_to(&self, weight: Tensor) -> Result<Tensor> {
        if self.updates.is_empty() {
            return Ok(weight);
        }
        let mut sum = weight.to_dtype(candle_fused::accumulator(weight.dtype()))?;
        for (_, update) in &self.updates {
            sum = (sum + update.delta()?)?;
        }
        sum.to_dtype(weight.dtype())
    }

    pub(crate) fn visit(&self, visitor: &mut Visitor) {
        for (name, update) in &self.updates {
            visitor.pp("lora_A").parameter(&format!("{name}.weight"), Role::LowRank, update.a());
            visitor.pp("lora_B").parameter(&format!("{name}.weight"), Role::LowRank, update.b());
        }
    }
}
