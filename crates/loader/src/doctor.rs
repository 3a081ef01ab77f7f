//! [`Checkpoint::findings`]: what is particular about a checkpoint that fits its config.

use crate::{Checkpoint, TensorInfo};
use gpt2_model::parameters::{LM_HEAD, PREFIX, WTE};
use serde::Serialize;
use std::collections::BTreeMap;

/// One thing about a checkpoint, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// `"prefix"`, `"tying"`, `"mask buffers"`, `"dtypes"` or `"scale"`.
    pub about: &'static str,
    /// What the files hold.
    pub found: String,
    /// What that means, and what can be done.
    pub remedy: String,
}

impl Checkpoint {
    /// What is particular about these files: names, tying, buffers, dtypes, scale. Needs their headers only.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let tensors: Vec<(&str, &TensorInfo)> = self.tensors().collect();
        let buffers = self.audit().buffers;
        [
            Some(prefix(&tensors)),
            Some(self.tying(&tensors)),
            Some(mask_buffers(&buffers)),
            Some(dtypes(&tensors, &buffers)),
            self.scale(),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn tying(&self, tensors: &[(&str, &TensorInfo)]) -> Finding {
        let has = |name| tensors.iter().any(|(n, _)| *n == name);
        let (found, remedy) = match (self.config().tie_word_embeddings, has(WTE), has(LM_HEAD)) {
            (true, _, false) => ("lm_head is wte (tie_word_embeddings)", "nothing to do"),
            (true, true, true) => {
                ("tied, and both wte and lm_head are saved", "each is used as saved, as transformers does")
            }
            (true, false, true) => ("tied, and saved as lm_head only", "wte is filled from it"),
            (false, _, true) => ("lm_head is a table of its own", "nothing to do"),
            (false, _, false) => (
                "not tied, and there is no lm_head",
                "set tie_word_embeddings to true in config.json if it is meant to be wte",
            ),
        };
        Finding { about: "tying", found: found.into(), remedy: remedy.into() }
    }

    fn scale(&self) -> Option<Finding> {
        let config = self.config();
        let mut flags = vec![];
        if !config.scale_attn_weights {
            flags.push("scale_attn_weights is false: scores are not divided by sqrt(head_dim)");
        }
        if config.scale_attn_by_inverse_layer_idx {
            flags.push("scale_attn_by_inverse_layer_idx: scores are divided by the layer's number");
        }
        if config.reorder_and_upcast_attn {
            flags.push("reorder_and_upcast_attn: scores are in f32 here anyway");
        }
        let found = (!flags.is_empty()).then(|| flags.join("; "))?;
        Some(Finding { about: "scale", found, remedy: "computed so; nothing to do".into() })
    }
}

fn prefix(tensors: &[(&str, &TensorInfo)]) -> Finding {
    let with = tensors.iter().filter(|(_, info)| info.name.starts_with(PREFIX)).count();
    let (found, remedy) = match with {
        0 => ("no `transformer.` before any name".to_string(), "nothing to do"),
        n => (
            format!("`transformer.` before {n} of {} names", tensors.len()),
            "read without it; nothing to do",
        ),
    };
    Finding { about: "prefix", found, remedy: remedy.into() }
}

fn mask_buffers(buffers: &[TensorInfo]) -> Finding {
    let (found, remedy) = if buffers.is_empty() {
        ("none saved".into(), "nothing to do")
    } else {
        let bytes: f64 = buffers.iter().map(bytes).sum();
        let mut dtypes: Vec<String> = buffers.iter().map(|t| t.dtype.to_string()).collect();
        dtypes.sort();
        dtypes.dedup();
        let found = format!("{} in {}, {:.1} MB", buffers.len(), dtypes.join(", "), bytes / 1e6);
        (found, "never loaded; gone from what gpt2_loader::save writes (example `resave`)")
    };
    Finding { about: "mask buffers", found, remedy: remedy.into() }
}

fn dtypes(tensors: &[(&str, &TensorInfo)], buffers: &[TensorInfo]) -> Finding {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (_, info) in tensors.iter().filter(|(_, info)| !buffers.contains(info)) {
        *counts.entry(info.dtype.to_string()).or_default() += 1;
    }
    let found: Vec<String> = counts.iter().map(|(dtype, n)| format!("{n} in {dtype}")).collect();
    let remedy = match counts.len() {
        0 | 1 => "converted to --dtype as they are read",
        _ => "mixed; each is converted to --dtype as it is read",
    };
    Finding { about: "dtypes", found: found.join(", "), remedy: remedy.into() }
}

fn bytes(info: &TensorInfo) -> f64 {
    let numbers: f64 = info.shape.iter().map(|&n| n as f64).product();
    numbers * info.dtype.bitsize() as f64 / 8.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::Dtype;

    #[test]
    fn mask_buffers_are_not_counted_among_the_dtypes() {
        let info =
            |name: &str, dtype| TensorInfo { name: name.into(), dtype, shape: vec![2], file: "a".into() };
        let weights = [info("h.0.ln_1.weight", Dtype::F16), info("h.0.ln_1.bias", Dtype::F16)];
        let buffers = [info("h.0.attn.bias", Dtype::U8), info("h.0.attn.masked_bias", Dtype::F32)];
        let all: Vec<_> = weights.iter().chain(&buffers).map(|info| (info.name.as_str(), info)).collect();
        let Finding { found, remedy, .. } = dtypes(&all, &buffers);
        assert_eq!((&*found, &*remedy), ("2 in F16", "converted to --dtype as they are read"));
        assert_eq!(mask_buffers(&buffers).found, "2 in F32, U8, 0.0 MB");

        let Finding { found, remedy, .. } = dtypes(&all, &[]);
        assert_eq!(found, "2 in F16, 1 in F32, 1 in U8");
        assert!(remedy.starts_with("mixed"), "{remedy}");
    }
}
