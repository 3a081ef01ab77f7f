//! The parameters of a model: one list, the model's own structure, for loading, auditing, counting, training and saving.
//!
//! Each module names its parameters in its `visit`, beside the `load` that reads them. A config's list is that of a model
//! whose tensors take no memory.

use crate::{Config, Gpt2LMHeadModel};
use candle_core::{DType, Device, Result, Shape, Tensor, Var};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use std::fmt::Display;

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

/// What is shown each parameter, at a place in the model.
pub struct Visitor<'a> {
    path: String,
    visit: &'a mut dyn FnMut(Parameter, &Tensor),
}

impl<'a> Visitor<'a> {
    /// A visitor at the root that calls `visit`.
    pub fn new(visit: &'a mut dyn FnMut(Parameter, &Tensor)) -> Self {
        Self { path: String::new(), visit }
    }

    /// The place `name` below this one, as `VarBuilder::pp`.
    pub fn pp(&mut self, name: impl Display) -> Visitor<'_> {
        Visitor { path: self.name(name), visit: &mut *self.visit }
    }

    /// A parameter of this place.
    pub fn parameter(&mut self, name: &str, role: Role, tensor: &Tensor) {
        self.show(name, role, tensor, None);
    }

    /// A parameter that is another one, `to`, by its name in a checkpoint.
    pub fn tied(&mut self, name: &str, role: Role, tensor: &Tensor, to: &str) {
        self.show(name, role, tensor, Some(to.to_string()));
    }

    fn show(&mut self, name: &str, role: Role, tensor: &Tensor, tied_to: Option<String>) {
        let (name, shape, trainable) = (self.name(name), tensor.dims().to_vec(), tensor.is_variable());
        (self.visit)(Parameter { name, shape, role, trainable, tied_to }, tensor);
    }

    fn name(&self, name: impl Display) -> String {
        if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) }
    }
}

impl Gpt2LMHeadModel {
    /// Every parameter under its name in a checkpoint, in the model's order: what is saved. A head that is tied to `wte` is
    /// not among them, nor is the `bias` triangle, a buffer.
    #[must_use]
    pub fn named_parameters(&self) -> Vec<(String, Tensor)> {
        let mut list = vec![];
        self.visit(&mut Visitor::new(&mut |parameter, tensor| {
            if parameter.tied_to.is_none() {
                list.push((parameter.name, tensor.clone()));
            }
        }));
        list
    }

    /// The parameters that are variables, by name: what an optimiser takes.
    ///
    /// # Errors
    /// When a variable cannot be held.
    pub fn named_variables(&self) -> Result<Vec<(String, Var)>> {
        let mut list = vec![];
        self.visit(&mut Visitor::new(&mut |parameter, tensor| {
            if parameter.tied_to.is_none() && parameter.trainable {
                list.push((parameter.name, tensor.clone()));
            }
        }));
        list.into_iter().map(|(name, tensor)| Ok((name, Var::from_tensor(&tensor)?))).collect()
    }
}

impl Config {
    /// Every parameter that a checkpoint with this config holds, in the model's order; `lm_head.weight` stands last and only
    /// where it is not tied to `wte.weight`.
    ///
    /// # Errors
    /// When the config is not valid.
    pub fn parameters(&self) -> Result<Vec<Parameter>> {
        Ok(self.parameters_and_ties()?.into_iter().filter(|p| p.tied_to.is_none()).collect())
    }

    /// As [`parameters`](Self::parameters), and those that are tied to another, each of which says so.
    ///
    /// # Errors
    /// When the config is not valid.
    pub fn parameters_and_ties(&self) -> Result<Vec<Parameter>> {
        let vb = VarBuilder::from_backend(Box::new(Blank), DType::F32, Device::Cpu);
        let mut list = vec![];
        Gpt2LMHeadModel::load(vb, self)?.visit(&mut Visitor::new(&mut |parameter, _| list.push(parameter)));
        Ok(list)
    }

    /// The number of parameters; a tied table counts once.
    ///
    /// # Errors
    /// When the config is not valid.
    pub fn parameter_count(&self) -> Result<u64> {
        Ok(self.parameters()?.iter().map(Parameter::count).sum())
    }

    /// The deviation of the projections that add to the residual stream, `initializer_range / sqrt(2L)`:
    /// Radford et al. 2019, §2.3, with one addition for each of the 2L sublayers.
    #[must_use]
    pub fn residual_stdev(&self) -> f64 {
        self.initializer_range / (2.0 * self.n_layer as f64).sqrt()
    }
}

/// Tensors of any shape that take no memory: one zero, repeated.
struct Blank;

impl SimpleBackend for Blank {
    fn get(&self, shape: Shape, _: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::zeros((), dtype, device)?.broadcast_as(shape)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("{name}: a blank model needs a shape, use `get`")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        false // as for random weights, every tensor is made when it is asked for
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init;
    use candle_nn::VarMap;

    #[test]
    fn the_presets_have_their_published_sizes() {
        for (name, count) in [
            ("distilgpt2", 81_912_576),
            ("gpt2", 124_439_808),
            ("gpt2-medium", 354_823_168),
            ("gpt2-large", 774_030_080),
            ("gpt2-xl", 1_557_611_200),
        ] {
            let config = Config::preset(name).expect("a preset");
            config.validate().expect("valid");
            assert_eq!(config.parameter_count().expect("valid"), count, "{name}");
        }
    }

    /// What a model asks its `VarBuilder` for is what it names, under the same names.
    #[test]
    fn what_is_loaded_is_what_is_visited() -> Result<()> {
        let tied =
            Config { n_layer: 3, n_head: 2, n_embd: 8, n_positions: 16, vocab_size: 11, ..Config::gpt2() };
        for config in [Config { tie_word_embeddings: false, n_inner: Some(20), ..tied.clone() }, tied] {
            let variables = VarMap::new();
            let vb = init::seeded_variables(5, &variables, DType::F32, &Device::Cpu);
            let model = Gpt2LMHeadModel::load(vb, &config)?;
            let mut loaded: Vec<(String, Vec<usize>)> = variables
                .data()
                .lock()
                .expect("not poisoned")
                .iter()
                .map(|(name, var)| (name.clone(), var.dims().to_vec()))
                .collect();
            let mut visited: Vec<_> = config.parameters()?.into_iter().map(|p| (p.name, p.shape)).collect();
            loaded.sort();
            visited.sort();
            assert_eq!(loaded, visited);
            assert_eq!(model.named_variables()?.len(), loaded.len());
        }
        Ok(())
    }

    #[test]
    fn a_tied_head_is_named_and_says_so() -> Result<()> {
        let config = Config { n_layer: 1, ..Config::gpt2() };
        let last = config.parameters_and_ties()?.pop().expect("parameters");
        assert_eq!((last.name.as_str(), last.tied_to.as_deref()), (LM_HEAD, Some(WTE)));
        Ok(())
    }
}
