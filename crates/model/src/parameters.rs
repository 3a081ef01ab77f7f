//! The names of parameters, what they do, and who is shown them.
//!
//! Each module names its parameters in its `visit`, beside the `load` that reads them: one list, for loading, auditing,
//! counting, training and saving. [`Config::parameters`](crate::Config::parameters) is that list without a model.

use candle_core::{Tensor, TensorId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Display;
use std::rc::Rc;

/// The name of the output projection, the one parameter beside the transformer.
pub const LM_HEAD: &str = "lm_head.weight";

/// The name of the token embedding, which is also the output projection where the two are tied.
pub const WTE: &str = "wte.weight";

/// The name of the position embedding.
pub const WPE: &str = "wpe.weight";

/// What `GPT2LMHeadModel` of transformers writes before every name but [`LM_HEAD`].
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
    /// b of a linear layer.
    LinearBias,
    /// The factor of a layer norm.
    NormWeight,
    /// The summand of a layer norm.
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
    /// Its shape; Conv1D weights are (in, out).
    pub shape: Vec<usize>,
    /// What it does.
    pub role: Role,
    /// Whether it is a variable, which an optimiser can change.
    pub trainable: bool,
    /// The name of the parameter that it shares its numbers with; then it is neither counted nor saved.
    pub tied_to: Option<String>,
}

impl Parameter {
    /// How many numbers it has.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product()
    }
}

/// What is shown each parameter, at a place in the model. A tensor that is shown a second time is tied to the first.
pub struct Visitor<'a> {
    path: String,
    /// The names of the tensors that were shown.
    seen: Rc<RefCell<HashMap<TensorId, String>>>,
    visit: &'a mut dyn FnMut(Parameter, &Tensor),
}

impl<'a> Visitor<'a> {
    /// A visitor at the root that calls `visit`.
    pub fn new(visit: &'a mut dyn FnMut(Parameter, &Tensor)) -> Self {
        Self { path: String::new(), seen: Rc::default(), visit }
    }

    /// The place `name` below this one, as `VarBuilder::pp`.
    pub fn pp(&mut self, name: impl Display) -> Visitor<'_> {
        Visitor { path: self.name(name), seen: self.seen.clone(), visit: &mut *self.visit }
    }

    /// A parameter of this place.
    pub fn parameter(&mut self, name: &str, role: Role, tensor: &Tensor) {
        let (name, shape, trainable) = (self.name(name), tensor.dims().to_vec(), tensor.is_variable());
        let tied_to = self.seen.borrow().get(&tensor.id()).cloned();
        if tied_to.is_none() {
            self.seen.borrow_mut().insert(tensor.id(), name.clone());
        }
        (self.visit)(Parameter { name, shape, role, trainable, tied_to }, tensor);
    }

    fn name(&self, name: impl Display) -> String {
        if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) }
    }
}
