//! The names and shapes of a checkpoint: one list for loading, auditing, counting and saving.

use crate::Config;

/// A parameter of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// The checkpoint's name without `transformer.`, such as `h.0.attn.c_attn.weight`.
    pub name: String,
    /// Its shape; Conv1D weights are (in, out).
    pub shape: Vec<usize>,
}

/// The name of the output projection, the one parameter beside the transformer.
pub const LM_HEAD: &str = "lm_head.weight";

/// The name of the token embedding, which is also the output projection where the two are tied.
pub const WTE: &str = "wte.weight";

impl Config {
    /// Every parameter of a checkpoint with this config, in the model's order; `lm_head.weight` stands
    /// last and only where it is not tied to `wte.weight`.
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        let (c, inner) = (self.n_embd, self.inner_dim());
        let mut list = Vec::new();
        let mut add = |name: String, shape: &[usize]| list.push(Parameter { name, shape: shape.to_vec() });
        add(WTE.into(), &[self.vocab_size, c]);
        add("wpe.weight".into(), &[self.n_positions, c]);
        for i in 0..self.n_layer {
            for (name, shape) in [
                ("ln_1.weight", &[c][..]),
                ("ln_1.bias", &[c]),
                ("attn.c_attn.weight", &[c, 3 * c]),
                ("attn.c_attn.bias", &[3 * c]),
                ("attn.c_proj.weight", &[c, c]),
                ("attn.c_proj.bias", &[c]),
                ("ln_2.weight", &[c]),
                ("ln_2.bias", &[c]),
                ("mlp.c_fc.weight", &[c, inner]),
                ("mlp.c_fc.bias", &[inner]),
                ("mlp.c_proj.weight", &[inner, c]),
                ("mlp.c_proj.bias", &[c]),
            ] {
                add(format!("h.{i}.{name}"), shape);
            }
        }
        add("ln_f.weight".into(), &[c]);
        add("ln_f.bias".into(), &[c]);
        if !self.tie_word_embeddings {
            add(LM_HEAD.into(), &[self.vocab_size, c]);
        }
        list
    }

    /// The number of parameters.
    #[must_use]
    pub fn parameter_count(&self) -> u64 {
        self.parameters().iter().map(|p| p.shape.iter().map(|&n| n as u64).product::<u64>()).sum()
    }

    /// The deviation of the projections that add to the residual stream, `initializer_range / sqrt(2L)`:
    /// Radford et al. 2019, §2.3, with one addition for each of the 2L sublayers.
    #[must_use]
    pub fn residual_stdev(&self) -> f64 {
        self.initializer_range / (2.0 * self.n_layer as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(config.parameter_count(), count, "{name}");
        }
    }
}
