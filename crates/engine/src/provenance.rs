//! The provenance of an output: the same facts in the terminal's first line, in JSON and in every file.

use crate::interventions::{Applied, Sources};
use crate::open::{Opened, UsedAdapter, attention_layer, device_name, rounds_to_tf32};
use crate::words::count;
use candle_core::DType;
use candle_fused::BlockFormat;
use gpt2_model::Implementation;
use gpt2_model::hooks::Intervention;
use gpt2_view::{visible_text, without_folders};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The facts that a result depends on: model, dtype, device, prompt, interventions, version.
#[derive(Debug, Clone, Serialize)]
pub struct RunProvenance {
    /// This program's version.
    gpt2: &'static str,
    /// `Python`, if a Python program asked for the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'static str>,
    /// The folder as the user gave it, the name with its commit, or the built-in model's name.
    pub model: String,
    /// The folder's absolute path.
    #[serde(skip_serializing_if = "Option::is_none")]
    folder: Option<PathBuf>,
    /// The commit on the Hub.
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
    /// The hash of each file of weights, if known without reading it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    weights: BTreeMap<String, String>,
    dtype: &'static str,
    /// Whether products in f32 round their inputs to TF32.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    tf32: bool,
    /// The formats of quantized weights.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    quantized: Vec<&'static str>,
    /// The adapters on the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    adapters: Vec<UsedAdapter>,
    /// Whether layer norms are folded into the layers that read them, and weights centered.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    processed: bool,
    /// The dtype of cached keys and values, if it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv: Option<&'static str>,
    device: String,
    /// The attention implementation that ran; `none` for results of the weights alone.
    implementation: &'static str,
    /// The prompt's tokens.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<u32>,
    /// The tokens of the corrupted prompt, beside which `ids` are the clean one's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub corrupt_ids: Vec<u32>,
    /// The number of layers of the model, and of heads in each.
    #[serde(skip)]
    size: (usize, usize),
    /// The chosen layers and heads, if the output is about particular ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    layers: Option<Vec<usize>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    heads: Option<Vec<usize>>,
    /// The interventions, as on the command line; empty if there are none.
    interventions: Vec<String>,
    /// The texts besides the prompt that the interventions take values from.
    #[serde(skip_serializing_if = "Sources::is_empty")]
    intervention_sources: Sources,
}

impl RunProvenance {
    /// The provenance of a run of the opened model over a prompt, or without one over any tokens.
    ///
    /// # Errors
    /// When no attention can run for it.
    pub fn new(opened: &Opened, ids: &[u32]) -> anyhow::Result<Self> {
        Ok(Self { ids: ids.to_vec(), ..Self::of_tokens(opened, ids.len().max(1))? })
    }

    /// The provenance of runs of the opened model over `t` tokens each.
    ///
    /// # Errors
    /// When no attention can run for them.
    pub fn of_tokens(opened: &Opened, t: usize) -> anyhow::Result<Self> {
        let config = opened.model.config();
        let dtype = opened.model.dtype();
        let implementation =
            attention_layer::implementation_of(config, (t, t, false), dtype, &opened.device)?.as_str();
        Ok(Self {
            gpt2: env!("CARGO_PKG_VERSION"),
            from: None,
            model: opened.name.clone(),
            folder: std::path::absolute(&opened.name).ok().filter(|dir| dir.is_dir()),
            commit: opened.commit().map(str::to_owned),
            weights: opened.files.as_ref().map(|files| files.verified.clone()).unwrap_or_default(),
            dtype: DType::as_str(&dtype),
            tf32: rounds_to_tf32(&opened.device),
            quantized: opened.formats.iter().copied().map(BlockFormat::as_str).collect(),
            adapters: opened.adapters.clone(),
            processed: opened.processed,
            kv: None,
            device: device_name(&opened.device),
            implementation,
            ids: vec![],
            corrupt_ids: vec![],
            size: (config.n_layer, config.n_head),
            layers: None,
            heads: None,
            interventions: vec![],
            intervention_sources: Sources::default(),
        })
    }

    /// The provenance of results that need only the weights, on the CPU.
    ///
    /// # Errors
    /// See [`RunProvenance::of_tokens`].
    pub fn of_weights(opened: &Opened) -> anyhow::Result<Self> {
        Ok(Self { device: "cpu".to_owned(), implementation: "none", ..Self::of_tokens(opened, 1)? })
    }

    /// This provenance of a result that a Python program asked for.
    #[must_use]
    pub fn from_python(self) -> Self {
        Self { from: Some("Python"), ..self }
    }

    /// This provenance under interventions that are known as words.
    #[must_use]
    pub fn with_texts(self, interventions: &[String]) -> Self {
        Self { interventions: interventions.to_vec(), ..self }
    }

    /// This provenance for the given layers and heads only.
    #[must_use]
    pub fn of(self, layers: &[usize], heads: &[usize]) -> Self {
        Self { layers: Some(layers.to_vec()), heads: Some(heads.to_vec()), ..self }
    }

    /// This provenance under the given interventions.
    #[must_use]
    pub fn under(self, applied: &Applied) -> Self {
        // On Metal, plain operations handle knocked-out keys.
        let hides = applied.list.iter().any(|one| matches!(one, Intervention::KnockOut(..)));
        let implementation = if hides && self.device.starts_with("metal") {
            Implementation::Eager.as_str()
        } else {
            self.implementation
        };
        let interventions = applied.texts.clone();
        let intervention_sources = applied.sources.clone();
        Self { implementation, interventions, intervention_sources, ..self }
    }

    /// One line: dtype, device, attention and interventions.
    #[must_use]
    pub fn caption(&self) -> String {
        let Self { dtype, tf32, device, implementation, interventions, quantized, adapters, kv, .. } = self;
        let processed = if self.processed { ", processed weights" } else { "" };
        let tf32 = if *tf32 { " with products in tf32" } else { "" };
        let weights = if quantized.is_empty() {
            String::new()
        } else {
            format!(", weights in {}", quantized.join(", "))
        };
        let kv = kv.map(|kv| format!(", cache in {kv}")).unwrap_or_default();
        let adapters: Vec<_> = adapters
            .iter()
            .map(|UsedAdapter { name, weight, .. }| format!(", adapter {name} x {weight}"))
            .collect();
        let adapters = adapters.concat();
        let what = match *implementation {
            "none" => "weights alone".to_owned(),
            ran => format!("{ran} attention"),
        };
        let ran = format!("{dtype}{tf32} on {device}{weights}{processed}{adapters}{kv}, {what}");
        if interventions.is_empty() { ran } else { format!("{ran}; {}", interventions.join(", ")) }
    }

    /// The line above results in a terminal: the model, the number of tokens, the caption; of chosen layers and heads, also
    /// how many the model has and which are shown.
    #[must_use]
    pub fn first_line(&self) -> String {
        let tokens = count(self.ids.len(), "token");
        let chosen = match (&self.layers, &self.heads) {
            (Some(layers), Some(heads)) => {
                let (all_layers, all_heads) = self.size;
                let chosen = [("layer", layers, all_layers), ("head", heads, all_heads)];
                let shown: Vec<String> = chosen
                    .into_iter()
                    .filter(|(_, some, all)| some.len() < *all)
                    .map(|(what, some, _)| {
                        format!("{what}{} {}", if some.len() == 1 { "" } else { "s" }, listed(some))
                    })
                    .collect();
                let shown =
                    if shown.is_empty() { shown.concat() } else { format!(" (shown: {})", shown.join(", ")) };
                format!(", {} of {}{shown}", count(all_layers, "layer"), count(all_heads, "head"))
            }
            _ => String::new(),
        };
        visible_text(&format!("{}: {tokens}{chosen}; {}", self.model, self.caption()))
    }

    /// The line of a result that is about more than one prompt: the model and the caption.
    #[must_use]
    pub fn model_line(&self) -> String {
        visible_text(&format!("{}: {}", self.model, self.caption()))
    }

    /// The form for the files that `gpt2-view` writes.
    ///
    /// # Errors
    /// When it cannot be written as JSON.
    pub fn for_files(&self) -> anyhow::Result<gpt2_view::Provenance> {
        let shared = self.shared();
        Ok(gpt2_view::Provenance { caption: shared.caption(), facts: serde_json::to_value(shared)? })
    }

    /// The metadata of a safetensors file.
    ///
    /// # Errors
    /// When it cannot be written as JSON.
    pub fn metadata(&self) -> anyhow::Result<Vec<(&'static str, String)>> {
        Ok(vec![("gpt2", self.gpt2.to_owned()), ("provenance", serde_json::to_string(&self.shared())?)])
    }

    /// These facts for a file that others will see: without the folders of this machine.
    #[must_use]
    pub fn shared(&self) -> Self {
        let mut shared = Self { model: without_folders(&self.model), folder: None, ..self.clone() };
        for adapter in &mut shared.adapters {
            adapter.name = without_folders(&adapter.name);
        }
        for text in &mut shared.interventions {
            *text = paths_without_folders(text);
        }
        if let Some(means) = &mut shared.intervention_sources.mean_of {
            means.file = means.file.as_ref().and_then(|path| Some(PathBuf::from(path.file_name()?)));
        }
        shared
    }
}

/// An intervention's text, with the last parts of the paths in it.
fn paths_without_folders(text: &str) -> String {
    let part = |part: &str| {
        let end = part.find([' ', '=', '*']).unwrap_or(part.len());
        let (path, after) = part.split_at(end);
        if path.contains('/') { without_folders(path) + after } else { part.to_owned() }
    };
    text.split_inclusive([' ', '=', '*']).map(part).collect()
}

/// Indices in order, with runs of them joined: `0-3,7`
fn listed(indices: &[usize]) -> String {
    let runs = indices.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        run => run.iter().map(usize::to_string).collect(),
    });
    runs.collect::<Vec<_>>().join(",")
}
