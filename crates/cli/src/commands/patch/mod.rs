//! `gpt2 patch`: which parts of the model carry the difference between two prompts.

mod report;

use crate::changes::Reads;
use crate::inputs::Inputs;
use crate::output::{self, note};
use crate::outputs::Outputs;
use crate::picture::{About, HeadMap, PictureArgs, head_maps};
use crate::progress::with_bar;
use crate::prompt::{Prompt, single_token};
use crate::provenance::Provenance;
use crate::session::Session;
use crate::study::StudyArgs;
use crate::values::pairs_by_head;
use anyhow::{Context, bail};
use candle_core::{Device, Tensor};
use gpt2_model::analysis::{
    Contrast, EdgeGradients, Metric, Parts, activation_patching, attribution_patching, edge_attribution,
};
use gpt2_model::hooks::Hooks;
use gpt2_view::{Frame, NumberMap, visible_token};
use report::{Edge, HeadPatch, LayerPatch, Report};
use serde_json::json;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Both prompts need the same number of tokens. One part of the corrupted run at a time is replaced by the clean run's. The
part's number says how far that moves the logit difference: 0 is no change, 1 is all the way to the clean run. Exact numbers
take a run for each part. Estimates (attribution patching) take one forward and one backward pass for all parts. The picture
shows the heads by layer, or with --by-position each head at each position.

Examples:
  gpt2 patch \" fair king and fair\" \" fair lord and fair\" --answer \" king\" --against \" lord\"
  gpt2 patch \"When Mary and John went to the store, John gave a drink to\" \\
    \"When Mary and John went to the store, Mary gave a drink to\" --answer \" Mary\" --against \" John\" --model gpt2
  gpt2 patch \" fair king and fair\" \" fair lord and fair\" --answer \" king\" --against \" lord\" --by-position --picture patch.svg")]
pub(crate) struct PatchArgs {
    /// The prompt that the model gets right
    #[arg(value_name = "CLEAN")]
    pub(crate) clean: String,
    /// A prompt that differs from it in the tokens of interest, and has as many tokens
    #[arg(value_name = "CORRUPT")]
    pub(crate) corrupt: String,
    /// The token that should follow the clean prompt, with its leading space
    #[arg(long, value_name = "TOKEN")]
    pub(crate) answer: String,
    /// The token that should follow the corrupted prompt
    #[arg(long, value_name = "TOKEN")]
    pub(crate) against: String,
    /// Also patch each head at each position: a run for each
    #[arg(long)]
    pub(crate) by_position: bool,
    /// Also estimate the edges between heads, for small models and short prompts. Gradients are their mean over STEPS
    /// runs between the prompts (integrated gradients) [default: 5], or with 0 those of the corrupted run alone
    #[arg(long, value_name = "STEPS", num_args = 0..=1, require_equals = true, default_missing_value = "5",
          value_parser = clap::value_parser!(u16).range(0..=100))]
    pub(crate) edges: Option<u16>,
    #[command(flatten)]
    pub(crate) picture: PictureArgs,
    /// Let --picture replace an existing file
    #[arg(long, requires = "drawn", help_heading = "Files")]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) study: StudyArgs,
}

/// The most bytes that edges may take.
const LARGEST_EDGES: usize = 8 << 30;

pub(crate) fn run(args: &PatchArgs) -> anyhow::Result<()> {
    let mut outputs = Outputs::new(args.overwrite);
    args.picture.add(&mut outputs)?;
    let session = args.study.session_for(Inputs::default(), &outputs)?;
    let (clean, corrupt) = prompts(args, &session)?;
    let mut changes = args.study.interventions.build(&session, Reads::Whole(&clean))?;
    let answer = single_token(&session, "--answer", &args.answer)?;
    let against = single_token(&session, "--against", &args.against)?;
    if answer == against {
        bail!("--answer and --against are the same token: their difference is always 0");
    }
    let (clean_ids, corrupt_ids) = (session.input_ids(&clean)?, session.input_ids(&corrupt)?);
    // Means over the prompt are those of the clean one, in both runs.
    changes.list = changes.list.with_means_of(&session.model, &clean_ids)?;
    if args.edges.is_some() {
        check_edges(&session, clean.len())?;
    }
    let contrast = Contrast {
        clean: &clean_ids,
        corrupt: &corrupt_ids,
        metric: Metric::LogitDifference { answer, against },
        hooks: (!changes.list.is_empty()).then_some(&changes.list as &dyn Hooks),
    };
    let parts = parts(args);
    let patched = with_bar("runs", |progress| {
        activation_patching(&session.model, &contrast, &parts, &mut |done, all| {
            progress(done, all);
            Ok(())
        })
    })?;
    let difference = patched.clean - patched.corrupt;
    let number = |x: f64| Tensor::new(x, &Device::Cpu);
    args.study.finite.check(&session, &clean_ids, contrast.hooks, [&number(patched.clean)?])?;
    args.study.finite.check(&session, &corrupt_ids, contrast.hooks, [&number(patched.corrupt)?])?;
    check_difference(args, patched.clean, difference)?;
    let estimate = attribution_patching(&session.model, &contrast)?;
    let gradients = args.edges.map(|steps| match usize::from(steps) {
        0 => EdgeGradients::Corrupt,
        steps => EdgeGradients::Integrated { steps },
    });
    let edges =
        gradients.map(|gradients| edge_attribution(&session.model, &contrast, gradients)).transpose()?;
    let numbers = patched.maps.iter().chain([&estimate.heads]).chain(&edges);
    args.study.finite.check(&session, &corrupt_ids, contrast.hooks, numbers)?;
    let edges = edges.map(|scores| ranked(&scores, difference)).transpose()?;

    let share = |map: &Tensor| map.affine(1.0 / difference, -patched.corrupt / difference);
    let optional =
        |of: Parts| parts.iter().zip(&patched.maps).find(|(parts, _)| **parts == of).map(|(_, map)| map);
    let map = |of: Parts| optional(of).with_context(|| format!("no map of {of:?}"));
    let exact = share(map(Parts::Heads)?)?; // (L, H)
    let estimated = (estimate.heads.sum(2)? / difference)?; // (L, H)
    let labels = |ids: &[u32]| ids.iter().map(|&id| session.label(id)).collect();
    let mut provenance = Provenance::new(&session, &clean)?.under(&changes);
    provenance.corrupt_ids.clone_from(&corrupt);
    let layers = layers(&share(map(Parts::Attention)?)?, &share(map(Parts::Mlps)?)?)?;
    let by_position = optional(Parts::HeadsByPosition).map(share).transpose()?; // (L, H, T)
    let rows = |parts: Parts| optional(parts).map(|map| share(map)?.to_vec2()).transpose();
    let about = About {
        title: format!(
            "{}: patching, {} against {}",
            session.name,
            visible_token(&args.answer),
            visible_token(&args.against)
        ),
        made_by: &provenance,
        settings: json!({ "answer": args.answer, "against": args.against }),
    };
    args.picture.draw(&mut outputs, &about, |frame| {
        picture(frame, &exact, by_position.as_ref(), &session.shown(&clean))
    })?;
    let heads = pairs_by_head(&exact, &estimated, |layer, head, exact, estimated| HeadPatch {
        layer,
        head,
        exact,
        estimated,
    })?;
    let report = Report {
        provenance,
        clean: labels(&clean),
        corrupt: labels(&corrupt),
        answer: args.answer.clone(),
        against: args.against.clone(),
        clean_difference: patched.clean,
        corrupt_difference: patched.corrupt,
        correlation: correlation(&heads),
        heads,
        layers,
        streams: share(map(Parts::Streams)?)?.to_vec2()?,
        attention: rows(Parts::AttentionByPosition)?,
        mlps: rows(Parts::MlpsByPosition)?,
        heads_by_position: by_position.map(|map| map.to_vec3()).transpose()?,
        heads_by_position_estimated: (estimate.heads / difference)?.to_vec3()?,
        edges,
        edge_steps: args.edges,
    };
    let agreement = report::agreement(&report);
    agreement
        .filter(|text| args.study.json && text.starts_with("warning"))
        .iter()
        .for_each(|text| note(text));
    outputs.commit_after(|| output::report(args.study.json, &report, report::print))
}

/// Refuses prompts that give nothing to bring back, and notes where the clean one gives the wrong answer. `clean` is its logit
/// difference, `difference` how much larger it is than the corrupted prompt's.
fn check_difference(args: &PatchArgs, clean: f64, difference: f64) -> anyhow::Result<()> {
    if difference.abs() < 1e-6 {
        bail!(
            "the logit difference is {clean:.4} after either prompt, so there is nothing to bring back: choose prompts, --answer \
             and --against that tell the two apart"
        );
    }
    if clean < 0.0 {
        note(&format!(
            "the clean prompt makes {} less likely than {}: swap the prompts, or --answer and --against, if the model should \
             get the clean one right",
            visible_token(&args.answer),
            visible_token(&args.against)
        ));
    }
    Ok(())
}

/// Refuses edges of a model or a text that they are not for.
fn check_edges(session: &Session, t: usize) -> anyhow::Result<()> {
    let config = session.model.config();
    if config.heads().key_heads != config.n_head {
        bail!("--edges: the heads of this model share keys and values; leave it out");
    }
    // The results of all heads of both runs, and what they read for queries, keys and values, with its gradients.
    let bytes = 8 * 8 * config.n_layer * t * config.n_head * config.n_embd;
    if bytes > LARGEST_EDGES {
        bail!(
            "--edges: {} heads over {t} tokens take some {} GB; choose shorter prompts, or leave it out",
            config.n_layer * config.n_head,
            bytes >> 30
        );
    }
    Ok(())
}

/// The tokens of both prompts, which must have the same number.
fn prompts(args: &PatchArgs, session: &Session) -> anyhow::Result<(Vec<u32>, Vec<u32>)> {
    let clean = Prompt::new(session, &args.clean, "the clean prompt")?.ids;
    let corrupt = Prompt::new(session, &args.corrupt, "the corrupted prompt")?.ids;
    if clean.len() != corrupt.len() {
        let spelled = |ids: &[u32]| {
            session.shown(ids).iter().map(|token| visible_token(token)).collect::<Vec<_>>().join(" ")
        };
        bail!(
            "the clean prompt has {} tokens and the corrupted one {}, so their positions do not correspond; reword one of \
             them:\n  {}\n  {}",
            clean.len(),
            corrupt.len(),
            spelled(&clean),
            spelled(&corrupt)
        );
    }
    Ok((clean, corrupt))
}

/// What to patch: the terminal shows no more than a few positions, JSON all.
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

/// Pearson's correlation of exact and estimated numbers; `None` if either does not vary.
fn correlation(heads: &[HeadPatch]) -> Option<f64> {
    let n = heads.len() as f64;
    let mean = |of: &dyn Fn(&HeadPatch) -> f64| heads.iter().map(of).sum::<f64>() / n;
    let (exact, estimated) = (mean(&|head| head.exact), mean(&|head| head.estimated));
    let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        heads.iter().map(|head| of(head.exact - exact, head.estimated - estimated)).sum()
    };
    let spread = (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt();
    (spread > 0.0).then(|| sum(&|a, b| a * b) / spread)
}

/// The edges (3, L, H, L, H) that are not 0, largest size first, as shares of the difference.
fn ranked(scores: &Tensor, difference: f64) -> candle_core::Result<Vec<Edge>> {
    let &[_, layers, heads, ..] = scores.dims() else { return Ok(vec![]) };
    let name = |i: usize| format!("{}.{}", i / heads, i % heads);
    let mut all = vec![];
    for (i, score) in scores.flatten_all()?.to_vec1::<f64>()?.into_iter().enumerate() {
        let count = layers * heads;
        if score != 0.0 {
            let reads = ["q", "k", "v"][i / (count * count)];
            let (from, to) = (name(i / count % count), name(i % count));
            all.push(Edge { reads, from, to, estimated: score / difference });
        }
    }
    all.sort_by(|a, b| b.estimated.abs().total_cmp(&a.estimated.abs()));
    Ok(all)
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
