//! [`LoraLinear`]: a linear layer of any kind with low-rank updates.

use super::update::Update;
use crate::Conv1D;
use crate::linear::{Epilogue, LinearLayer, WeightLayout};
use crate::parameters::{Role, Values, Visitor};
use crate::training::Training;
use candle_core::{Result, Tensor};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// `y = x·W + b + Σ scaling·dropout(x)·Aᵀ·Bᵀ` over one or more adapters, where W may be dense, packed or quantized.
#[derive(Debug, Clone)]
pub struct LoraLinear {
    base: Arc<dyn LinearLayer>,
    /// By the adapter's name.
    updates: Vec<(String, Update)>,
    stream: u32,
}

impl LoraLinear {
    /// `base` without updates. `stream`, below 2^20, tells the dropout of this layer from that of others; all updates of a layer
    /// share it, so train one at a time if they have dropout.
    ///
    /// # Errors
    /// When `stream` is too large.
    pub fn new(base: Arc<dyn LinearLayer>, stream: u32) -> Result<Self> {
        if stream >> 20 != 0 {
            candle_core::bail!("lora: the stream is {stream}, expected less than {}", 1 << 20)
        }
        Ok(Self { base, updates: vec![], stream })
    }

    /// The same layer with one more update, by an adapter of this name. It must be in the dtype and on the device of the
    /// layer's inputs.
    ///
    /// # Errors
    /// When the update has another shape than the layer, or the layer has one of that name.
    pub fn with(mut self, name: &str, update: Update) -> Result<Self> {
        if update.shape() != self.base.shape() {
            candle_core::bail!(
                "adapter {name}: its update is {:?} (in, out), the layer {:?}",
                update.shape(),
                self.base.shape()
            )
        }
        if self.updates.iter().any(|(held, _)| held == name) {
            candle_core::bail!("adapter {name}: the layer has one of that name")
        }
        self.updates.push((name.to_string(), update));
        Ok(self)
    }

    /// The layer without its updates.
    #[must_use]
    pub fn base(&self) -> &Arc<dyn LinearLayer> {
        &self.base
    }

    /// The updates, by the names of their adapters.
    #[must_use]
    pub fn updates(&self) -> &[(String, Update)] {
        &self.updates
    }

    /// W with all updates added, (in, out).
    ///
    /// # Errors
    /// When W is quantized: adding to it would round it once more.
    pub fn merged_weight(&self) -> Result<Tensor> {
        if is_quantized(&*self.base) {
            candle_core::bail!(
                "an adapter cannot be merged into quantized weights; merge it into the original, then quantize"
            )
        }
        self.weight()
    }

    /// What the updates add: (.., in) -> (.., out)
    fn updates_of(&self, x: &Tensor, training: Option<Training>) -> Result<Option<Tensor>> {
        let mut sum: Option<Tensor> = None;
        for (_, update) in &self.updates {
            let added = update.forward(x, training, self.stream)?;
            sum = Some(match sum {
                Some(sum) => (sum + added)?,
                None => added,
            });
        }
        Ok(sum)
    }
}

impl LinearLayer for LoraLinear {
    fn shape(&self) -> (usize, usize) {
        self.base.shape()
    }

    fn forward(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
        self.forward_training(x, epilogue, None)
    }

    fn forward_training(&self, x: &Tensor, epilogue: Epilogue, training: Option<Training>) -> Result<Tensor> {
        if let ([(_, update)], Epilogue::None | Epilogue::Gelu) = (&self.updates[..], epilogue) {
            let narrow = update.narrow(x, training, self.stream)?; // (.., r)
            return epilogue.apply(self.base.forward_low_rank(x, &narrow, update.b())?);
        }
        let Some(added) = self.updates_of(x, training)? else { return self.base.forward(x, epilogue) };
        // The base layer adds its product to the updates.
        match epilogue {
            Epilogue::Residual(residual) => self.base.forward(x, Epilogue::Residual(&(residual + added)?)),
            epilogue => epilogue.apply(self.base.forward(x, Epilogue::Residual(&added))?),
        }
    }

    fn forward_columns(&self, x: &Tensor, columns: Range<usize>) -> Result<Tensor> {
        let mut sum = self.base.forward_columns(x, columns.clone())?;
        for (_, update) in &self.updates {
            sum = (sum + update.of_columns(columns.clone())?.forward(x, None, self.stream)?)?;
        }
        Ok(sum)
    }

    /// W with all updates added: what the layer multiplies by.
    fn weight(&self) -> Result<Tensor> {
        let weight = self.base.weight()?;
        let mut sum = weight.to_dtype(candle_fused::accumulator(weight.dtype()))?;
        for (_, update) in &self.updates {
            sum = (sum + update.delta()?)?;
        }
        sum.to_dtype(weight.dtype())
    }

    fn bias(&self) -> Option<&Tensor> {
        self.base.bias()
    }

    fn layout(&self) -> WeightLayout {
        self.base.layout()
    }

    fn visit(&self, visitor: &mut Visitor) {
        self.base.visit(visitor);
        for (name, update) in &self.updates {
            visitor.pp("lora_A").parameter(&format!("{name}.weight"), Role::LowRank, update.a());
            visitor.pp("lora_B").parameter(&format!("{name}.weight"), Role::LowRank, update.b());
        }
    }
}

/// The layer as one with updates, if it is one.
pub(super) fn as_lora(layer: &Conv1D) -> Option<&LoraLinear> {
    (&**layer.layer() as &dyn Any).downcast_ref()
}

/// Whether a parameter of the layer is quantized.
fn is_quantized(layer: &dyn LinearLayer) -> bool {
    let mut quantized = false;
    layer.visit(&mut Visitor::new(&mut |_, values| {
        quantized |= matches!(values, Values::Quantized(_) | Values::QuantizedTransposed(_));
    }));
    quantized
}
