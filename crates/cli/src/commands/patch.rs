//! `gpt2 patch`: which parts of the model carry the difference between two prompts.

use crate::changes::Reads;
use crate::inputs::Inputs;
use crate::output::{self, note};
use crate::outputs::Outputs;
use crate::progress::with_bar;
use crate::prompt::{encode, single_token};
use crate::provenance::Provenance;
use crate::session::Session;
use crate::study::StudyArgs;
use crate::values::pairs_by_head;
use anyhow::bail;
use candle_core::{Device, Tensor};
use gpt2_model::analysis::{
    Contrast, EdgeGradients, Metric, Parts, Patched, activation_patching, attribution_patching,
    edge_attribution,
};
use gpt2_model::hooks::Hooks;
use gpt2_view::Align::{Left, Right};
use gpt2_view::{NumberMap, PictureFormat, Table, visible_token};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Both prompts need the same number of tokens. Each part of the corrupted run is replaced by the clean run's. Its number says
how far that moves the logit difference: 0 leaves the corrupted run's, 1 restores the clean run's. Exact numbers take one run
per part; estimates (attribution patching) take one forward and one backward pass for all parts.

Examples:
  gpt2 patch \"O Romeo, Romeo\" \"O Romeo, Juliet\" --answer \",\" --against \".\"
  gpt2 patch --model gpt2 \"When Mary and John went to the store, John gave a drink to\" \\
             \"When Mary and John went to the store, Mary gave a drink to\" --answer \" Mary\" --against \" John\"
  gpt2 patch CLEAN CORRUPT --answer A --against B --by-position --picture patch.svg --json")]
pub(crate) struct PatchArgs {
    /// The prompt that the model gets right
    #[arg(value_name = "CLEAN")]
    pub(crate) clean: String,
    /// The prompt that differs from it in the tokens of interest
    #[arg(value_name = "CORRUPT")]
    pub(crate) corrupt: String,
    /// The token that should follow the clean prompt, including its leading space
    #[arg(long, value_name = "TOKEN")]
    pub(crate) answer: String,
    /// The token that should follow the corrupted prompt
    #[arg(long, value_name = "TOKEN")]
    pub(crate) against: String,
    /// Also patch each head at each position: a run for each
    #[arg(long)]
    pub(crate) by_position: bool,
    /// Also estimate the edges between heads, with gradients in the corrupted run, or their mean over STEPS runs between the
    /// prompts (integrated gradients); for small models and short prompts
    #[arg(long, value_name = "STEPS", num_args = 0..=1, require_equals = true, default_missing_value = "0",
          value_parser = clap::value_parser!(u16).range(0..=100))]
    pub(crate) edges: Option<u16>,
    #[arg(long, value_name = "FILE", help = format!(
        "Draw the heads, or with --by-position each head at each position: {}",
        PictureFormat::names()
    ))]
    pub(crate) picture: Option<PathBuf>,
    /// Let --picture replace an existing file
    #[arg(long, requires = "picture")]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) study: StudyArgs,
}

/// How many parts of a kind to print; JSON has all.
const SHOWN: usize = 10;

/// The most bytes that edges may take.
const LARGEST_EDGES: usize = 8 << 30;

#[derive(Serialize)]
struct Report {
    provenance: Provenance,
    clean: Vec<String>,
    corrupt: Vec<String>,
    answer: String,
    against: String,
    /// The answer's logit less that of the other token.
    clean_difference: f64,
    corrupt_difference: f64,
    /// Each head at all positions.
    heads: Vec<HeadPatch>,
    /// How well the estimates of the heads agree with the exact numbers (Pearson's correlation).
    correlation: Option<f64>,
    /// The residual stream before each block, at each position: a row for each layer.
    streams: Vec<Vec<f64>>,
    /// What each attention block and each MLP adds, at each position.
    attention: Option<Vec<Vec<f64>>>,
    mlps: Option<Vec<Vec<f64>>>,
    /// Each head at each position, by layer, head and position.
    #[serde(skip_serializing_if = "Option::is_none")]
    heads_by_position: Option<Vec<Vec<Vec<f64>>>>,
    /// The estimates of the same.
    heads_by_position_estimated: Vec<Vec<Vec<f64>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    edges: Option<Vec<Edge>>,
}

#[derive(Clone, Serialize)]
struct HeadPatch {
    layer: usize,
    head: usize,
    /// 0: as in the corrupted run, 1: as in the clean one.
    exact: f64,
    /// The same by attribution patching.
    estimated: f64,
}

/// An edge between two heads, largest size first.
#[derive(Serialize)]
struct Edge {
    /// What of the receiving head reads: `q`, `k` or `v`.
    reads: &'static str,
    from: String,
    to: String,
    estimated: f64,
}

pub(crate) fn run(args: &PatchArgs) -> anyhow::Result<()> {
    let mut outputs = Outputs::new(args.overwrite);
    let format = args.picture.as_deref().map(PictureFormat::from_path).transpose()?;
    if let Some(path) = &args.picture {
        outputs.add("--picture", path);
    }
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
    let patched = patch(args, &session, &contrast)?;
    let difference = patched.clean - patched.corrupt;
    let number = |x: f64| Tensor::new(x, &Device::Cpu);
    args.study.finite.check(&session, &clean_ids, contrast.hooks, [&number(patched.clean)?])?;
    args.study.finite.check(&session, &corrupt_ids, contrast.hooks, [&number(patched.corrupt)?])?;
    if difference.abs() < 1e-6 {
        bail!(
            "the logit difference is {:.4} after either prompt, so there is nothing to bring back: choose prompts, --answer and \
             --against that tell the two apart",
            patched.clean
        );
    }
    let estimate = attribution_patching(&session.model, &contrast)?;
    let edges = args.edges.map(|steps| {
        let steps = usize::from(steps);
        let gradients = if steps == 0 { EdgeGradients::Corrupt } else { EdgeGradients::Integrated { steps } };
        edge_attribution(&session.model, &contrast, gradients)
    });
    let edges = edges.transpose()?;
    let numbers = patched.maps.iter().chain([&estimate.heads]).chain(&edges);
    args.study.finite.check(&session, &corrupt_ids, contrast.hooks, numbers)?;
    let edges = edges.map(|scores| ranked(&scores, difference)).transpose()?;

    let share = |map: &Tensor| map.affine(1.0 / difference, -patched.corrupt / difference);
    let exact = share(&patched.maps[0])?; // (L, H)
    let estimated = (estimate.heads.sum(2)? / difference)?; // (L, H)
    let (tokens, corrupt_tokens) = (session.labels(&clean), session.labels(&corrupt));
    let provenance = Provenance::new(&session, &clean)?.under(&changes);
    let by_position = patched.maps.get(2).filter(|_| args.by_position).map(&share).transpose()?; // (L, H, T)
    let rest = &patched.maps[2 + usize::from(args.by_position)..];
    let rows = |map: Option<&Tensor>| map.map(|map| share(map)?.to_vec2()).transpose();
    if let (Some(path), Some(format)) = (&args.picture, format) {
        let title = format!(
            "{}: patching, {} against {}",
            session.name,
            visible_token(&args.answer),
            visible_token(&args.against)
        );
        let bytes = picture(format, &title, &exact, by_position.as_ref(), &tokens, &provenance)?;
        outputs.stage_bytes(path, &bytes)?;
    }
    let heads = pairs_by_head(&exact, &estimated, |layer, head, exact, estimated| HeadPatch {
        layer,
        head,
        exact,
        estimated,
    })?;
    let report = Report {
        provenance,
        clean: tokens,
        corrupt: corrupt_tokens,
        answer: args.answer.clone(),
        against: args.against.clone(),
        clean_difference: patched.clean,
        corrupt_difference: patched.corrupt,
        correlation: correlation(&heads),
        heads,
        streams: share(&patched.maps[1])?.to_vec2()?,
        attention: rows(rest.first())?,
        mlps: rows(rest.get(1))?,
        heads_by_position: by_position.map(|map| map.to_vec3()).transpose()?,
        heads_by_position_estimated: (estimate.heads / difference)?.to_vec3()?,
        edges,
    };
    outputs.commit_after(|| output::report(args.study.json, &report, print))
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
    let (tokenizer, n) = (session.tokenizer()?, session.model.config().n_positions);
    let ids = |text: &str, what: &str| -> anyhow::Result<Vec<u32>> {
        tokenizer.check_length(text, n)?;
        Ok(encode(tokenizer, text, what)?)
    };
    let (clean, corrupt) =
        (ids(&args.clean, "the clean prompt")?, ids(&args.corrupt, "the corrupted prompt")?);
    if clean.is_empty() || clean.len() > n {
        bail!("the clean prompt has {} tokens, expected 1 to the model's n_positions = {n}", clean.len());
    }
    if clean.len() != corrupt.len() {
        let spelled = |ids: &[u32]| {
            session.labels(ids).iter().map(|token| visible_token(token)).collect::<Vec<_>>().join(" ")
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

fn patch(args: &PatchArgs, session: &Session, contrast: &Contrast) -> anyhow::Result<Patched> {
    let mut parts = vec![Parts::Heads, Parts::Streams];
    parts.extend(args.by_position.then_some(Parts::HeadsByPosition));
    if args.study.json {
        parts.extend([Parts::Attention, Parts::Mlps]); // the terminal does not show them
    }
    Ok(with_bar("runs", |progress| activation_patching(&session.model, contrast, &parts, progress))?)
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
    format: PictureFormat,
    title: &str,
    heads: &Tensor,
    by_position: Option<&Tensor>,
    tokens: &[String],
    made_by: &Provenance,
) -> anyhow::Result<Vec<u8>> {
    let (layers, count) = heads.dims2()?;
    let unit = "share of the logit difference";
    let made_by = made_by.for_files()?;
    let (rows, columns, axes, values): (Vec<_>, Vec<_>, _, _) = match by_position {
        Some(map) => (
            (0..layers * count).map(|i| format!("{}.{}", i / count, i % count)).collect(),
            tokens.to_vec(),
            ("head", "token"),
            map.reshape((layers * count, tokens.len()))?,
        ),
        None => (
            (0..layers).map(|layer| layer.to_string()).collect(),
            (0..count).map(|head| head.to_string()).collect(),
            ("layer", "head"),
            heads.clone(),
        ),
    };
    let map =
        NumberMap { title, row_axis: axes.0, column_axis: axes.1, unit, rows: &rows, columns: &columns };
    Ok(map.draw(format, &values, &made_by)?)
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}\n", report.provenance.first_line())?;
    let (answer, against) = (visible_token(&report.answer), visible_token(&report.against));
    writeln!(
        out,
        "the logit of {answer} less that of {against}: {:+.3} after the clean prompt, {:+.3} after the corrupted one",
        report.clean_difference, report.corrupt_difference
    )?;
    writeln!(
        out,
        "below: how much of the difference a part brings back when the corrupted run gets it from the clean one\n"
    )?;
    let mut sorted = report.heads.clone();
    sorted.sort_by(|a, b| b.exact.abs().total_cmp(&a.exact.abs()));
    let mut table = Table::new(&[("head", Right), ("exact", Right), ("estimated", Right)]);
    for HeadPatch { layer, head, exact, estimated } in sorted.iter().take(SHOWN) {
        table.row(vec![format!("{layer}.{head}"), format!("{exact:+.3}"), format!("{estimated:+.3}")]);
    }
    writeln!(out, "{}", table.render())?;
    if let Some(correlation) = report.correlation {
        writeln!(
            out,
            "the estimates of all {} heads, from one backward pass, correlate with the exact numbers by {correlation:.2}\n",
            report.heads.len()
        )?;
    }
    writeln!(out, "the residual stream before each block, at the positions that matter most:\n")?;
    write!(out, "{}", streams(report))?;
    if let Some(edges) = &report.edges {
        writeln!(out, "\nedges between heads (estimated):\n")?;
        let mut table = Table::new(&[("from", Right), ("to", Right), ("reads", Left), ("estimated", Right)]);
        for Edge { reads, from, to, estimated } in edges.iter().take(SHOWN) {
            table.row(vec![from.clone(), to.clone(), (*reads).to_owned(), format!("{estimated:+.3}")]);
        }
        write!(out, "{}", table.render())?;
    }
    let rest = report.heads.len().saturating_sub(SHOWN);
    if rest > 0 {
        note(&format!("{SHOWN} of {} heads; --json has all, also by position", report.heads.len()));
    }
    Ok(())
}

/// A row for each position that brings back most somewhere, a column for each layer.
fn streams(report: &Report) -> String {
    const POSITIONS: usize = 8;
    let most = |position: usize| report.streams.iter().map(|layer| layer[position].abs()).fold(0.0, f64::max);
    let mut positions: Vec<usize> = (0..report.clean.len()).collect();
    positions.sort_by(|a, b| most(*b).total_cmp(&most(*a)));
    positions.truncate(POSITIONS);
    positions.sort_unstable();
    let titles: Vec<String> = (0..report.streams.len()).map(|layer| layer.to_string()).collect();
    let mut columns = vec![("", Right), ("clean", Left), ("corrupted", Left)];
    columns.extend(titles.iter().map(|title| (title.as_str(), Right)));
    let mut table = Table::new(&columns);
    for position in positions {
        let mut cells = vec![
            position.to_string(),
            visible_token(&report.clean[position]),
            visible_token(&report.corrupt[position]),
        ];
        cells.extend(report.streams.iter().map(|layer| format!("{:+.2}", layer[position])));
        table.row(cells);
    }
    table.render()
}
