//! `--effect`: how each head changes a prediction, and what each part adds to it directly. `--rollout`: how much of each
//! token reaches each position.

use super::args::AttentionArgs;
use super::scene::CELL;
use crate::output::written_files::Outputs;
use crate::output::{self, note, rows};
use crate::results::picture::{HeadMap, PictureMetadata, head_maps};
use candle_core::Tensor;
use gpt2_engine::Opened;
use gpt2_engine::studies::Outcome;
use gpt2_engine::studies::interpret::attention::{
    ABLATIONS, DirectShares, EffectOptions, EffectReport, MeasuredToken, RolloutOptions,
};
use gpt2_engine::texts::{Content, Prompt};
use gpt2_engine::words::name_of;
use gpt2_model::analysis::Ablation;
use gpt2_view::{Align, Table, heatmap, rollout_picture};
use serde_json::{Value, json};
use std::io::Write;

/// The options of the effects on a prompt.
pub(super) fn options(args: &AttentionArgs, prompt: Content) -> EffectOptions {
    let effect = name_of(ABLATIONS, &args.effect.unwrap_or(Ablation::Zero)).to_owned();
    EffectOptions {
        prompt,
        effect,
        target: args.target.clone(),
        against: args.against.clone(),
        raw: args.raw,
    }
}

/// Shows the effects, or else the rollout.
pub(super) fn show(
    args: &AttentionArgs,
    opened: &Opened,
    prompt: &Prompt,
    outputs: Outputs,
) -> anyhow::Result<()> {
    let run = if args.effect.is_some() { show_effect } else { show_rollout };
    run(args, opened, prompt, outputs)
}

fn show_effect(
    args: &AttentionArgs,
    opened: &Opened,
    prompt: &Prompt,
    mut outputs: Outputs,
) -> anyhow::Result<()> {
    let options = options(args, prompt.ids.clone().into());
    let Outcome { report, tensors } = args.study.outcome(opened, &options, true)?;
    let target = report.target.token.to_string();
    let (of, unit) = match &report.against {
        None => (format!("the log-probability of {target}"), "change in nats"),
        Some(against) => {
            let against = &against.token;
            (format!("the logit of {target} less that of {against}"), "change of the difference")
        }
    };
    let about = PictureMetadata {
        title: format!("{}: change of {of} with each head ablated to {}", opened.title(), report.ablation),
        made_by: &report.provenance,
        settings: json!({
            "metric": report.metric,
            "target": report.target,
            "against": report.against,
            "ablation": report.ablation,
        }),
    };
    args.picture.draw(&mut outputs, &about, |frame| {
        head_maps(frame, &[HeadMap { name: "", unit, values: &tensors[0].1, end: None, from_zero: false }])
    })?;
    outputs.commit_after(|| output::report(args.study.json, &report, |report| print_effect(report, args.all)))
}

fn print_effect(report: &EffectReport, all: bool) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}\n", report.provenance.first_line())?;
    let shown = |token: &MeasuredToken| format!("{} (id {})", token.token, token.id);
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
    let DirectShares {
        centered,
        attention_biases,
        mlps,
        embed,
        pos_embed,
        final_bias,
        interventions,
        sum,
        total,
    } = &report.direct;
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

fn show_rollout(
    args: &AttentionArgs,
    opened: &Opened,
    prompt: &Prompt,
    mut outputs: Outputs,
) -> anyhow::Result<()> {
    let options = RolloutOptions { prompt: prompt.ids.clone().into() };
    let Outcome { report, tensors } = args.study.outcome(opened, &options, true)?;
    let layers = opened.model.config().n_layer;
    let rollout: &Tensor = &tensors[0].1; // (T, T)
    let tokens = &prompt.shown;
    let about = PictureMetadata {
        title: format!("{}: attention rollout after {layers} layers", opened.title()),
        made_by: &report.provenance,
        settings: Value::Null,
    };
    args.picture.draw(&mut outputs, &about, |frame| rollout_picture(frame, rollout, tokens))?;
    outputs.commit_after(|| {
        output::report(args.study.json, &report, |report| {
            let map = heatmap(rollout, tokens, tokens, &output::style(args.color).with_max_cell(CELL))?;
            let mut out = output::stdout();
            writeln!(out, "{}\n", report.provenance.first_line())?;
            writeln!(out, "attention rollout after {layers} layers: each row shows what reaches a token")?;
            write!(out, "{map}")?;
            Ok(())
        })
    })
}
