//! The changes that an adapter makes to a model's weights, and their sizes.

use candle_core::{DType, Device, Tensor};
use gpt2_loader::{AdapterAudit, AdapterCheckpoint, AdapterConfig, AdapterFiles, Checkpoint};
use gpt2_model::Gpt2LMHeadModel;
use gpt2_model::lora::Update;
use gpt2_model::parameters::Values;
use serde::Serialize;
use std::collections::BTreeMap;

/// The content of an adapter.
#[derive(Debug, Serialize)]
pub struct AdapterReport {
    /// Its name.
    pub adapter: String,
    /// Its config.
    pub config: AdapterConfig,
    /// The number of its parameters.
    pub parameters: u64,
    /// The size of its file of weights.
    pub bytes: u64,
    /// The model that it was compared with.
    pub model: Option<String>,
    /// Whether it fits that model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fits: Option<bool>,
    /// The layers that it changes.
    pub layers: Vec<AdapterRow>,
    /// Parameters that it holds whole.
    pub replaced: Vec<String>,
    /// Numbers that are NaN or infinite.
    pub findings: Vec<String>,
    /// The differences to the model, if it was compared with one.
    #[serde(skip)]
    pub audit: Option<AdapterAudit>,
}

/// A layer that an adapter changes.
#[derive(Debug, Serialize)]
pub struct AdapterRow {
    /// Its name.
    pub layer: String,
    /// The rank of the change.
    pub rank: usize,
    /// The factor on the product of its two matrices.
    pub scaling: f64,
    /// The Frobenius norm of what is added to the weight.
    pub norm: f64,
    /// The norm as a share of the weight's own norm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relative_norm: Option<f64>,
}

impl AdapterReport {
    pub(super) fn new(files: &AdapterFiles, base: Option<&Checkpoint>) -> anyhow::Result<Self> {
        let adapter = AdapterCheckpoint::open(files)?;
        let not_finite = adapter.not_finite()?;
        let mut audit = base.map(|base| adapter.audit(base.config())).transpose()?;
        if let Some(audit) = &mut audit {
            audit.not_finite.clone_from(&not_finite);
        }
        let fits = audit.as_ref().map(AdapterAudit::is_clean);
        let model = match base {
            Some(base) if fits == Some(true) => Some(base.load_model(DType::F32, &Device::Cpu)?),
            _ => None,
        };
        let updates = adapter.updates()?;
        let weights = model.as_ref().map(Gpt2LMHeadModel::named_parameters).unwrap_or_default();
        let weights: BTreeMap<_, _> = weights.into_iter().collect();
        let layers = updates.iter().map(|(layer, update)| row(layer, update, &weights));
        let layers: Vec<AdapterRow> = layers.collect::<anyhow::Result<_>>()?;
        let factors = |name: &str| name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
        let whole = adapter.tensors().map(|info| info.name.clone()).filter(|name| !factors(name));
        let size = |shape: &[usize]| shape.iter().map(|&n| n as u64).product::<u64>();
        Ok(Self {
            adapter: adapter.name().to_string(),
            config: adapter.config().clone(),
            parameters: adapter.tensors().map(|t| size(&t.shape)).sum(),
            bytes: std::fs::metadata(&files.weights)?.len(),
            model: base.map(|base| base.name().to_string()),
            fits,
            findings: findings(&not_finite, &layers),
            layers,
            replaced: whole.collect(),
            audit,
        })
    }
}

/// Findings about numbers that are not finite: those of the adapter itself, or else of its updates and the model's weights.
fn findings(not_finite: &[(String, usize)], layers: &[AdapterRow]) -> Vec<String> {
    if !not_finite.is_empty() {
        let count =
            |(name, count): &(String, usize)| format!("{name}: {count} of its numbers are NaN or infinite");
        return not_finite.iter().map(count).collect();
    }
    let overflows = |row: &&AdapterRow| row.norm.is_nan() || row.norm > f64::from(f32::MAX);
    let overflows =
        layers.iter().filter(overflows).map(|row| format!("{}: its change overflows f32", row.layer));
    let damaged = layers.iter().filter(|row| row.relative_norm.is_some_and(f64::is_nan));
    let damaged = damaged.map(|row| format!("{}: the model's weight holds NaN or infinity", row.layer));
    overflows.chain(damaged).collect()
}

fn row(layer: &str, update: &Update, weights: &BTreeMap<String, Values>) -> anyhow::Result<AdapterRow> {
    let norm = update.norm()?;
    let weight = weights.get(&format!("{layer}.weight")).map(Values::tensor).transpose()?;
    let relative = |weight: &Tensor| -> anyhow::Result<f64> {
        Ok(norm / weight.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar::<f64>()?.sqrt())
    };
    let relative_norm = weight.as_ref().map(relative).transpose()?;
    Ok(AdapterRow {
        layer: layer.to_string(),
        rank: update.rank(),
        scaling: update.scaling(),
        norm,
        relative_norm,
    })
}
