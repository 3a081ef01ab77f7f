//! [`AdapterConfig`]: PEFT's `adapter_config.json`.

use gpt2_model::lora::LoraOptions;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The settings of a LoRA adapter, as PEFT 0.21 writes them. Fields that it does not have are refused by name if they
/// would change a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AdapterConfig {
    /// `LORA`; other methods are refused.
    pub peft_type: String,
    /// `CAUSAL_LM`, or `None` for an adapter of a bare model.
    #[serde(default)]
    pub task_type: Option<String>,
    /// The model that the adapter was trained on, by its folder or its name on the Hub.
    #[serde(default)]
    pub base_model_name_or_path: Option<String>,
    /// The rank of updates.
    #[serde(default = "eight")]
    pub r: usize,
    /// Updates are multiplied by `lora_alpha / r`.
    #[serde(default = "eight_f64", serialize_with = "whole_if_possible")]
    pub lora_alpha: f64,
    /// The probability of dropping a number of a layer's input, in training.
    #[serde(default)]
    pub lora_dropout: f64,
    /// Whether updates are multiplied by `lora_alpha / sqrt(r)` instead.
    #[serde(default)]
    pub use_rslora: bool,
    /// Whether weights are stored (in, out). PEFT decides this by the layer, and so does this crate.
    #[serde(default)]
    pub fan_in_fan_out: bool,
    /// The biases that are trained, which the adapter holds whole: `none`, `all`, or `lora_only` for those of layers with an update.
    #[serde(default = "none")]
    pub bias: String,
    /// The layers with an update.
    pub target_modules: ModulePatterns,
    /// Layers without one, whatever [`target_modules`](Self::target_modules) says.
    #[serde(default)]
    pub exclude_modules: Option<ModulePatterns>,
    /// The blocks whose layers have updates; all if `None` or empty.
    #[serde(default)]
    pub layers_to_transform: Option<OneOrMany<usize>>,
    /// The name of the list of blocks.
    #[serde(default)]
    pub layers_pattern: Option<OneOrMany<String>>,
    /// Other ranks, by a regular expression for the end of a layer's name; the first that matches counts.
    #[serde(default)]
    pub rank_pattern: Option<Patterns<usize>>,
    /// Other values of `lora_alpha`, likewise.
    #[serde(default, serialize_with = "each_whole_if_possible")]
    pub alpha_pattern: Option<Patterns<f64>>,
    /// Modules that the adapter holds whole.
    #[serde(default)]
    pub modules_to_save: Option<Vec<String>>,
    /// The initialization of the numbers. One that also changes the model's own weights is refused.
    #[serde(default = "yes")]
    pub init_lora_weights: Value,
    /// Everything else in the file.
    #[serde(flatten)]
    other: serde_json::Map<String, Value>,
}

/// The names of modules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ModulePatterns {
    /// Each is a module's whole name, or its end after a dot.
    List(Vec<String>),
    /// A regular expression for the whole name, or `all-linear`.
    Pattern(String),
}

/// A value, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    /// A single value.
    One(T),
    /// A list.
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    /// The values.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Many(values) => values,
        }
    }
}

/// Values by regular expressions, in the file's order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Patterns<T>(pub Vec<(String, T)>);

impl<T: Serialize> Serialize for Patterns<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Patterns<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for Visitor<T> {
            type Value = Patterns<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object of regular expressions and their values")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = vec![];
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Patterns(pairs))
            }
        }
        deserializer.deserialize_map(Visitor(std::marker::PhantomData))
    }
}

/// Writes 8 and not 8.0, as PEFT does.
#[allow(clippy::trivially_copy_pass_by_ref)] // serde's interface
fn whole_if_possible<S: serde::Serializer>(x: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    number(*x).serialize(serializer)
}

#[allow(clippy::ref_option)] // serde's interface
fn each_whole_if_possible<S: serde::Serializer>(
    patterns: &Option<Patterns<f64>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let numbers = |patterns: &Patterns<f64>| {
        Patterns(patterns.0.iter().map(|(key, x)| (key.clone(), number(*x))).collect())
    };
    patterns.as_ref().map(numbers).serialize(serializer)
}

fn number(x: f64) -> Value {
    #[allow(clippy::cast_possible_truncation)] // compared
    let whole = x as i64;
    #[allow(clippy::float_cmp)] // whether it is the same number
    if whole as f64 == x { whole.into() } else { x.into() }
}

fn eight() -> usize {
    8
}

fn eight_f64() -> f64 {
    8.0
}

const NONE: &str = "none";
/// The values of `bias` with trained biases: every one of the model, or those of layers with an update.
pub(super) const ALL: &str = "all";
pub(super) const LORA_ONLY: &str = "lora_only";

fn none() -> String {
    NONE.into()
}

fn yes() -> Value {
    true.into()
}

/// Other fields of PEFT's, whose values change no result.
const WITHOUT_EFFECT: [&str; 8] = [
    "auto_mapping",
    "inference_mode",
    "peft_version",
    "revision",
    "megatron_core",
    "qalora_group_size",
    "runtime_config",
    "eva_config",
];

/// Ways to begin that leave the model's own weights as they are.
const HARMLESS_INITS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// Why adapters of this kind are not supported; `None` for those that are.
pub(super) fn unsupported(peft_type: &str) -> Option<String> {
    (peft_type != "LORA").then(|| format!("peft_type is {peft_type}; only LORA is supported"))
}

impl AdapterConfig {
    /// The config of an adapter made with these options for a model of this name.
    #[must_use]
    pub fn new(options: &LoraOptions, base: Option<String>, fan_in_fan_out: bool) -> Self {
        Self {
            peft_type: "LORA".into(),
            task_type: Some("CAUSAL_LM".into()),
            base_model_name_or_path: base,
            r: options.r,
            lora_alpha: options.lora_alpha,
            lora_dropout: options.lora_dropout,
            use_rslora: options.use_rslora,
            fan_in_fan_out,
            bias: none(),
            target_modules: ModulePatterns::List(options.target_modules.clone()),
            exclude_modules: None,
            layers_to_transform: None,
            layers_pattern: None,
            rank_pattern: Some(Patterns::default()),
            alpha_pattern: Some(Patterns::default()),
            modules_to_save: None,
            init_lora_weights: yes(),
            other: [("inference_mode".to_string(), Value::from(true))].into_iter().collect(),
        }
    }

    /// Sets the revision of the base model on the Hub.
    #[must_use]
    pub fn with_revision(mut self, revision: Option<String>) -> Self {
        self.other.extend(revision.map(|revision| ("revision".to_string(), revision.into())));
        self
    }

    /// The first problem with the settings: a field that is not supported or not valid, its value, and the reason.
    pub(crate) fn problem(&self) -> Option<String> {
        if let Some(reason) = unsupported(&self.peft_type) {
            return Some(reason);
        }
        if let Some(task) = self.task_type.as_ref().filter(|task| *task != "CAUSAL_LM") {
            return Some(format!("task_type is {task}; only CAUSAL_LM is supported"));
        }
        if ![NONE, ALL, LORA_ONLY].contains(&self.bias.as_str()) {
            return Some(format!("bias is {:?}; expected {NONE}, {ALL} or {LORA_ONLY}", self.bias));
        }
        let harmless = match &self.init_lora_weights {
            Value::Bool(_) | Value::Null => true,
            Value::String(text) => HARMLESS_INITS.contains(&text.as_str()),
            _ => false,
        };
        if !harmless {
            return Some(format!(
                "init_lora_weights is {}, which also changes the model's own weights; save the adapter with PEFT's \
                 path_initial_model_for_weight_conversion, which makes a plain one of it",
                self.init_lora_weights
            ));
        }
        if self.r == 0 || !self.lora_alpha.is_finite() {
            return Some(format!(
                "r is {} and lora_alpha {}; expected at least 1 and a number",
                self.r, self.lora_alpha
            ));
        }
        if !(0.0..1.0).contains(&self.lora_dropout) {
            return Some(format!("lora_dropout is {}; expected at least 0 and below 1", self.lora_dropout));
        }
        let (name, value) = self
            .other
            .iter()
            .find(|(name, value)| !WITHOUT_EFFECT.contains(&name.as_str()) && !is_empty(value))?;
        Some(format!("{name} is {value}, which is not supported"))
    }
}

/// Whether a field with this value is off.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(values) => values.is_empty(),
        _ => false,
    }
}
