//! Each head's effect on a prediction, and what each part adds to it directly.

use super::subject::{ChosenHeads, Subject, all_heads};
use crate::observer::Observer;
use crate::open::{Label, Opened};
use crate::provenance::RunProvenance;
use crate::studies::study::{Outcome, Run, Study};
use crate::texts::{Content, single_token};
use crate::words::{Choices, name_of, one_of};
use anyhow::bail;
use candle_core::{D, DType, Device, Tensor};
use gpt2_model::ForwardArgs;
use gpt2_model::analysis::{
    Ablation, AblationEffects, Centering, DirectAttribution, Metric, ablation_effects, direct_attribution,
};
use gpt2_model::hooks::Hooks;
use serde::{Deserialize, Serialize};

/// The replacements of an ablated head's output, by name.
pub const ABLATIONS: &Choices<Ablation> = &[("zero", Ablation::Zero), ("mean", Ablation::Mean)];

/// The options of the effects.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EffectOptions {
    /// The text, or its ids.
    pub prompt: Content,
    /// The replacement of a head's output: `zero`, or `mean`, its mean.
    pub effect: String,
    /// The token whose prediction is measured; the most probable next token if there is none.
    pub target: Option<String>,
    /// The token whose logit is subtracted from the target's, in place of measuring its log-probability.
    pub against: Option<String>,
    /// Whether the shares are those of the logit itself: otherwise the mean of all logits is subtracted.
    pub raw: bool,
}

impl Default for EffectOptions {
    fn default() -> Self {
        let prompt = Content::default();
        Self { prompt, effect: "zero".to_owned(), target: None, against: None, raw: false }
    }
}

/// The effect of ablating each head on a prediction, and the direct contribution of each part.
#[derive(Debug, Serialize)]
pub struct EffectReport {
    /// The facts that it depends on.
    pub provenance: RunProvenance,
    /// The token whose prediction is measured.
    pub target: MeasuredToken,
    /// The token whose logit is subtracted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<MeasuredToken>,
    /// The metric of `value` and of each `change`: the target's log-probability in nats, or the difference of two logits.
    pub metric: &'static str,
    /// After the prompt, with all heads in place.
    pub value: f64,
    /// The replacement of a head's output: `zero` or `mean`.
    pub ablation: &'static str,
    /// Each head, the largest change first.
    pub heads: Vec<HeadEffect>,
    /// The direct contributions of all other parts.
    pub direct: DirectShares,
}

/// A token of the metric.
#[derive(Debug, Serialize)]
pub struct MeasuredToken {
    /// Its text.
    pub token: Label,
    /// Its id.
    pub id: u32,
}

/// A head.
#[derive(Debug, Serialize)]
pub struct HeadEffect {
    /// Its layer.
    pub layer: usize,
    /// Its number in the layer.
    pub head: usize,
    /// The intervention that silences the head, such as "ablated"; `None` if the run uses its output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silenced: Option<&'static str>,
    /// The change of the metric when the head is ablated.
    pub change: f64,
    /// The head's direct contribution to the target's logit, or to the difference.
    pub direct: f64,
}

/// The direct contributions of all other parts to the logit. With those of the heads, they sum to `total`.
#[derive(Debug, Serialize)]
pub struct DirectShares {
    /// Whether the mean of all logits is subtracted, and the heads' constant parts count with the biases.
    pub centered: bool,
    /// The biases of each layer's attention.
    pub attention_biases: Vec<f64>,
    /// Each layer's MLP.
    pub mlps: Vec<f64>,
    /// The token embedding.
    pub embed: f64,
    /// The position embedding.
    pub pos_embed: f64,
    /// The bias of the last layer norm.
    pub final_bias: f64,
    /// The direct contribution of what interventions add to the residual stream.
    pub interventions: f64,
    /// The sum of all shares.
    pub sum: f64,
    /// The logit or the difference of logits itself.
    pub total: f64,
}

impl Study for EffectOptions {
    const NAME: &'static str = "effects";
    const REFUSES: &'static [&'static str] = &["circuit"];
    type Report = EffectReport;

    /// The tensor `change` (L, H) is the change of the metric by each head.
    fn run(&self, run: &Run) -> anyhow::Result<Outcome<EffectReport>> {
        let opened = run.opened;
        let ablation = one_of("effect", &self.effect, ABLATIONS)?;
        let prompt = run.prompt(&self.prompt)?;
        let applied = run.on_prompt(&prompt)?;
        let [layers, heads] = all_heads(opened.model.config());
        let chosen = ChosenHeads { layers: &layers, heads: &heads };
        let subject = Subject::new(opened, &prompt, chosen, &applied, run.allow_nonfinite)?;
        let found = Effects::of(&subject, self, ablation, run.observer)?;
        let report = self.report(&subject, &found, ablation)?;
        Ok(Outcome { report, tensors: vec![("change".to_owned(), found.total.change)] })
    }
}

impl EffectOptions {
    fn report(&self, subject: &Subject, found: &Effects, ablation: Ablation) -> anyhow::Result<EffectReport> {
        let silenced = subject.silenced();
        let changes = found.total.change.to_vec2::<f64>()?;
        let shares = found.direct.heads.to_vec2::<f64>()?;
        let mut heads = vec![];
        for (layer, (changes, shares)) in changes.iter().zip(&shares).enumerate() {
            for (head, (&change, &direct)) in changes.iter().zip(shares).enumerate() {
                heads.push(HeadEffect { layer, head, silenced: silenced.how(layer, head), change, direct });
            }
        }
        heads.sort_by(|a, b| b.change.abs().total_cmp(&a.change.abs()));
        let token = |id: u32| MeasuredToken { token: subject.opened.label(id), id };
        let numbers = |x: &Tensor| x.to_dtype(DType::F64)?.to_vec1::<f64>();
        let direct = &found.direct;
        Ok(EffectReport {
            provenance: subject.made_by.clone(),
            target: token(found.target),
            against: found.against.map(token),
            metric: if found.against.is_some() { "logit difference" } else { "log-probability" },
            value: found.total.plain,
            ablation: name_of(ABLATIONS, &ablation),
            heads,
            direct: DirectShares {
                centered: !self.raw,
                attention_biases: numbers(&direct.attention_biases)?,
                mlps: numbers(&direct.mlps)?,
                embed: direct.embed,
                pos_embed: direct.pos_embed,
                final_bias: direct.final_bias,
                interventions: direct.interventions,
                sum: direct.sum()?,
                total: direct.total,
            },
        })
    }
}

/// The effect of ablating each head, and each part's direct contribution.
pub(super) struct Effects {
    pub(super) target: u32,
    pub(super) against: Option<u32>,
    pub(super) total: AblationEffects,
    pub(super) direct: DirectAttribution,
}

impl Effects {
    pub(super) fn of(
        subject: &Subject,
        options: &EffectOptions,
        ablation: Ablation,
        observer: &dyn Observer,
    ) -> anyhow::Result<Self> {
        let opened = subject.opened;
        let option = |name| opened.spelling.option(name);
        let ids = &opened.input_ids(subject.ids)?; // (1, T)
        // The means of a mean ablation do not depend on what else is ablated.
        let hooks = subject.changes.list.clone().with_means_of(&opened.model, ids)?;
        let against = options.against.as_deref();
        let against = against.map(|text| single_token(opened, &option("against"), text, observer));
        let against = against.transpose()?;
        let logits = || -> anyhow::Result<Tensor> {
            let args = ForwardArgs { last_logits_only: true, hooks: Some(&hooks), ..Default::default() };
            Ok(opened.model.forward(ids, args)?.logits.flatten_all()?.to_dtype(DType::F32)?) // (V)
        };
        let target = if let Some(text) = &options.target {
            let target = single_token(opened, &option("target"), text, observer)?;
            if let Some(spaced) = with_space(opened, text) {
                note_space(text, (target, spaced), &logits()?.to_vec1()?, observer);
            }
            target
        } else {
            logits()?.argmax(D::Minus1)?.to_scalar()?
        };
        if against == Some(target) {
            let target = option("target");
            bail!("{target} and {} are the same token: their difference is always 0", option("against"));
        }
        let (metric, logit) = match against {
            Some(against) => {
                let difference = Metric::difference(target, against);
                (difference.clone(), difference)
            }
            None => (Metric::LogProb(target), Metric::Logit(target)),
        };
        let centering = if options.raw { Centering::Raw } else { Centering::Centered };
        let hooks = (!hooks.is_empty()).then_some(&hooks as &dyn Hooks);
        let total = ablation_effects(&opened.model, ids, &metric, ablation, hooks)?;
        let direct = direct_attribution(&opened.model, ids, &logit, centering, hooks)?;
        let value = Tensor::new(total.plain, &Device::Cpu)?;
        subject.check_finite([&value, &total.change, &direct.heads, &direct.mlps])?;
        Ok(Self { target, against, total, direct })
    }
}

/// The single token of a text with a space before it, if it has none.
fn with_space(opened: &Opened, text: &str) -> Option<u32> {
    let spaced =
        opened.tokenizer().ok().filter(|_| !text.starts_with(' '))?.encode(&format!(" {text}")).ok()?;
    if let [id] = spaced[..] { Some(id) } else { None }
}

/// Notes that a target was probably meant to have a space before it, by the logits (V) after the prompt.
fn note_space(text: &str, (target, spaced): (u32, u32), logits: &[f32], observer: &dyn Observer) {
    const FAR: f32 = 10.0;
    let times = (logits[spaced as usize] - logits[target as usize]).exp();
    if times >= FAR {
        let spaced = format!(" {text}");
        observer.note(&format!(
            "{spaced:?} is {times:.0} times as probable here as {text:?}: a word inside a text begins with its space"
        ));
    }
}
