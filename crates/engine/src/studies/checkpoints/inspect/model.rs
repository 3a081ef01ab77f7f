//! A model's checkpoint: its config and tensors, and whether they match.

use crate::observer::{Observer, steps};
use crate::spelling::Spelling;
use gpt2_loader::{Advice, Audit, Checkpoint, Files, Finding, GenerationConfig, TensorInfo};
use gpt2_model::Config;
use serde::Serialize;
use serde_json::{Map, Value};

/// The content of a checkpoint.
#[derive(Debug, Serialize)]
pub struct ModelReport {
    /// The model's name.
    pub model: String,
    /// Its config.
    pub config: Config,
    /// The content of `generation_config.json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation_config: Option<EndTokens>,
    /// The number of parameters.
    pub parameters: u64,
    /// The memory that they take.
    pub memory_bytes: MemoryByDtype,
    /// The differences between the tensors and what the config asks for.
    pub audit: Verdict,
    /// Facts about the files that a reader should know.
    pub findings: Vec<FindingRow>,
    /// All tensors of the files.
    pub tensors: Vec<TensorRow>,
    /// The audit in words.
    #[serde(skip)]
    pub audit_text: String,
}

/// The end tokens of `generation_config.json`, which are used, and the settings that are not.
#[derive(Debug, Serialize)]
pub struct EndTokens {
    /// The tokens that end a text.
    pub eos_token_id: Vec<u32>,
    /// The settings that would change a text, and are not used.
    pub unused: Map<String, Value>,
}

/// The memory of the parameters in each dtype.
#[derive(Debug, Serialize)]
pub struct MemoryByDtype {
    /// In f32.
    pub f32: u64,
    /// In f16.
    pub f16: u64,
    /// In bf16.
    pub bf16: u64,
}

/// The differences between a checkpoint's tensors and what its config asks for, by name.
#[derive(Debug, Serialize)]
pub struct Verdict {
    /// Whether there is none that matters.
    pub clean: bool,
    /// Parameters without a tensor.
    pub missing: Vec<String>,
    /// Tensors that GPT-2 does not have.
    pub unexpected: Vec<String>,
    /// Tensors that are not used.
    pub unused: Vec<String>,
    /// Tensors of another shape.
    pub mismatched: Vec<String>,
    /// Tensors that stand in the files twice.
    pub duplicates: Vec<String>,
    /// Tensors with NaN or infinity; `None` if only the headers were read.
    pub not_finite: Option<Vec<String>>,
    /// Buffers of the mask.
    pub buffers: Vec<String>,
}

/// A finding about the files, and what can be done.
#[derive(Debug, Serialize)]
pub struct FindingRow {
    /// Its subject.
    pub about: &'static str,
    /// The contents of the files.
    pub found: String,
    /// The meaning of this, and the remedy.
    pub remedy: String,
}

/// A tensor of the files.
#[derive(Debug, Serialize)]
pub struct TensorRow {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its dtype.
    pub dtype: String,
    /// The file that it is in.
    pub file: String,
}

impl ModelReport {
    pub(super) fn new(files: &Files, spelling: Spelling, observer: &dyn Observer) -> anyhow::Result<Self> {
        let checkpoint = Checkpoint::open(files)?;
        let generation = GenerationConfig::open(files)?;
        let mut audit = checkpoint.audit();
        let numbers = checkpoint.numbers(&mut steps(observer, "tensors read"))?;
        let is_read = numbers.is_some();
        let numbers = numbers.unwrap_or_default();
        let unfinished = numbers.finding();
        audit.not_finite = numbers.not_finite;
        let n = audit.parameter_count;
        let tensor = |t: &TensorInfo| TensorRow {
            name: t.name.clone(),
            shape: t.shape.clone(),
            dtype: t.dtype.to_string(),
            file: t.file_name(),
        };
        let finding = |Finding { about, found, advice, .. }: Finding| FindingRow {
            about,
            found,
            remedy: worded(advice, spelling),
        };
        Ok(Self {
            model: checkpoint.name().to_string(),
            config: checkpoint.config().clone(),
            generation_config: generation
                .map(|found| EndTokens { eos_token_id: found.ends, unused: found.unused }),
            parameters: n,
            memory_bytes: MemoryByDtype { f32: 4 * n, f16: 2 * n, bf16: 2 * n },
            audit: Verdict::new(&audit, is_read),
            findings: checkpoint.findings().into_iter().chain(unfinished).map(finding).collect(),
            tensors: checkpoint.tensors().map(|(_, t)| tensor(t)).collect(),
            audit_text: audit.to_string(),
        })
    }
}

impl EndTokens {
    /// One line about them.
    #[must_use]
    pub fn line(&self) -> String {
        let list = |items: Vec<String>| if items.is_empty() { "none".into() } else { items.join(", ") };
        let ends = list(self.eos_token_id.iter().map(u32::to_string).collect());
        let unused = list(self.unused.iter().map(|(name, value)| format!("{name} {value}")).collect());
        format!(
            "generation_config.json: end tokens, used in place of config.json's: {ends}; not used: {unused}"
        )
    }
}

impl Verdict {
    fn new(audit: &Audit, is_read: bool) -> Self {
        let names = |list: &[TensorInfo]| list.iter().map(|t| t.name.clone()).collect();
        Self {
            clean: audit.is_clean(),
            missing: audit.missing.iter().map(|p| p.name.clone()).collect(),
            unexpected: names(&audit.unexpected),
            unused: names(&audit.unused),
            mismatched: audit.mismatched.iter().map(|m| m.found.name.clone()).collect(),
            duplicates: names(&audit.duplicates),
            not_finite: is_read.then(|| audit.not_finite.iter().map(|(name, _)| name.clone()).collect()),
            buffers: names(&audit.buffers),
        }
    }
}

/// Advice in the words of a face.
fn worded(advice: Advice, spelling: Spelling) -> String {
    match advice {
        Advice::Converted { mixed } => {
            let mixed = if mixed { "mixed; " } else { "" };
            format!(
                "{mixed}with {} on the CPU, f16, bf16 and quantized weights stay as they are; otherwise all are converted to {}",
                spelling.given("dtype", "f32"),
                spelling.option("dtype")
            )
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtypes_are_converted_to_the_option() {
        let advice = |mixed, spelling| worded(Advice::Converted { mixed }, spelling);
        assert!(advice(false, Spelling::Flags).ends_with("converted to --dtype"));
        assert!(advice(false, Spelling::Keywords).starts_with("with dtype=\"f32\" on the CPU"));
        assert!(advice(true, Spelling::Flags).starts_with("mixed"));
    }
}
