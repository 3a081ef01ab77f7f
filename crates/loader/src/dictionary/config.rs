//! [`DictionaryConfig`]: what `cfg.json` says, in the form of SAELens 6 and in older ones.

use gpt2_model::hooks::Point;
use serde_json::{Map, Value};
use std::fmt;

/// SAELens' `architecture`: the rule by which a dictionary selects features, and whether it is a transcoder, which
/// predicts another value than it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Architecture {
    /// `standard`: ReLU.
    Standard,
    /// `gated`
    Gated,
    /// `jumprelu`, as which SAELens also writes BatchTopK and Matryoshka dictionaries.
    JumpRelu,
    /// `topk`
    TopK,
    /// `abstopk`: the largest by size, with their signs.
    AbsTopK,
    /// `transcoder`: ReLU.
    Transcoder,
    /// `skip_transcoder`: with a linear map beside.
    SkipTranscoder,
    /// `jumprelu_transcoder`
    JumpReluTranscoder,
    /// `jumprelu_skip_transcoder`
    JumpReluSkipTranscoder,
}

/// Each with its name in `cfg.json`.
const ARCHITECTURES: [(Architecture, &str); 9] = [
    (Architecture::Standard, "standard"),
    (Architecture::Gated, "gated"),
    (Architecture::JumpRelu, "jumprelu"),
    (Architecture::TopK, "topk"),
    (Architecture::AbsTopK, "abstopk"),
    (Architecture::Transcoder, "transcoder"),
    (Architecture::SkipTranscoder, "skip_transcoder"),
    (Architecture::JumpReluTranscoder, "jumprelu_transcoder"),
    (Architecture::JumpReluSkipTranscoder, "jumprelu_skip_transcoder"),
];

impl Architecture {
    /// Whether it predicts another value than it reads.
    #[must_use]
    pub fn is_transcoder(self) -> bool {
        use Architecture::{JumpReluSkipTranscoder, JumpReluTranscoder, SkipTranscoder, Transcoder};
        matches!(self, Transcoder | SkipTranscoder | JumpReluTranscoder | JumpReluSkipTranscoder)
    }

    /// Whether it has `W_skip`.
    pub(super) fn skips(self) -> bool {
        matches!(self, Self::SkipTranscoder | Self::JumpReluSkipTranscoder)
    }

    /// Whether each feature has a threshold.
    pub(super) fn has_threshold(self) -> bool {
        matches!(self, Self::JumpRelu | Self::JumpReluTranscoder | Self::JumpReluSkipTranscoder)
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ARCHITECTURES.iter().find(|(one, _)| one == self).map_or("", |(_, name)| name))
    }
}

/// SAELens' `normalize_activations`: the normalization of a dictionary's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Normalization {
    /// `none`. Also `expected_average_only_in` and `covariance_whitening`, which SAELens folds into the weights.
    None,
    /// `layer_norm`
    LayerNorm,
    /// `constant_norm_rescale`
    ConstantNorm,
}

/// The settings of a dictionary in `cfg.json`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DictionaryConfig {
    /// The rule by which it selects features.
    pub architecture: Architecture,
    /// The width of what it reads.
    pub d_in: usize,
    /// The number of features.
    pub d_sae: usize,
    /// The width of what it reconstructs.
    pub d_out: usize,
    /// The value that it reads.
    pub hook: Point,
    /// The value that it reconstructs.
    pub hook_out: Point,
    /// The number of features that `topk` and `abstopk` select.
    pub k: Option<usize>,
    /// Whether `topk` selects by activation times the norm of the feature's row of `W_dec`.
    pub rescale_acts_by_decoder_norm: bool,
    /// Whether `b_dec` is subtracted first.
    pub apply_b_dec_to_input: bool,
    /// The normalization of its input.
    pub normalization: Normalization,
    /// Whether it was trained on a stream of mean 0: `center_writing_weights` in `model_from_pretrained_kwargs`.
    pub centered: bool,
    /// The model on which it was trained.
    pub model_name: Option<String>,
    /// Whether the texts on which it was trained began with the end-of-text token; old files that do not say are taken to mean yes,
    /// as in SAELens.
    pub prepend_bos: bool,
    /// Remarks for the user on settings whose meaning the file leaves in doubt.
    pub remarks: Vec<String>,
}

/// The JSON object, whose settings older files call otherwise, and newer ones put into `metadata`.
struct ConfigFields<'a>(&'a Map<String, Value>);

impl ConfigFields<'_> {
    /// A setting by its names, the newest first; `null` counts as missing.
    fn get(&self, names: &[&str]) -> Option<&Value> {
        let metadata = self.0.get("metadata").and_then(Value::as_object);
        let maps = || std::iter::once(self.0).chain(metadata);
        let of = |name: &&str| maps().find_map(|map| map.get(*name).filter(|value| !value.is_null()));
        names.iter().find_map(of)
    }

    fn size(&self, name: &str) -> Result<usize, String> {
        match self.get(&[name]).map(Value::as_u64) {
            Some(Some(size)) if size > 0 => usize::try_from(size).map_err(|_| format!("{name} is too large")),
            Some(_) => Err(format!("{name} is not a whole number above 0")),
            None => Err(format!("{name} is missing; expected the cfg.json of a SAELens dictionary")),
        }
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool, String> {
        let value = self.get(&[name]).map_or(Some(default), Value::as_bool);
        value.ok_or_else(|| format!("{name} is neither true nor false"))
    }

    fn text(&self, names: &[&str]) -> Result<Option<&str>, String> {
        match self.get(names).map(Value::as_str) {
            Some(None) => Err(format!("{} is not a string", names[0])),
            Some(found) => Ok(found),
            None => Ok(None),
        }
    }

    fn point(&self, names: &[&str]) -> Result<Option<Point>, String> {
        let Some(name) = self.text(names)? else { return Ok(None) };
        let point = name.parse().map_err(|_| {
            format!("{} is {name}, which is no hook of GPT-2; gpt2 inspect --points lists them", names[0])
        });
        point.map(Some)
    }

    /// The architecture, and k.
    fn architecture(&self) -> Result<(Architecture, Option<usize>), String> {
        let name = self.text(&["architecture"])?.unwrap_or("standard");
        let known = || ARCHITECTURES.map(|(_, name)| name).join(", ");
        let found = ARCHITECTURES.iter().find(|(_, known)| *known == name).map(|(one, _)| *one);
        let architecture =
            found.ok_or_else(|| format!("its architecture is {name}; supported are {}", known()))?;
        // Before 6, a TopK dictionary was a standard one with another activation function.
        let function = self.text(&["activation_fn", "activation_fn_str"])?.unwrap_or("relu");
        let of_function = self.get(&["activation_fn_kwargs"]).and_then(|kwargs| kwargs.get("k"));
        let k = match self.get(&["k"]).or(of_function) {
            Some(k) => {
                let k = k.as_u64().and_then(|k| usize::try_from(k).ok());
                Some(k.ok_or("k is not a whole number")?)
            }
            None => None,
        };
        let architecture = match (architecture, function) {
            (Architecture::Standard | Architecture::TopK, "topk") => Architecture::TopK,
            (other, "relu") | (other @ Architecture::AbsTopK, "topk") => other,
            (other, "topk") => {
                return Err(format!("its activation_fn is topk, which does not go with {other}"));
            }
            (_, other) => return Err(format!("its activation_fn is {other}; supported are relu and topk")),
        };
        if !matches!(architecture, Architecture::TopK | Architecture::AbsTopK) {
            return Ok((architecture, None));
        }
        k.map_or_else(
            || Err(format!("k is missing, which {architecture} needs")),
            |k| Ok((architecture, Some(k))),
        )
    }

    fn centered(&self) -> Result<bool, String> {
        let kwargs = self.get(&["model_from_pretrained_kwargs"]);
        match kwargs.and_then(|kwargs| kwargs.get("center_writing_weights")) {
            None | Some(Value::Null) => Ok(false),
            Some(value) => {
                value.as_bool().ok_or_else(|| "center_writing_weights is neither true nor false".into())
            }
        }
    }

    /// Refuses a dictionary of a value that TransformerLens had changed by rewriting the model's weights.
    fn check_processing(&self, hook: Point) -> Result<(), String> {
        let of_values = matches!(hook, Point::V(_) | Point::Z(_));
        let of_scores = matches!(hook, Point::Q(_) | Point::K(_));
        for (name, changes) in
            [("fold_value_biases", of_values), ("refactor_factored_attn_matrices", of_values || of_scores)]
        {
            let kwargs = self.get(&["model_from_pretrained_kwargs"]);
            let is_on = kwargs.and_then(|kwargs| kwargs.get(name)).and_then(Value::as_bool);
            if changes && is_on == Some(true) {
                return Err(format!("{name}: it was trained on another {hook} than the model has"));
            }
        }
        Ok(())
    }

    fn remarks(&self, hook: Point) -> Vec<String> {
        let mut remarks = vec![];
        let names = ["expected_average_only_in", "covariance_whitening"];
        let given = self.get(&["normalize_activations"]).and_then(Value::as_str).unwrap_or_default();
        if names.contains(&given) {
            remarks.push(format!(
                "cfg.json says {given}, so it may not be folded into the weights: then activations are on another scale"
            ));
        }
        if matches!(hook, Point::Ln1Normalized(_) | Point::Ln2Normalized(_)) {
            remarks.push(format!(
                "{hook} is read before the layer norm's weight and bias; if TransformerLens 2 had it after them in training, write \
                 ln1.hook_out or ln2.hook_out into cfg.json"
            ));
        }
        remarks
    }

    fn normalization(&self) -> Result<Normalization, String> {
        match self.get(&["normalize_activations"]) {
            None | Some(Value::Bool(_)) => Ok(Normalization::None),
            Some(value) => match value.as_str() {
                Some("none" | "expected_average_only_in" | "covariance_whitening") => Ok(Normalization::None),
                Some("layer_norm") => Ok(Normalization::LayerNorm),
                Some("constant_norm_rescale") => Ok(Normalization::ConstantNorm),
                _ => Err(format!(
                    "normalize_activations is {value}; supported are none, layer_norm, constant_norm_rescale, and what is \
                     folded into the weights: expected_average_only_in, covariance_whitening"
                )),
            },
        }
    }
}

impl DictionaryConfig {
    /// Reads the settings from a JSON object.
    ///
    /// # Errors
    /// Names the setting that is missing, wrong or not supported.
    pub(super) fn new(json: &Map<String, Value>) -> Result<Self, String> {
        let settings = ConfigFields(json);
        let (architecture, k) = settings.architecture()?;
        let is_transcoder = architecture.is_transcoder();
        let d_in = settings.size("d_in")?;
        let hook = settings.point(&["hook_name", "hook_point"])?;
        let hook = hook.ok_or("hook_name is missing: which value does it read?")?;
        let hook_out = settings.point(&["hook_name_out"])?;
        if settings.get(&["hook_head_index", "hook_point_head_index"]).is_some() {
            return Err("hook_head_index: dictionaries of a single head are not supported".into());
        }
        // The layer's MLP, if it reads what goes into that.
        let hook_out = match (is_transcoder, hook_out, hook) {
            (false, ..) => hook,
            (true, Some(out), _) => out,
            (true, None, Point::MlpIn(layer) | Point::Ln2Normalized(layer) | Point::Ln2(layer)) => {
                Point::MlpOut(layer)
            }
            (true, None, _) => {
                return Err("hook_name_out is missing: which value does the transcoder predict?".into());
            }
        };
        settings.check_processing(hook)?;
        settings.check_processing(hook_out)?;
        let apply_b_dec_to_input = settings.flag("apply_b_dec_to_input", !is_transcoder)?;
        if is_transcoder && apply_b_dec_to_input {
            return Err("apply_b_dec_to_input: a transcoder's b_dec belongs to its output alone".into());
        }
        let centered = match settings.centered()? {
            true if is_transcoder => {
                return Err(
                    "center_writing_weights: transcoders of a centered model are not supported".into()
                );
            }
            centered => centered,
        };
        Ok(Self {
            architecture,
            d_in,
            d_sae: settings.size("d_sae")?,
            d_out: if is_transcoder { settings.size("d_out")? } else { d_in },
            hook,
            hook_out,
            k,
            rescale_acts_by_decoder_norm: settings.flag("rescale_acts_by_decoder_norm", false)?,
            apply_b_dec_to_input,
            normalization: settings.normalization()?,
            centered,
            model_name: settings.text(&["model_name"])?.map(str::to_owned),
            prepend_bos: settings.flag("prepend_bos", !json.contains_key("metadata"))?,
            remarks: settings.remarks(hook),
        })
    }
}
