//! The layers and tensors that an adapter's config calls for, given the model's config, by PEFT's rules for names; and
//! [`AdapterAudit`], which compares the adapter's tensors with these.

use super::config::{AdapterConfig, Names, Patterns};
use crate::audit::Mismatch;
use crate::stored::TensorInfo;
use fancy_regex::Regex;
use gpt2_model::Config;
use gpt2_model::lora::linear_layers;
use std::collections::BTreeMap;
use std::fmt;

/// The tensors that an adapter must hold.
#[derive(Debug, Default)]
pub(super) struct Expected {
    /// By the layer's name.
    pub(super) updates: BTreeMap<String, ExpectedUpdate>,
    /// The shapes of parameters that it holds whole, by their names in the model.
    pub(super) replaced: BTreeMap<String, Vec<usize>>,
}

/// The update of a layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExpectedUpdate {
    pub(super) rank: usize,
    /// (in, out) of the layer.
    pub(super) shape: (usize, usize),
    pub(super) scaling: f64,
}

impl Expected {
    /// For a model of this config, whose modules PEFT knew under names with this prefix (`transformer.`, or none).
    ///
    /// # Errors
    /// The field of the adapter's config that is wrong, and why.
    pub(super) fn new(adapter: &AdapterConfig, model: &Config, prefix: &str) -> Result<Self, String> {
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
        for parameter in model.parameters_and_ties().map_err(|e| e.to_string())? {
            let outside = parameter.name == gpt2_model::parameters::LM_HEAD;
            let path = if outside { parameter.name.clone() } else { format!("{prefix}{}", parameter.name) };
            if is_saved(adapter, &path) {
                expected.replaced.insert(parameter.name, parameter.shape);
            }
        }
        if expected.updates.is_empty() && expected.replaced.is_empty() {
            return Err(format!(
                "target_modules is {}, which names no layer of the model",
                serde_json::to_string(&adapter.target_modules).unwrap_or_default()
            ));
        }
        Ok(expected)
    }
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
    let all =
        matches!(&adapter.target_modules, Names::Pattern(text) if text.eq_ignore_ascii_case("all-linear"));
    if !all && !is_named(&adapter.target_modules, "target_modules", path)? {
        return Ok(false);
    }
    // A layer that is listed by its whole name needs no block.
    if matches!(&adapter.target_modules, Names::List(list) if list.iter().any(|name| name == path)) {
        return Ok(true);
    }
    let blocks = adapter.layers_to_transform.as_ref().map_or(&[][..], |blocks| blocks.as_slice());
    if blocks.is_empty() || (!all && matches!(adapter.target_modules, Names::Pattern(_))) {
        return Ok(true);
    }
    let patterns = adapter.layers_pattern.as_ref().map_or(&[][..], |patterns| patterns.as_slice());
    let mut patterns: Vec<&str> =
        patterns.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
    if patterns.is_empty() {
        patterns.push(r"[^.]*");
    }
    for pattern in patterns {
        let regex = compiled("layers_pattern", &format!(r"^(?:.*\.{pattern}\.(\d+)\.)"))?;
        let found = regex.captures(path).map_err(|e| format!("layers_pattern: {e}"))?;
        let block = found.and_then(|found| found.get(1)?.as_str().parse::<usize>().ok());
        if let Some(block) = block {
            return Ok(blocks.contains(&block));
        }
    }
    Ok(false)
}

/// Whether names are meant to include a module's.
fn is_named(names: &Names, field: &str, path: &str) -> Result<bool, String> {
    match names {
        Names::List(list) => Ok(list.iter().any(|name| {
            path.strip_suffix(name.as_str()).is_some_and(|before| before.is_empty() || before.ends_with('.'))
        })),
        Names::Pattern(pattern) => matches(field, &format!("^(?:{pattern})$"), path),
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

/// The differences between an adapter's tensors and those that its config calls for in a model.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct AdapterAudit {
    /// The adapter.
    pub name: String,
    /// The model, by the name that the adapter's config gives its base, if any.
    pub base: Option<String>,
    /// Tensors that the file lacks: PEFT's name and the shape.
    pub missing: Vec<(String, Vec<usize>)>,
    /// Tensors that the config does not call for.
    pub unexpected: Vec<TensorInfo>,
    /// Tensors of another shape, or of a dtype that is not a float.
    pub mismatched: Vec<Mismatch>,
    /// Tensors with numbers that are not finite: PEFT's name, and how many there are.
    pub not_finite: Vec<(String, usize)>,
}

impl AdapterAudit {
    /// Whether the adapter fits.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.has_the_tensors() && self.not_finite.is_empty()
    }

    /// Whether every tensor is there in its shape, whatever its numbers are.
    fn has_the_tensors(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.mismatched.is_empty()
    }
}

impl fmt::Display for AdapterAudit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return write!(f, "{}: every tensor that its config calls for is there, and no other", self.name);
        }
        let found = if self.has_the_tensors() {
            "the adapter is damaged"
        } else {
            "the adapter does not fit its config and the model"
        };
        write!(f, "{}: {found}", self.name)?;
        for (name, shape) in &self.missing {
            write!(f, "\n  missing     {name} {shape:?}")?;
        }
        for t in &self.unexpected {
            write!(f, "\n  unexpected  {} {} {:?}", t.name, t.dtype, t.shape)?;
        }
        for m in &self.mismatched {
            let t = &m.found;
            write!(
                f,
                "\n  mis-shaped  {} {} {:?}, expected a float dtype and {:?}",
                t.name, t.dtype, t.shape, m.expected
            )?;
        }
        for (name, count) in &self.not_finite {
            write!(f, "\n  not finite  {name}: {count} of its numbers are NaN or infinite")?;
        }
        if self.has_the_tensors() {
            return f.write_str("\nfetch it again, or train it again with a lower learning rate");
        }
        f.write_str("\ncheck that the adapter is complete and was trained on this model")?;
        match &self.base {
            Some(base) => write!(f, "; its config names {base}"),
            None => Ok(()),
        }
    }
}
