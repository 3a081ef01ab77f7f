//! The names and roles of parameters, and the visitor that lists them.
//!
//! Each module lists its parameters in `visit`, next to the `load` that reads them. Loading, auditing, counting,
//! training and saving all use this one list. [`Config::parameters`](crate::Config::parameters) gives it without a
//! model.

use candle_core::{Result, Tensor};
use candle_fused::{Weight, WeightDType, WeightLayout};
use std::cell::RefCell;
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

/// A parameter's role in the model.
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
    /// Its role.
    pub role: Role,
    /// Whether it is a variable, so that an optimizer can change it.
    pub trainable: bool,
    /// The name of the parameter whose numbers it shares, if any. A tied parameter is neither counted nor saved.
    pub tied_to: Option<String>,
}

impl Parameter {
    /// The number of its elements.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product()
    }
}

/// The numbers of a parameter.
#[derive(Debug, Clone)]
pub enum Values {
    /// A tensor.
    Tensor(Tensor),
    /// The weight of a linear layer or a table.
    Weight(Weight),
}

impl Values {
    /// A tensor with the parameter's shape; a copy if the numbers are frozen, in f32 if they are quantized.
    ///
    /// # Errors
    /// When Candle cannot make the tensor.
    pub fn tensor(&self) -> Result<Tensor> {
        match self {
            Self::Tensor(tensor) => Ok(tensor.clone()),
            Self::Weight(weight) => weight.tensor(),
        }
    }

    /// The parameter's shape.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Tensor(tensor) => tensor.dims().to_vec(),
            Self::Weight(weight) => {
                let (n_in, n_out) = weight.shape();
                let (first, second) = weight.layout().shape(n_in, n_out);
                vec![first, second]
            }
        }
    }

    /// The dtype or quantized format of the numbers.
    #[must_use]
    pub fn dtype(&self) -> WeightDType {
        match self {
            Self::Tensor(tensor) => WeightDType::Plain(tensor.dtype()),
            Self::Weight(weight) => weight.dtype(),
        }
    }

    /// The axis order of a linear layer's weight.
    pub(crate) fn layout(&self) -> WeightLayout {
        match self {
            Self::Tensor(_) => WeightLayout::InOut,
            Self::Weight(weight) => weight.layout(),
        }
    }

    fn is_variable(&self) -> bool {
        match self {
            Self::Tensor(tensor) => tensor.is_variable(),
            Self::Weight(weight) => weight.is_variable(),
        }
    }

    /// Whether the two share their numbers.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tensor(a), Self::Tensor(b)) => a.id() == b.id(),
            (Self::Weight(a), Self::Weight(b)) => a.is(b),
            (Self::Tensor(tensor), Self::Weight(weight)) | (Self::Weight(weight), Self::Tensor(tensor)) => {
                weight.is_tensor(tensor)
            }
        }
    }
}

/// The parameters that `visit` names, each once, as tensors; a frozen weight is copied, in f32 if it is quantized.
///
/// # Errors
/// When Candle cannot make a tensor.
pub fn named_tensors(visit: impl FnOnce(&mut Visitor)) -> Result<Vec<(String, Tensor)>> {
    let mut list = vec![];
    visit(&mut Visitor::new(&mut |parameter, values| {
        if parameter.tied_to.is_none() {
            list.push((parameter.name, values.clone()));
        }
    }));
    list.into_iter().map(|(name, values)| Ok((name, values.tensor()?))).collect()
}

/// Visits each parameter, with its place in the model. Numbers that it meets a second time are tied to the first.
pub struct Visitor<'a> {
    path: String,
    /// The numbers that were shown, with their names.
    seen: Rc<RefCell<Vec<(Values, String)>>>,
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

    /// Reports the weight of a linear layer or a table at this place.
    pub fn weight(&mut self, name: &str, role: Role, weight: &Weight) {
        self.values(name, role, &Values::Weight(weight.clone()));
    }

    fn values(&mut self, name: &str, role: Role, values: &Values) {
        let name = self.name(name);
        let shape = values.shape();
        let trainable = values.is_variable();
        let mut seen = self.seen.borrow_mut();
        let tied_to = seen.iter().find(|(held, _)| held.is(values)).map(|(_, name)| name.clone());
        if tied_to.is_none() {
            seen.push((values.clone(), name.clone()));
        }
        drop(seen);
        (self.visit)(Parameter { name, shape, role, trainable, tied_to }, values);
    }

    fn name(&self, name: impl Display) -> String {
        if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) }
    }
}
