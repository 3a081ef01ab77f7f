//! The names and roles of parameters, and the visitor that lists them.
//!
//! Each module lists its parameters in `visit`, next to the `load` that reads them. Loading, auditing, counting,
//! training and saving all use this one list. [`Config::parameters`](crate::Config::parameters) gives it without a
//! model.

use candle_core::{DType, Result, Tensor, TensorId};
use candle_fused::{PackedWeight, QuantizedWeight};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Display;
use std::rc::Rc;

/// The name of the output projection, the only parameter outside the transformer.
pub const LM_HEAD: &str = "lm_head.weight";

/// The name of the token embedding, which is also the output projection if the two are tied.
pub const WTE: &str = "wte.weight";

/// The name of the position embedding.
pub const WPE: &str = "wpe.weight";

/// The prefix that transformers' `GPT2LMHeadModel` puts before every name except [`LM_HEAD`].
pub const PREFIX: &str = "transformer.";

/// What a parameter does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// `wte`
    TokenEmbedding,
    /// `wpe`
    PositionEmbedding,
    /// W of a linear layer, or a part of it.
    LinearWeight,
    /// A factor of an adapter's update of a linear layer, see [`crate::lora`].
    LowRank,
    /// b of a linear layer.
    LinearBias,
    /// The weight of a layer norm.
    NormWeight,
    /// The bias of a layer norm.
    NormBias,
    /// `lm_head`
    OutputProjection,
}

/// A parameter of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parameter {
    /// The checkpoint's name without [`PREFIX`], such as `h.0.attn.c_attn.weight`.
    pub name: String,
    /// Its shape, as the checkpoint stores it: weights of blocks are (in, out), in gpt_bigcode (out, in).
    pub shape: Vec<usize>,
    /// What it does.
    pub role: Role,
    /// Whether it is a variable, so that an optimizer can change it.
    pub trainable: bool,
    /// The name of the parameter whose numbers it shares, if any. A tied parameter is neither counted nor saved.
    pub tied_to: Option<String>,
}

impl Parameter {
    /// How many numbers it has.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product()
    }
}

/// The numbers of a parameter.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Values {
    /// A plain tensor.
    Tensor(Tensor),
    /// A packed weight (in, out).
    Packed(PackedWeight),
    /// A weight or table (out, in) whose transpose is packed.
    PackedTransposed(PackedWeight),
    /// A quantized weight (in, out).
    Quantized(QuantizedWeight),
    /// A weight or table (out, in) whose transpose is quantized.
    QuantizedTransposed(QuantizedWeight),
}

/// What tells one parameter's memory from another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Id {
    Tensor(TensorId),
    Packed(u64),
    Quantized(u64),
}

impl Values {
    /// A plain tensor with the parameter's shape; a copy if the numbers are packed or quantized.
    ///
    /// # Errors
    /// When Candle cannot make the tensor.
    pub fn tensor(&self) -> Result<Tensor> {
        match self {
            Self::Tensor(tensor) => Ok(tensor.clone()),
            Self::Packed(weight) => weight.to_tensor(),
            Self::PackedTransposed(weight) => weight.to_transposed(),
            Self::Quantized(weight) => weight.to_tensor(),
            Self::QuantizedTransposed(weight) => weight.to_transposed(),
        }
    }

    /// The parameter's shape.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Tensor(tensor) => tensor.dims().to_vec(),
            Self::Packed(weight) => vec![weight.shape().0, weight.shape().1],
            Self::PackedTransposed(weight) => vec![weight.shape().1, weight.shape().0],
            Self::Quantized(weight) => vec![weight.shape().0, weight.shape().1],
            Self::QuantizedTransposed(weight) => vec![weight.shape().1, weight.shape().0],
        }
    }

    /// The dtype of the numbers; of quantized ones, the dtype of what they multiply.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match self {
            Self::Tensor(tensor) => tensor.dtype(),
            Self::Packed(weight) | Self::PackedTransposed(weight) => weight.dtype(),
            Self::Quantized(_) | Self::QuantizedTransposed(_) => DType::F32,
        }
    }

    fn is_variable(&self) -> bool {
        matches!(self, Self::Tensor(tensor) if tensor.is_variable())
    }

    pub(crate) fn id(&self) -> Id {
        match self {
            Self::Tensor(tensor) => Id::Tensor(tensor.id()),
            Self::Packed(weight) | Self::PackedTransposed(weight) => Id::Packed(weight.id()),
            Self::Quantized(weight) | Self::QuantizedTransposed(weight) => Id::Quantized(weight.id()),
        }
    }
}

/// Visits each parameter, with its place in the model. Numbers that it meets a second time are tied to the first.
pub struct Visitor<'a> {
    path: String,
    /// The names of the numbers that were shown.
    seen: Rc<RefCell<HashMap<Id, String>>>,
    visit: &'a mut dyn FnMut(Parameter, &Values),
}

impl<'a> Visitor<'a> {
    /// A visitor at the root that calls `visit`.
    pub fn new(visit: &'a mut dyn FnMut(Parameter, &Values)) -> Self {
        Self { path: String::new(), seen: Rc::default(), visit }
    }

    /// The place `name` below this one, like `VarBuilder::pp`.
    pub fn pp(&mut self, name: impl Display) -> Visitor<'_> {
        Visitor { path: self.name(name), seen: self.seen.clone(), visit: &mut *self.visit }
    }

    /// Reports a parameter at this place.
    pub fn parameter(&mut self, name: &str, role: Role, tensor: &Tensor) {
        self.values(name, role, &Values::Tensor(tensor.clone()));
    }

    /// Reports a parameter at this place, however its numbers lie.
    pub fn values(&mut self, name: &str, role: Role, values: &Values) {
        let (name, shape, trainable) = (self.name(name), values.shape(), values.is_variable());
        let tied_to = self.seen.borrow().get(&values.id()).cloned();
        if tied_to.is_none() {
            self.seen.borrow_mut().insert(values.id(), name.clone());
        }
        (self.visit)(Parameter { name, shape, role, trainable, tied_to }, values);
    }

    fn name(&self, name: impl Display) -> String {
        if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) }
    }
}
