//! `--effect`: how each head changes a prediction, and what each part adds to it directly. `--rollout`: how much of each
//! token reaches each position.

use super::scene::{AttentionScene, CELL};
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::output::{self, note, rows};
use crate::results::picture::{HeadMap, PictureMetadata, head_maps};
use crate::values::pairs_by_head;
use anyhow::{Context, bail};
use candle_core::{D, DType, Device, Tensor};
use gpt2_engine::RunProvenance;
use gpt2_engine::texts::single_token;
use gpt2_engine::{Label, Opened};
use gpt2_model::ForwardArgs;
use gpt2_model::analysis::{
    Ablation, AblationEffects, Centering, DirectAttribution, Metric, ablation_effects, attention_rollout,
    direct_attribution,
};
use gpt2_model::hooks::Interventions;
use gpt2_view::{Align, Table, heatmap, rollout_picture};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::Write;

#[derive(Serialize)]
struct EffectReport {
    provenance: RunProvenance,
    target: Token,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<Token>,
    /// The metric of `value` and of each `change`: the target's log-probability in nats, or the difference of two logits.
    metric: &'static str,
    /// After the prompt, with all heads in place.
    value: f64,
    ablation: &'static str,
    heads: Vec<HeadEffect>,
    direct: Direct,
}

#[derive(Serialize)]
struct Token {
    token: Label,
    id: u32,
}

#[derive(Serialize)]
struct HeadEffect {
    layer: usize,
    head: usize,
    /// The intervention that silences the head, such as "ablated"; `None` if the run uses its output.
    #[serde(skip_serializing_if = "Option::is_none")]
    silenced: Option<&'static str>,
    /// The change of the metric when the head is ablated.
    change: f64,
    /// The head's direct contribution to the target's logit, or to the difference.
    direct: f64,
}

/// The direct contributions of all other parts to the logit. With those of the heads, they sum to `total`.
#[derive(Serialize)]
struct Direct {
    /// Whether the mean of all logits is subtracted, and the heads' constant parts count with the biases.
    centered: bool,
    attention_biases: Vec<f64>,
    mlps: Vec<f64>,
    embed: f64,
    pos_embed: f64,
    final_bias: f64,
    /// The direct contribution of what interventions add to the residual stream.
    interventions: f64,
    /// The sum of all shares.
    sum: f64,
    /// The logit or the difference of logits itself.
    total: f64,
}

/// The effect of ablating each head, and each part's direct contribution.
pub(super) struct Effects {
    pub(super) target: u32,
    pub(super) against: Option<u32>,
    pub(super) total: AblationEffects,
    pub(super) direct: DirectAttribution,
}

impl Effects {
    pub(super) fn of(scene: &AttentionScene, ablation: Ablation) -> anyhow::Result<Self> {
        let opened = scene.subject.opened;
        let ids = &opened.input_ids(scene.subject.ids)?; // (1, T)
        // The means of a mean ablation do not depend on what else is ablated.
        let hooks = scene.subject.changes.list.clone().with_means_of(&opened.model, ids)?;
        let against = scene
            .args
            .against
            .as_deref()
            .map(|text| single_token(opened, "--against", text, &TERMINAL))
            .transpose()?;
        let logits = || -> anyhow::Result<Tensor> {
            let args = ForwardArgs { last_logits_only: true, hooks: Some(&hooks), ..Default::default() };
            Ok(opened.model.forward(ids, args)?.logits.flatten_all()?.to_dtype(DType::F32)?) // (V)
        };
        let target = if let Some(text) = &scene.args.target {
            let target = single_token(opened, "--target", text, &TERMINAL)?;
            if let Some(spaced) = with_space(opened, text) {
                note_space(text, (target, spaced), &logits()?.to_vec1()?);
            }
            target
        } else {
            logits()?.argmax(D::Minus1)?.to_scalar()?
        };
        if against == Some(target) {
            bail!("--target and --against are the same token: their difference is always 0");
        }
        let (metric, logit) = match against {
            Some(against) => {
                let difference = Metric::difference(target, against);
                (difference.clone(), difference)
            }
            None => (Metric::LogProb(target), Metric::Logit(target)),
        };
        let centering = if scene.args.raw { Centering::Raw } else { Centering::Centered };
        let hooks = (!hooks.is_empty()).then_some(&hooks as &dyn gpt2_model::hooks::Hooks);
        let total = ablation_effects(&opened.model, ids, &metric, ablation, hooks)?;
        let direct = direct_attribution(&opened.model, ids, &logit, centering, hooks)?;
        let value = Tensor::new(total.plain, &Device::Cpu)?;
        scene.subject.check_finite([&value, &total.change, &direct.heads, &direct.mlps])?;
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
fn note_space(text: &str, (target, spaced): (u32, u32), logits: &[f32]) {
    const FAR: f32 = 10.0;
    let times = (logits[spaced as usize] - logits[target as usize]).exp();
    if times >= FAR {
        let spaced = format!(" {text}");
        note(&format!(
            "{spaced:?} is {times:.0} times as probable here as {text:?}: a word inside a text begins with its space"
        ));
    }
}

pub(super) fn show_effect(
    scene: &AttentionScene,
    ablation: Ablation,
    mut outputs: Outputs,
) -> anyhow::Result<()> {
    let found = Effects::of(scene, ablation)?;
    let silenced = scene.subject.silenced();
    let mut heads =
        pairs_by_head(&found.total.change, &found.direct.heads, |layer, head, change, direct| HeadEffect {
            layer,
            head,
            silenced: silenced.how(layer, head),
            change,
            direct,
        })?;
    heads.sort_by(|a, b| b.change.abs().total_cmp(&a.change.abs()));
    let token = |id: u32| Token { token: scene.subject.opened.label(id), id };
    let numbers = |x: &Tensor| x.to_dtype(DType::F64)?.to_vec1::<f64>();
    let report = EffectReport {
        provenance: scene.subject.made_by.clone(),
        target: token(found.target),
        against: found.against.map(token),
        metric: if found.against.is_some() { "logit difference" } else { "log-probability" },
        value: found.total.plain,
        ablation: if ablation == Ablation::Zero { "zero" } else { "mean" },
        heads,
        direct: Direct {
            centered: !scene.args.raw,
            attention_biases: numbers(&found.direct.attention_biases)?,
            mlps: numbers(&found.direct.mlps)?,
            embed: found.direct.embed,
            pos_embed: found.direct.pos_embed,
            final_bias: found.direct.final_bias,
            interventions: found.direct.interventions,
            sum: found.direct.sum()?,
            total: found.direct.total,
        },
    };
    let target = report.target.token.to_string();
    let (of, unit) = match &report.against {
        None => (format!("the log-probability of {target}"), "change in nats"),
        Some(against) => {
            let against = &against.token;
            (format!("the logit of {target} less that of {against}"), "change of the difference")
        }
    };
    let name = scene.subject.opened.title();
    let to = report.ablation;
    let about = PictureMetadata {
        title: format!("{name}: change of {of} with each head ablated to {to}"),
        made_by: &report.provenance,
        settings: json!({
            "metric": report.metric,
            "target": report.target,
            "against": report.against,
            "ablation": report.ablation,
        }),
    };
    scene.args.picture.draw(&mut outputs, &about, |frame| {
        head_maps(
            frame,
            &[HeadMap { name: "", unit, values: &found.total.change, end: None, from_zero: false }],
        )
    })?;
    let all = scene.args.all;
    outputs
        .commit_after(|| output::report(scene.args.study.json, &report, |report| print_effect(report, all)))
}

fn print_effect(report: &EffectReport, all: bool) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}\n", report.provenance.first_line())?;
    let shown = |token: &Token| format!("{} (id {})", token.token, token.id);
    let what = match &report.against {
        None => format!("{} has log-probability", shown(&report.target)),
        Some(against) => format!("the logit of {} less that of {} is", shown(&report.target), shown(against)),
    };
    writeln!(
        out,
        "{what} {:.3}\nits change with one head ablated to {}, the largest first:\n",
        report.value, report.ablation
    )?;
    let columns =
        [("head", Align::Right), ("change", Align::Right), ("direct", Align::Right), ("", Align::Left)];
    let mut table = Table::new(&columns);
    for head in report.heads.iter().take(rows::shown(report.heads.len(), all)) {
        table.row(vec![
            format!("{}.{}", head.layer, head.head),
            format!("{:+.3}", head.change),
            format!("{:+.3}", head.direct),
            head.silenced.unwrap_or_default().to_owned(),
        ]);
    }
    write!(out, "{}", table.render())?;
    if let Some(more) = rows::more(report.heads.len(), all) {
        writeln!(out, "{more}")?;
    }
    writeln!(out)?;
    let Direct { centered, attention_biases, mlps, embed, pos_embed, final_bias, interventions, sum, total } =
        &report.direct;
    let logit = match (&report.against, centered) {
        (Some(_), _) => "the difference of the logits",
        (None, true) => "the logit, less the mean of all logits",
        (None, false) => "the logit",
    };
    writeln!(out, "what each part adds directly to {logit}:\n")?;
    let mut table = Table::new(&[("part", Align::Left), ("direct", Align::Right)]);
    let heads: f64 = report.heads.iter().map(|head| head.direct).sum();
    let mut parts = vec![("all heads".to_owned(), heads)];
    parts.extend(mlps.iter().enumerate().map(|(layer, share)| (format!("MLP {layer}"), *share)));
    parts.extend([
        ("token embedding".to_owned(), *embed),
        ("position".to_owned(), *pos_embed),
        ("biases".to_owned(), attention_biases.iter().sum::<f64>() + final_bias),
    ]);
    // Without a change of the stream, it is rounding alone.
    if interventions.abs() > 1e-4 {
        parts.push(("interventions".to_owned(), *interventions));
    }
    parts.push(("sum".to_owned(), *sum));
    for (part, share) in parts {
        table.row(vec![part, format!("{share:+.3}")]);
    }
    write!(out, "{}", table.render())?;
    // Halves round every part.
    if (sum - total).abs() > 0.02 * total.abs().max(1.0) {
        note(&format!("the shares do not sum to the model's {total:+.3}: a hook or rounding comes between"));
    }
    Ok(())
}

#[derive(Serialize)]
struct RolloutReport<'a> {
    provenance: &'a RunProvenance,
    tokens: &'a [String],
    /// Row i: how much of each token up to itself position i holds after the last block.
    rollout: Vec<Vec<f32>>,
}

/// The rollout after each block, L of (T, T).
pub(super) fn rollout_by_layer(
    scene: &AttentionScene,
    changes: &Interventions,
) -> anyhow::Result<Vec<Tensor>> {
    let all: Vec<usize> = (0..scene.subject.opened.model.config().n_layer).collect();
    let mut means = vec![];
    scene.run_under(changes, ForwardArgs::default(), &all, &[], |_, weights, _| {
        means.push(weights.mean_keepdim(1)?); // (1, 1, T, T)
        Ok(())
    })?;
    Ok(attention_rollout(&means)?.into_iter().map(|map| map.squeeze(0)).collect::<Result<_, _>>()?)
}

pub(super) fn show_rollout(scene: &AttentionScene, mut outputs: Outputs) -> anyhow::Result<()> {
    let mut maps = rollout_by_layer(scene, &scene.subject.changes.list)?;
    let layers = maps.len();
    let rollout = maps.pop().context("a model without layers")?; // (T, T)
    scene.subject.check_finite([&rollout])?;
    let tokens = scene.subject.shown;
    let about = PictureMetadata {
        title: format!("{}: attention rollout after {layers} layers", scene.subject.opened.title()),
        made_by: scene.subject.made_by,
        settings: Value::Null,
    };
    scene.args.picture.draw(&mut outputs, &about, |frame| rollout_picture(frame, &rollout, tokens))?;
    outputs.commit_after(|| print_rollout(scene, &rollout, layers))
}

/// `rollout` (T, T)
fn print_rollout(scene: &AttentionScene, rollout: &Tensor, layers: usize) -> anyhow::Result<()> {
    let tokens = scene.subject.tokens;
    if scene.args.study.json {
        let mut rows = rollout.to_vec2::<f32>()?;
        rows.iter_mut().enumerate().for_each(|(i, row)| row.truncate(i + 1));
        return output::json(&RolloutReport { provenance: scene.subject.made_by, tokens, rollout: rows });
    }
    let tokens = scene.subject.shown;
    let map = heatmap(rollout, tokens, tokens, &output::style(scene.args.color).with_max_cell(CELL))?;
    let mut out = output::stdout();
    writeln!(out, "{}\n", scene.subject.made_by.first_line())?;
    writeln!(out, "attention rollout after {layers} layers: each row shows what reaches a token")?;
    write!(out, "{map}")?;
    Ok(())
}
