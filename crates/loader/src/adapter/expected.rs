//! The layers and tensors that an adapter's config calls for, given the model's config, by PEFT's rules for names.

use super::config::{ALL, AdapterConfig, LORA_ONLY, ModulePatterns, Patterns};
use fancy_regex::Regex;
use gpt2_model::Config;
use gpt2_model::lora::{linear_layers, tables};
use std::collections::{BTreeMap, BTreeSet};

/// The tensors that an adapter must hold.
#[derive(Debug, Default)]
pub(crate) struct ExpectedAdapter {
    /// By the layer's name.
    pub(crate) updates: BTreeMap<String, ExpectedUpdate>,
    /// The shapes of parameters that it holds whole, by their names in the model.
    pub(crate) replaced: BTreeMap<String, Vec<usize>>,
    /// The tensors that belong to a layer with an update.
    pub(crate) of_base: BTreeSet<String>,
}

/// The update of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpectedUpdate {
    pub(crate) rank: usize,
    /// (in, out) of the layer.
    pub(crate) shape: (usize, usize),
    pub(crate) scaling: f64,
}

impl ExpectedAdapter {
    /// For a model of this config, whose modules PEFT knew under names with this prefix (`transformer.`, or none).
    ///
    /// # Errors
    /// The field of the adapter's config that is wrong, and why.
    pub(crate) fn new(adapter: &AdapterConfig, model: &Config, prefix: &str) -> Result<Self, String> {
        let mut expected = Self::default();
        let layers = linear_layers(model).map_err(|e| e.to_string())?;
        for (layer, shape) in layers {
            let path = format!("{prefix}{layer}");
            if !is_target(adapter, &path)? {
                continue;
            }
            let (rank, scaling) = scaling(adapter, &path)?;
            expected.updates.insert(layer, ExpectedUpdate { rank, shape, scaling });
        }
        for (layer, shape) in tables(model) {
            let path = path_of(prefix, layer);
            if means_all_linear(&adapter.target_modules) || !is_target(adapter, &path)? {
                continue;
            }
            let (rank, scaling) = scaling(adapter, &path)?;
            expected.updates.insert(layer.to_owned(), ExpectedUpdate { rank, shape, scaling });
        }
        for parameter in model.parameters_and_ties().map_err(|e| e.to_string())? {
            let layer = parameter.name.strip_suffix(".bias");
            let is_adapted = layer.is_some_and(|layer| expected.updates.contains_key(layer));
            let is_trained = match adapter.bias.as_str() {
                ALL => layer.is_some(),
                LORA_ONLY => is_adapted,
                _ => false,
            };
            if is_trained && is_adapted {
                expected.of_base.insert(parameter.name.clone());
            }
            if is_trained || is_saved(adapter, &path_of(prefix, &parameter.name)) {
                expected.replaced.insert(parameter.name, parameter.shape);
            }
        }
        if expected.updates.is_empty() && expected.replaced.is_empty() {
            return Err(names_nothing(adapter));
        }
        Ok(expected)
    }

    /// The name in the file of a parameter that is held whole, whose `path` is PEFT's name.
    pub(crate) fn saved(&self, parameter: &str, path: String) -> String {
        match path.rsplit_once('.') {
            Some((layer, last)) if self.of_base.contains(parameter) => format!("{layer}.base_layer.{last}"),
            _ => path,
        }
    }

    /// Adds the base of a table with an update, which PEFT saves beside the update of an output projection.
    pub(crate) fn add_base(&mut self, layer: &str) {
        let Some(update) = self.updates.get(layer) else { return };
        let (n_in, n_out) = update.shape;
        let parameter = format!("{layer}.weight");
        self.of_base.insert(parameter.clone());
        self.replaced.insert(parameter, if layer == HEAD { vec![n_out, n_in] } else { vec![n_in, n_out] });
    }
}

/// The output projection, which lies outside the transformer.
const HEAD: &str = "lm_head";

/// PEFT's name of a module or a parameter.
pub(crate) fn path_of(prefix: &str, name: &str) -> String {
    let outside = name.strip_prefix(HEAD).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    if outside { name.to_owned() } else { format!("{prefix}{name}") }
}

/// The error about a config that chooses no layer.
fn names_nothing(adapter: &AdapterConfig) -> String {
    let shown = |value: &serde_json::Value| value.to_string();
    let value = |of: serde_json::Result<serde_json::Value>| of.as_ref().map(shown).unwrap_or_default();
    let targets = value(serde_json::to_value(&adapter.target_modules));
    let blocks = if adapter.layers_to_transform.as_ref().is_some_and(|blocks| !blocks.as_slice().is_empty()) {
        format!(
            " with layers_to_transform {} and layers_pattern {}",
            value(serde_json::to_value(&adapter.layers_to_transform)),
            value(serde_json::to_value(&adapter.layers_pattern))
        )
    } else {
        String::new()
    };
    format!(
        "target_modules is {targets}{blocks}, which names no layer of the model; expected some of c_attn, c_proj, c_fc, wte, wpe, lm_head"
    )
}

/// The rank and the scaling of the update of a layer.
pub(super) fn scaling(adapter: &AdapterConfig, path: &str) -> Result<(usize, f64), String> {
    let rank = of_pattern("rank_pattern", adapter.rank_pattern.as_ref(), path)?.unwrap_or(adapter.r);
    let alpha =
        of_pattern("alpha_pattern", adapter.alpha_pattern.as_ref(), path)?.unwrap_or(adapter.lora_alpha);
    if rank == 0 || !alpha.is_finite() {
        return Err(format!(
            "the rank of {path} is {rank} and its alpha {alpha}; expected at least 1 and a number"
        ));
    }
    let r = rank as f64;
    Ok((rank, alpha / if adapter.use_rslora { r.sqrt() } else { r }))
}

/// Whether a layer has an update.
fn is_target(adapter: &AdapterConfig, path: &str) -> Result<bool, String> {
    if let Some(excluded) = &adapter.exclude_modules
        && is_named(excluded, "exclude_modules", path)?
    {
        return Ok(false);
    }
    for module in adapter.modules_to_save.iter().flatten() {
        if matches("modules_to_save", &format!(r"^(?:(^|.*\.){module}($|\..*))"), path)? {
            return Ok(false);
        }
    }
    let all = means_all_linear(&adapter.target_modules);
    if !all && !is_named(&adapter.target_modules, "target_modules", path)? {
        return Ok(false);
    }
    // A layer that is listed by its whole name needs no block.
    if matches!(&adapter.target_modules, ModulePatterns::List(list) if list.iter().any(|name| name == path)) {
        return Ok(true);
    }
    let blocks = adapter.layers_to_transform.as_ref().map_or(&[][..], |blocks| blocks.as_slice());
    if blocks.is_empty() || (!all && matches!(adapter.target_modules, ModulePatterns::Pattern(_))) {
        return Ok(true);
    }
    let patterns = adapter.layers_pattern.as_ref().map_or(&[][..], |patterns| patterns.as_slice());
    let mut patterns: Vec<&str> =
        patterns.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
    // The first number counts. Without a pattern, a name must stand before the one before it, which a bare model's lack.
    let before = if patterns.is_empty() { r".*?\." } else { r"(?:^|.*?\.)" };
    if patterns.is_empty() {
        patterns.push(r"[^.]*");
    }
    for pattern in patterns {
        let regex = compiled("layers_pattern", &format!(r"^{before}{pattern}\.(?P<block>\d+)\."))?;
        let found = regex.captures(path).map_err(|e| format!("layers_pattern: {e}"))?;
        let block = found.and_then(|found| found.name("block")?.as_str().parse::<usize>().ok());
        if let Some(block) = block {
            return Ok(blocks.contains(&block));
        }
    }
    Ok(false)
}

fn means_all_linear(names: &ModulePatterns) -> bool {
    matches!(names, ModulePatterns::Pattern(text) if text.eq_ignore_ascii_case("all-linear"))
}

/// Whether names are meant to include a module's.
fn is_named(names: &ModulePatterns, field: &str, path: &str) -> Result<bool, String> {
    match names {
        ModulePatterns::List(list) => Ok(list.iter().any(|name| {
            path.strip_suffix(name.as_str()).is_some_and(|before| before.is_empty() || before.ends_with('.'))
        })),
        ModulePatterns::Pattern(pattern) => matches(field, &format!("^(?:{pattern})$"), path),
    }
}

/// The value of the first pattern that matches the end of a layer's name.
fn of_pattern<T: Copy>(field: &str, patterns: Option<&Patterns<T>>, path: &str) -> Result<Option<T>, String> {
    for (pattern, value) in patterns.iter().flat_map(|patterns| &patterns.0) {
        if matches(field, &format!(r"^(.*\.)?({pattern})$"), path)? {
            return Ok(Some(*value));
        }
    }
    Ok(None)
}

/// Whether the adapter holds a parameter whole: the name of a module above it ends like one of `modules_to_save`.
fn is_saved(adapter: &AdapterConfig, path: &str) -> bool {
    let modules = path.match_indices('.').map(|(end, _)| &path[..end]);
    modules
        .clone()
        .any(|module| adapter.modules_to_save.iter().flatten().any(|saved| module.ends_with(saved.as_str())))
}

fn matches(field: &str, pattern: &str, text: &str) -> Result<bool, String> {
    compiled(field, pattern)?.is_match(text).map_err(|e| format!("{field}: {e}"))
}

fn compiled(field: &str, pattern: &str) -> Result<Regex, String> {
    Regex::new(pattern).map_err(|e| format!("{field}: {e}"))
}
