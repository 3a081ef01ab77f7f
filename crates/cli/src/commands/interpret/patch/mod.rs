//! `gpt2 patch`: which parts of the model carry the difference between two prompts, or between the prompts of many pairs.

mod args;
mod many;
mod paths;
mod report;

use crate::input::pairs::OnePair;
use crate::output;
use crate::output::progress::with_progress;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::results::picture::{HeadMap, PictureMetadata, head_maps};
use crate::values::pairs_by_head;
use anyhow::Context;
pub(crate) use args::PatchArgs;
use candle_core::{Device, Tensor};
use gpt2_circuits::discovery::Pair;
use gpt2_engine::Opened;
use gpt2_engine::RunProvenance;
use gpt2_engine::interventions::Reads;
use gpt2_model::analysis::{Contrast, Parts, activation_patching, attribution_patching};
use gpt2_model::hooks::Hooks;
use gpt2_view::{Frame, NumberMap, visible_token};
use report::{HeadPatch, LayerPatch, Report, check_difference, correlation, warn};
use serde_json::json;

pub(crate) fn run(args: &PatchArgs) -> anyhow::Result<()> {
    args.study.interventions.no_circuit("patch")?;
    let mut outputs = Outputs::new(args.overwrite);
    args.picture.add(&mut outputs)?;
    let opened = args.study.open_for(args.pairs.inputs(), &outputs)?;
    let pairs = args.pairs.read(&opened)?;
    match (args.pairs.one(), &pairs[..]) {
        (Some(one), [pair]) => run_one(args, &one, pair, &opened, outputs),
        _ => many::run(args, &pairs, &opened, outputs),
    }
}

fn run_one(
    args: &PatchArgs,
    one: &OnePair,
    pair: &Pair,
    opened: &Opened,
    mut outputs: Outputs,
) -> anyhow::Result<()> {
    let Pair { clean, corrupt, metric } = pair;
    let changes = args.study.interventions.options().build(opened, Reads::Branches(clean), &TERMINAL)?;
    let clean_ids = opened.input_ids(clean)?;
    let corrupt_ids = opened.input_ids(corrupt)?;
    let hooks = (!changes.list.is_empty()).then_some(&changes.list as &dyn Hooks);
    let contrast = Contrast { clean: &clean_ids, corrupt: &corrupt_ids, metric, hooks };
    let parts = parts(args);
    let patched =
        with_progress("runs", |progress| activation_patching(&opened.model, &contrast, &parts, progress))?;
    let difference = patched.clean - patched.corrupt;
    let number = |x: f64| Tensor::new(x, &Device::Cpu);
    args.study.finite.check(opened, &clean_ids, contrast.hooks, [&number(patched.clean)?])?;
    args.study.finite.check(opened, &corrupt_ids, contrast.hooks, [&number(patched.corrupt)?])?;
    check_difference(patched.clean, difference, [&visible_token(one.answer), &visible_token(one.against)])?;
    let estimate = attribution_patching(&opened.model, &contrast)?;
    let numbers = patched.maps.iter().chain([&estimate.heads]);
    args.study.finite.check(opened, &corrupt_ids, contrast.hooks, numbers)?;
    let paths = paths::measure(&args.paths, args.freeze, opened, std::slice::from_ref(pair), hooks)?;

    let share = |map: &Tensor| map.affine(1.0 / difference, -patched.corrupt / difference);
    let optional =
        |of: Parts| parts.iter().zip(&patched.maps).find(|(parts, _)| **parts == of).map(|(_, map)| map);
    let map = |of: Parts| optional(of).with_context(|| format!("no map of {of:?}"));
    let exact = share(map(Parts::Heads)?)?; // (L, H)
    let estimated = (estimate.heads.sum(2)? / difference)?; // (L, H)
    let labels = |ids: &[u32]| ids.iter().map(|&id| opened.label(id)).collect();
    let mut provenance = RunProvenance::new(opened, clean)?.under(&changes);
    provenance.corrupt_ids.clone_from(corrupt);
    let layers = layers(&share(map(Parts::Attention)?)?, &share(map(Parts::Mlps)?)?)?;
    let by_position = optional(Parts::HeadsByPosition).map(share).transpose()?; // (L, H, T)
    let rows = |parts: Parts| optional(parts).map(|map| share(map)?.to_vec2()).transpose();
    let about = PictureMetadata {
        title: format!(
            "{}: patching, {} against {}",
            opened.title(),
            visible_token(one.answer),
            visible_token(one.against)
        ),
        made_by: &provenance,
        settings: json!({ "answer": one.answer, "against": one.against }),
    };
    args.picture.draw(&mut outputs, &about, |frame| {
        picture(frame, &exact, by_position.as_ref(), &opened.shown(clean))
    })?;
    let heads = pairs_by_head(&exact, &estimated, |layer, head, exact, estimated| HeadPatch {
        layer,
        head,
        exact,
        estimated,
    })?;
    let report = Report {
        provenance,
        clean: labels(clean),
        corrupt: labels(corrupt),
        answer: one.answer.to_owned(),
        against: one.against.to_owned(),
        clean_difference: patched.clean,
        corrupt_difference: patched.corrupt,
        correlation: correlation(&heads, |head| (head.exact, head.estimated)),
        heads,
        layers,
        streams: share(map(Parts::Streams)?)?.to_vec2()?,
        attention: rows(Parts::AttentionByPosition)?,
        mlps: rows(Parts::MlpsByPosition)?,
        heads_by_position: by_position.map(|map| map.to_vec3()).transpose()?,
        heads_by_position_estimated: (estimate.heads / difference)?.to_vec3()?,
        paths,
    };
    warn(args.study.json, report::agreement(report.heads.len(), report.correlation).as_deref());
    outputs.commit_after(|| output::report(args.study.json, &report, report::print))
}

/// The parts to patch. Attention and MLPs by position are for JSON alone: the terminal shows few positions.
fn parts(args: &PatchArgs) -> Vec<Parts> {
    let mut parts = vec![Parts::Heads, Parts::Attention, Parts::Mlps, Parts::Streams];
    parts.extend(args.by_position.then_some(Parts::HeadsByPosition));
    if args.study.json {
        parts.extend([Parts::AttentionByPosition, Parts::MlpsByPosition]);
    }
    parts
}

/// Attention and MLPs (L) each, by layer.
fn layers(attention: &Tensor, mlps: &Tensor) -> anyhow::Result<Vec<LayerPatch>> {
    let both = attention.to_vec1()?.into_iter().zip(mlps.to_vec1()?).enumerate();
    Ok(both.map(|(layer, (attention, mlp))| LayerPatch { layer, attention, mlp }).collect())
}

/// The heads by layer, or each head by position.
fn picture(
    frame: &Frame,
    heads: &Tensor,
    by_position: Option<&Tensor>,
    tokens: &[String],
) -> candle_core::Result<Vec<u8>> {
    let (layers, count) = heads.dims2()?;
    let unit = "share of the logit difference";
    let Some(map) = by_position else {
        return head_maps(frame, &[HeadMap { name: "", unit, values: heads, end: None, from_zero: false }]);
    };
    let rows: Vec<String> = (0..layers * count).map(|i| format!("{}.{}", i / count, i % count)).collect();
    let values = map.reshape((layers * count, tokens.len()))?;
    let map = NumberMap { row_axis: "head", column_axis: "token", unit, rows: &rows, ..NumberMap::default() };
    NumberMap { columns: tokens, ..map }.draw(frame, &values)
}
