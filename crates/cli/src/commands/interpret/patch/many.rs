//! Patching over many pairs: means with their standard errors.

use super::args::PatchArgs;
use super::paths;
use super::report::{self, PathPatch, SHOWN, check_difference, correlation, warn};
use crate::input::pairs::Mean;
use crate::output::progress::with_bar;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::output::{self, note};
use crate::results::picture::{HeadMap, PictureMetadata, head_maps};
use candle_core::{DType, Device, Tensor};
use gpt2_circuits::discovery::Pair;
use gpt2_engine::Opened;
use gpt2_engine::RunProvenance;
use gpt2_engine::interventions::Reads;
use gpt2_engine::words::count;
use gpt2_model::analysis::{Contrast, Parts, activation_patching, attribution_patching};
use gpt2_model::hooks::Hooks;
use gpt2_view::Align::{Left, Right};
use gpt2_view::Table;
use serde::Serialize;
use std::io::Write;

#[derive(Serialize)]
struct Report {
    provenance: RunProvenance,
    settings: serde_json::Value,
    pairs: usize,
    clean_difference: Mean,
    corrupt_difference: Mean,
    /// Each head at all positions, as a share of the mean difference.
    heads: Vec<HeadMeans>,
    /// Pearson's correlation between the means of the estimates and those of the exact numbers.
    correlation: Option<f64>,
    layers: Vec<LayerMeans>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    paths: Vec<PathPatch>,
    each: Vec<OfPair>,
}

#[derive(Serialize)]
struct HeadMeans {
    layer: usize,
    head: usize,
    exact: Mean,
    estimated: Mean,
}

#[derive(Serialize)]
struct LayerMeans {
    layer: usize,
    attention: Mean,
    mlp: Mean,
}

/// The numbers of one pair: logit differences, not shares.
#[derive(Serialize)]
struct OfPair {
    clean: f64,
    corrupt: f64,
    /// The logit difference that each head at all positions brings back, by layer and head; and its estimate.
    heads: Vec<Vec<f64>>,
    heads_estimated: Vec<Vec<f64>>,
    /// The logit difference that each layer's attention and MLP bring back.
    attention: Vec<f64>,
    mlps: Vec<f64>,
}

const PARTS: [Parts; 3] = [Parts::Heads, Parts::Attention, Parts::Mlps];

pub(super) fn run(
    args: &PatchArgs,
    pairs: &[Pair],
    opened: &Opened,
    mut outputs: Outputs,
) -> anyhow::Result<()> {
    let changes =
        args.study.interventions.options().build(opened, Reads::Others("pairs of prompts"), &TERMINAL)?;
    let hooks = (!changes.list.is_empty()).then_some(&changes.list as &dyn Hooks);
    let each = with_bar("pairs", |progress| {
        let of_pair = |(done, pair)| {
            let found = of_pair(args, opened, pair, hooks);
            progress(done + 1, pairs.len());
            found
        };
        pairs.iter().enumerate().map(of_pair).collect::<anyhow::Result<Vec<_>>>()
    })?;
    let mean = |of: &dyn Fn(&OfPair) -> f64| Mean::of(&each.iter().map(of).collect::<Vec<_>>());
    let clean = mean(&|pair| pair.clean);
    let corrupt = mean(&|pair| pair.corrupt);
    let difference = clean.mean - corrupt.mean;
    check_difference(clean.mean, difference, ["the right answer", "the wrong one"])?;
    let share = |of: &dyn Fn(&OfPair) -> f64| mean(&|pair| of(pair) / difference);
    let layers = opened.model.config().n_layer;
    let count = opened.model.config().n_head;
    let of_head = |(layer, head): (usize, usize)| HeadMeans {
        layer,
        head,
        exact: share(&|pair| pair.heads[layer][head]),
        estimated: share(&|pair| pair.heads_estimated[layer][head]),
    };
    let heads: Vec<HeadMeans> =
        (0..layers).flat_map(|layer| (0..count).map(move |head| (layer, head))).map(of_head).collect();
    let of_layer = |layer: usize| LayerMeans {
        layer,
        attention: share(&|pair| pair.attention[layer]),
        mlp: share(&|pair| pair.mlps[layer]),
    };
    let provenance = RunProvenance::of_tokens(opened, pairs[0].clean.len())?.under(&changes);
    let settings = args.pairs.facts(pairs);
    let about = PictureMetadata {
        title: format!("{}: patching over {} pairs", opened.title(), pairs.len()),
        made_by: &provenance,
        settings: settings.clone(),
    };
    let exact: Vec<f64> = heads.iter().map(|head| head.exact.mean).collect();
    let exact = Tensor::from_vec(exact, (layers, count), &Device::Cpu)?;
    args.picture.draw(&mut outputs, &about, |frame| {
        let unit = "share of the logit difference";
        head_maps(frame, &[HeadMap { name: "", unit, values: &exact, end: None, from_zero: false }])
    })?;
    let report = Report {
        provenance,
        settings,
        pairs: pairs.len(),
        clean_difference: clean,
        corrupt_difference: corrupt,
        correlation: correlation(&heads, |head| (head.exact.mean, head.estimated.mean)),
        heads,
        layers: (0..layers).map(of_layer).collect(),
        paths: paths::measure(&args.paths, args.freeze, opened, pairs, hooks)?,
        each,
    };
    warn(args.study.json, report::agreement(report.heads.len(), report.correlation).as_deref());
    outputs.commit_after(|| output::report(args.study.json, &report, print))
}

fn of_pair(
    args: &PatchArgs,
    opened: &Opened,
    pair: &Pair,
    hooks: Option<&dyn Hooks>,
) -> anyhow::Result<OfPair> {
    let clean = opened.input_ids(&pair.clean)?;
    let corrupt = opened.input_ids(&pair.corrupt)?;
    let contrast = Contrast { clean: &clean, corrupt: &corrupt, metric: &pair.metric, hooks };
    let patched = activation_patching(&opened.model, &contrast, &PARTS, &mut |_, _| Ok(()))?;
    let estimate = attribution_patching(&opened.model, &contrast)?.heads.sum(2)?; // (L, H)
    let number = Tensor::new(&[patched.clean, patched.corrupt], &Device::Cpu)?;
    args.study.finite.check(opened, &clean, hooks, patched.maps.iter().chain([&number, &estimate]))?;
    let gained = |map: &Tensor| map.to_dtype(DType::F64)? - patched.corrupt;
    Ok(OfPair {
        clean: patched.clean,
        corrupt: patched.corrupt,
        heads: gained(&patched.maps[0])?.to_vec2()?,
        heads_estimated: estimate.to_vec2()?,
        attention: gained(&patched.maps[1])?.to_vec1()?,
        mlps: gained(&patched.maps[2])?.to_vec1()?,
    })
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}\n", report.provenance.model_line())?;
    writeln!(
        out,
        "the logit difference over {}: {} after the clean prompts, {} after the corrupted ones",
        count(report.pairs, "pair"),
        report.clean_difference,
        report.corrupt_difference
    )?;
    writeln!(
        out,
        "below: how much of the difference a part brings back when the corrupted run gets it from the clean one\n"
    )?;
    let mut sorted: Vec<&HeadMeans> = report.heads.iter().collect();
    sorted.sort_by(|a, b| b.exact.mean.abs().total_cmp(&a.exact.mean.abs()));
    let mut table = Table::new(&[("head", Right), ("exact", Left), ("estimated", Left)]);
    for HeadMeans { layer, head, exact, estimated } in sorted.iter().take(SHOWN) {
        table.row(vec![format!("{layer}.{head}"), exact.to_string(), estimated.to_string()]);
    }
    writeln!(out, "{}", table.render())?;
    if let Some(agreement) = report::agreement(report.heads.len(), report.correlation) {
        writeln!(out, "{agreement}\n")?;
    }
    writeln!(out, "what the attention and the MLP of each layer bring back (exact):\n")?;
    let mut table = Table::new(&[("layer", Right), ("attention", Left), ("MLP", Left)]);
    for LayerMeans { layer, attention, mlp } in &report.layers {
        table.row(vec![layer.to_string(), attention.to_string(), mlp.to_string()]);
    }
    write!(out, "{}", table.render())?;
    report::print_paths(&mut out, &report.paths)?;
    if report.heads.len() > SHOWN {
        note(&format!("{SHOWN} of {} heads; --json has all, and each pair", report.heads.len()));
    }
    Ok(())
}
