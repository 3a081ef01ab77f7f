//! The list of a model's parameters, read from the model's own structure, and their fingerprint. For a config, the list
//! comes from a model whose tensors take no memory.

use super::layers::parameters::{Parameter, Role, Values, Visitor, named_tensors};
use super::lm_head_model::Gpt2LMHeadModel;
use crate::config::Config;
use candle_core::{DType, Device, Result, Shape, Tensor, Var};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

impl Gpt2LMHeadModel {
    /// Every parameter under its name in a checkpoint, in the model's order, as it is saved. A head tied to `wte` is
    /// not included, nor is the `bias` triangle, which is a buffer. A frozen weight is copied only by
    /// [`Values::tensor`].
    #[must_use]
    pub fn named_parameters(&self) -> Vec<(String, Values)> {
        let mut list = vec![];
        self.visit(&mut Visitor::new(&mut |parameter, values| {
            if parameter.tied_to.is_none() {
                list.push((parameter.name, values.clone()));
            }
        }));
        list
    }

    /// [`named_parameters`](Self::named_parameters) as tensors, for [`candle_core::safetensors::save`] and other code that reads
    /// tensors by name. A frozen weight is copied, in f32 if it is quantized. The `bias` triangle is no parameter: each layer has it as
    /// [`attn.bias`](crate::CausalSelfAttention::bias).
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use gpt2_model::{Config, Gpt2LMHeadModel, init};
    /// use std::collections::HashMap;
    ///
    /// # fn main() -> candle_core::Result<()> {
    /// let config = Config { n_layer: 1, n_head: 1, n_embd: 4, n_positions: 4, vocab_size: 5, ..Config::gpt2() };
    /// let model = Gpt2LMHeadModel::load(init::seeded(0, DType::F32, &Device::Cpu), &config)?;
    /// let tensors: HashMap<String, Tensor> = model.named_tensors()?.into_iter().collect();
    /// assert_eq!(tensors["h.0.attn.c_attn.weight"].dims(), [4, 12]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When a frozen weight cannot be copied.
    pub fn named_tensors(&self) -> Result<Vec<(String, Tensor)>> {
        named_tensors(|visitor| self.visit(visitor))
    }

    /// The parameters that are variables, by name, for an optimizer.
    ///
    /// # Errors
    /// When a variable cannot be created.
    pub fn named_variables(&self) -> Result<Vec<(String, Var)>> {
        let mut list = vec![];
        self.visit(&mut Visitor::new(&mut |parameter, values| {
            if parameter.tied_to.is_none() && parameter.trainable {
                list.push((parameter.name, values.clone()));
            }
        }));
        list.into_iter().map(|(name, values)| Ok((name, Var::from_tensor(&values.tensor()?)?))).collect()
    }

    /// A fingerprint of the config and of the parameters' names and values (FNV-1a over their bits in f32): equal models have
    /// equal ones. It finds mistakes, not forgeries.
    ///
    /// # Errors
    /// When the device fails.
    pub fn fingerprint(&self) -> Result<u64> {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut add = |part: u32| hash = (hash ^ u64::from(part)).wrapping_mul(0x0100_0000_01b3);
        format!("{:?}", self.config()).bytes().for_each(|byte| add(byte.into()));
        for (name, values) in self.named_parameters() {
            name.bytes().for_each(|byte| add(byte.into()));
            let values = values.tensor()?.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
            values.flatten_all()?.to_vec1::<f32>()?.into_iter().for_each(|value| add(value.to_bits()));
        }
        Ok(hash)
    }

    /// The config of a checkpoint of this model: its head is tied only if `lm_head` is `wte` itself.
    #[must_use]
    pub fn checkpoint_config(&self) -> Config {
        Config { tie_word_embeddings: self.is_tied(), ..self.config().clone() }
    }

    /// Refuses a model whose parameters are not exactly those of its config, because a layer of another kind holds them.
    ///
    /// # Errors
    /// Names the first parameter that a model of this type does not have, the first that is missing, and the first of another shape or layout.
    pub fn check_layers(&self) -> Result<()> {
        let expected = self.checkpoint_config().parameters()?;
        let found = self.named_parameters();
        let other = found.iter().find(|(name, _)| !expected.iter().any(|p| p.name == *name));
        let missing = expected.iter().find(|p| !found.iter().any(|(name, _)| *name == p.name));
        let shape = |p: &&Parameter| found.iter().any(|(name, x)| *name == p.name && x.shape() != p.shape);
        let other_shape = expected.iter().find(shape);
        // A square weight has the same shape either way.
        let layout = self.config().weight_layout();
        let is_weight = |name: &str| {
            expected.iter().any(|parameter| parameter.name == name && parameter.role == Role::LinearWeight)
        };
        let turned = found.iter().find(|(name, x)| x.layout() != layout && is_weight(name));
        let other =
            other.map(|(name, _)| format!("{name} is not a parameter of {}", self.config().model_type));
        let missing = missing.map(|p| format!("the model has no {}", p.name));
        let shape = other_shape.map(|p| format!("{} is not {:?}", p.name, p.shape));
        let turned = turned
            .map(|(name, x)| format!("{name} is {:?}, but the checkpoint stores {layout:?}", x.layout()));
        let problems: Vec<String> = other.into_iter().chain(missing).chain(shape).chain(turned).collect();
        if problems.is_empty() {
            return Ok(());
        }
        candle_core::bail!("{}; put a dense layer in its place", problems.join("; "))
    }
}

impl Config {
    /// Every parameter that a checkpoint with this config holds, in the model's order; `lm_head.weight` comes last, and
    /// only if it is not tied to `wte.weight`.
    ///
    /// # Errors
    /// When the config is not valid.
    pub fn parameters(&self) -> Result<Vec<Parameter>> {
        Ok(self.parameters_and_ties()?.into_iter().filter(|p| p.tied_to.is_none()).collect())
    }

    /// Like [`parameters`](Self::parameters), but includes parameters that are tied to another and marks them as tied.
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
}

/// Tensors of any shape that take no memory: a single zero, repeated.
struct Blank;

impl SimpleBackend for Blank {
    fn get(&self, shape: Shape, _: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::zeros((), dtype, device)?.broadcast_as(shape)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("{name}: a blank model needs a shape, use `get`")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        false // as with random weights, every tensor is created on request
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::{Epilogue, LinearLayer};
    use crate::parameters::{LM_HEAD, WTE};
    use crate::{LmHead, init};
    use candle_nn::VarMap;
    use std::sync::Arc;

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

    /// A model loads from its `VarBuilder` exactly what it visits, under the same names.
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

    /// A user's head that computes with `wte` itself.
    #[derive(Debug)]
    struct OwnHead(Tensor);

    impl LinearLayer for OwnHead {
        fn shape(&self) -> (usize, usize) {
            (self.0.dims()[1], self.0.dims()[0])
        }
        fn forward(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
            epilogue.apply(x.broadcast_matmul(&self.0.t()?)?)
        }
        fn weight(&self) -> Result<Tensor> {
            self.0.t()
        }
        fn bias(&self) -> Option<&Tensor> {
            None
        }
        fn visit(&self, visitor: &mut Visitor) {
            visitor.parameter("weight", Role::OutputProjection, &self.0);
        }
    }

    #[test]
    fn an_own_head_that_shares_wte_is_counted_once() -> Result<()> {
        let config =
            Config { n_layer: 1, n_head: 2, n_embd: 8, n_positions: 16, vocab_size: 11, ..Config::gpt2() };
        let vb = init::seeded_variables(5, &VarMap::new(), DType::F32, &Device::Cpu);
        let mut model = Gpt2LMHeadModel::load(vb, &config)?;
        let count = model.named_variables()?.len();
        model.lm_head = LmHead::from_layer(Arc::new(OwnHead(model.transformer.wte.weight()?)));
        assert_eq!(model.named_variables()?.len(), count);
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
