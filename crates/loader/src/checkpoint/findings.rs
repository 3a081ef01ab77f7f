//! [`Checkpoint::findings`]: what is unusual about a checkpoint that fits its config.

use crate::checkpoint::Checkpoint;
use crate::checkpoint::numbers::Numbers;
use crate::stored::TensorInfo;
use gpt2_model::parameters::{LM_HEAD, PREFIX, WTE};
use std::collections::BTreeMap;
use std::fmt;

/// Something unusual about a checkpoint, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// `"prefix"`, `"tying"`, `"mask buffers"`, `"dtypes"`, `"scale"`, `"zeros"` for [`Numbers::finding`], or `"note"` for each of [`Checkpoint::notes`].
    pub about: &'static str,
    /// A description of what the files hold.
    pub found: String,
    /// The meaning of this, and what can be done.
    pub advice: Advice,
}

impl Numbers {
    /// The weights that hold nothing but zeros, if there are any.
    #[must_use]
    pub fn finding(&self) -> Option<Finding> {
        const LISTED: usize = 3;
        let names = self.zeros.get(..LISTED.min(self.zeros.len()))?.join(", ");
        let more = if self.zeros.len() > LISTED { ", .." } else { "" };
        let found = format!("{} weights are nothing but zeros: {names}{more}", self.zeros.len());
        let advice = Advice::PerhapsUnfinished;
        (!self.zeros.is_empty()).then_some(Finding { about: "zeros", found, advice })
    }
}

/// The meaning of a [`Finding`], and what can be done. Displays in a library's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// There is nothing to do.
    Nothing,
    /// Names are read without their prefix.
    ReadWithoutPrefix,
    /// The two tables of a tied model are used as they are saved.
    UsedAsSaved,
    /// The embedding is filled from the output projection.
    FilledFromHead,
    /// If the model is meant to be tied, the config should say so.
    TieInConfig,
    /// Scores are computed as the config says.
    ComputedSo,
    /// Zeros may be meant, or be what an unfinished download leaves.
    PerhapsUnfinished,
    /// Buffers are neither loaded nor saved.
    NeverLoaded,
    /// Weights in f16, bf16 or blocks stay so in a model that is loaded in f32 on the CPU; all other numbers are converted to the
    /// dtype that the model is loaded in.
    Converted {
        /// Whether the files hold several dtypes.
        mixed: bool,
    },
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing to do",
            Self::ReadWithoutPrefix => "read without it; nothing to do",
            Self::UsedAsSaved => "each is used as saved, as transformers does",
            Self::FilledFromHead => "wte is filled from it",
            Self::TieInConfig => "set tie_word_embeddings to true in config.json if it is meant to be wte",
            Self::ComputedSo => "supported; nothing to do",
            Self::PerhapsUnfinished => {
                "an unfinished download leaves zeros: unless they are meant, compare the file's hash with the original's"
            }
            Self::NeverLoaded => "never loaded; gpt2_loader::save leaves them out (example `resave`)",
            Self::Converted { mixed: false } => {
                "weights in halves or blocks stay so in f32 on the CPU; all else is converted to the model's dtype"
            }
            Self::Converted { mixed: true } => {
                "mixed; weights in halves or blocks stay so in f32 on the CPU; all else is converted to the model's dtype"
            }
        })
    }
}

impl Checkpoint {
    /// Lists what is unusual about these files: names, tying, buffers, dtypes, scale. Needs only their headers.
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
        .chain(self.notes().into_iter().map(|found| Finding {
            about: "note",
            found,
            advice: Advice::Nothing,
        }))
        .collect()
    }

    fn tying(&self, tensors: &[(&str, &TensorInfo)]) -> Finding {
        let has = |name| tensors.iter().any(|(n, _)| *n == name);
        let (found, advice) = match (self.config().tie_word_embeddings, has(WTE), has(LM_HEAD)) {
            (true, _, false) => ("lm_head is wte (tie_word_embeddings)", Advice::Nothing),
            (true, true, true) => ("tied, and both wte and lm_head are saved", Advice::UsedAsSaved),
            (true, false, true) => ("tied, and saved as lm_head only", Advice::FilledFromHead),
            (false, _, true) => ("lm_head is a separate table", Advice::Nothing),
            (false, _, false) => ("not tied, and there is no lm_head", Advice::TieInConfig),
        };
        Finding { about: "tying", found: found.into(), advice }
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
        Some(Finding { about: "scale", found, advice: Advice::ComputedSo })
    }
}

fn prefix(tensors: &[(&str, &TensorInfo)]) -> Finding {
    let with = tensors.iter().filter(|(_, info)| info.name.starts_with(PREFIX)).count();
    let (found, advice) = match with {
        0 => (format!("no `{PREFIX}` before any name"), Advice::Nothing),
        n => (format!("`{PREFIX}` before {n} of {} names", tensors.len()), Advice::ReadWithoutPrefix),
    };
    Finding { about: "prefix", found, advice }
}

fn mask_buffers(buffers: &[TensorInfo]) -> Finding {
    let (found, advice) = if buffers.is_empty() {
        ("none saved".into(), Advice::Nothing)
    } else {
        let bytes: f64 = buffers.iter().map(bytes).sum();
        let mut dtypes: Vec<String> = buffers.iter().map(|t| t.dtype.to_string()).collect();
        dtypes.sort();
        dtypes.dedup();
        let found = format!("{} in {}, {:.1} MB", buffers.len(), dtypes.join(", "), bytes / 1e6);
        (found, Advice::NeverLoaded)
    };
    Finding { about: "mask buffers", found, advice }
}

fn dtypes(tensors: &[(&str, &TensorInfo)], buffers: &[TensorInfo]) -> Finding {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (_, info) in tensors.iter().filter(|(_, info)| !buffers.contains(info)) {
        *counts.entry(info.dtype.to_string()).or_default() += 1;
    }
    let found: Vec<String> = counts.iter().map(|(dtype, n)| format!("{n} in {dtype}")).collect();
    let advice = Advice::Converted { mixed: counts.len() > 1 };
    Finding { about: "dtypes", found: found.join(", "), advice }
}

fn bytes(info: &TensorInfo) -> f64 {
    let numbers: f64 = info.shape.iter().map(|&n| n as f64).product();
    numbers * info.dtype.bits() / 8.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored::Encoding;
    use safetensors::Dtype;

    #[test]
    fn mask_buffers_are_not_counted_among_the_dtypes() {
        let info = |name: &str, dtype, shape: &[usize]| TensorInfo {
            name: name.into(),
            dtype: Encoding::Plain(dtype),
            shape: shape.to_vec(),
            file: "a".into(),
        };
        let weights = [info("h.0.ln_1.weight", Dtype::F16, &[2]), info("h.0.ln_1.bias", Dtype::F16, &[2])];
        let triangle = [1, 1, 1000, 1000];
        let buffers = [
            info("h.0.attn.bias", Dtype::U8, &triangle),
            info("h.0.attn.masked_bias", Dtype::F32, &[]),
            info("h.1.attn.bias", Dtype::F32, &triangle),
        ];
        let all: Vec<_> = weights.iter().chain(&buffers).map(|info| (info.name.as_str(), info)).collect();
        let Finding { found, advice, .. } = dtypes(&all, &buffers);
        assert_eq!((&*found, advice), ("2 in F16", Advice::Converted { mixed: false }));
        // A million numbers in one byte and a million in four.
        assert_eq!(mask_buffers(&buffers).found, "3 in F32, U8, 5.0 MB");

        let Finding { found, advice, .. } = dtypes(&all, &[]);
        assert_eq!(found, "2 in F16, 2 in F32, 1 in U8");
        assert!(advice.to_string().starts_with("mixed"), "{advice}");
    }
}
