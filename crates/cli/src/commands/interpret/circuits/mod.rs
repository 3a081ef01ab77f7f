//! `gpt2 circuits`: what the weights of heads do by token, and how heads feed one another.

mod picture;
mod report;

use crate::model::args::ModelArgs;
use crate::output;
use crate::output::progress::with_bar;
use crate::output::read_files::ReadFiles;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::results::picture::{PictureArgs, PictureMetadata};
use crate::values::one_of;
use candle_core::Tensor;
use gpt2_circuits::{Circuit, Circuits, Composition, Eigenvalue, Entry};
use gpt2_engine::RunProvenance;
use gpt2_engine::texts::single_token;
use gpt2_engine::{Label, Opened};
use gpt2_model::hooks::Head;
use gpt2_view::Frame;
use report::{
    ComposedHeads, Direction, OfHead, OneHead, Overview, TokenLink, WrittenScores, print_head, print_overview,
};
use serde_json::{Value, json};

#[derive(Debug, clap::Args)]
// A group, because clap forgets a required argument that conflicts with a given one.
#[command(group = clap::ArgGroup::new("of_one").arg("head"))]
#[command(after_help = "\
This reads weights alone, without a text. Layer norms are folded in and everything is centered, as in TransformerLens. QK says
which token looks for which. OV says which tokens become likelier when a token is attended to. The picture has a map of the
copying scores and one of each composition. Of one head, it has the tables of QK and OV for the tokens of the largest entries.

Examples:
  gpt2 circuits   # which heads copy, and which feed which
  gpt2 circuits 1.2   # one head: largest entries, eigenvalues, singular vectors
  gpt2 circuits 1.2 --token \" king\"   # what it does with one token
  gpt2 circuits --composition k --picture keys.pdf --size 8.5cm   # for a paper
  gpt2 circuits 5.1 --model gpt2 --json")]
pub(crate) struct CircuitsArgs {
    /// A head, LAYER.HEAD counted from 0 [default: all heads, and how they feed one another]
    #[arg(value_name = "L.H", value_parser = str::parse::<Head>)]
    pub(crate) head: Option<Head>,
    /// Show the rows of these tokens, with their leading space, instead of the largest entries (repeatable)
    #[arg(long, value_name = "TOKEN", requires = "of_one")]
    pub(crate) token: Vec<String>,
    /// Rank only compositions of queries, of keys or of values (repeatable) [default: all three]
    #[arg(long, value_name = "KIND", conflicts_with = "head", value_parser = one_of(COMPOSITIONS))]
    pub(crate) composition: Vec<Composition>,
    /// How many entries to show
    #[arg(short = 'k', long, default_value_t = 10, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) top: u16,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) picture: PictureArgs,
    /// Let --picture replace an existing file
    #[arg(long, requires = "drawn", help_heading = "Files")]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

const COMPOSITIONS: &[(&str, Composition)] =
    &[("q", Composition::Q), ("k", Composition::K), ("v", Composition::V)];

/// The most singular values to show, and the tokens to show for each.
const SINGULAR: usize = 5;
const TOKENS: usize = 6;

pub(crate) fn run(args: &CircuitsArgs) -> anyhow::Result<()> {
    let mut outputs = Outputs::new(args.overwrite);
    args.picture.add(&mut outputs)?;
    let opened = args.model.open_for(ReadFiles::default(), &outputs)?;
    let circuits = Circuits::new(&opened.model)?;
    let provenance = RunProvenance::of_weights(&opened)?;
    match args.head {
        None => {
            let report = overview(args, &circuits, provenance)?;
            let about = PictureMetadata {
                title: format!("{}: copying, and how heads feed one another", opened.title()),
                made_by: &report.provenance,
                settings: Value::Null,
            };
            let draw = |frame: &Frame| picture::of_all(frame, &report);
            args.picture.draw(&mut outputs, &about, draw)?;
            let print = |report: &Overview| print_overview(report, args.top.into());
            outputs.commit_after(|| output::report(args.json, &report, print))
        }
        Some(head) => {
            let report = one_head(args, &opened, &circuits, head, provenance)?;
            let about = PictureMetadata {
                title: format!("{}: head {}.{} by token", opened.title(), head.layer, head.head),
                made_by: &report.provenance,
                settings: json!({ "tokens": args.token, "top": args.top }),
            };
            let draw = |frame: &Frame| picture::of_head(frame, &report, &circuits);
            args.picture.draw(&mut outputs, &about, draw)?;
            outputs.commit_after(|| output::report(args.json, &report, print_head))
        }
    }
}

/// `None` for the NaN of a head whose values are 0.
fn known(score: f64) -> Option<f64> {
    Some(score).filter(|score| !score.is_nan())
}

fn overview(args: &CircuitsArgs, circuits: &Circuits, provenance: RunProvenance) -> anyhow::Result<Overview> {
    let mut heads = vec![];
    for layer in 0..circuits.layers() {
        for head in 0..circuits.heads(layer) {
            let copying = known(circuits.copying_score(Head { layer, head })?);
            heads.push(OfHead { layer, head, copying });
        }
    }
    let mut compositions = vec![];
    let mut written = vec![];
    let asked = |kind: &Composition| args.composition.is_empty() || args.composition.contains(kind);
    for &(reads, kind) in COMPOSITIONS.iter().filter(|(_, kind)| asked(kind)) {
        let scores = with_bar("pairs of layers", |progress| {
            circuits.composition(kind, &mut |done, all| {
                progress(done, all);
                Ok(())
            })
        })?;
        let count = heads.len();
        for (i, score) in scores.flatten_all()?.to_vec1::<f64>()?.into_iter().enumerate() {
            let name = |i: usize| format!("{}.{}", heads[i].layer, heads[i].head);
            if score > 0.0 {
                compositions.push(ComposedHeads { reads, from: name(i / count), to: name(i % count), score });
            }
        }
        written.push(WrittenScores { reads, scores });
    }
    compositions.sort_by(|a, b| b.score.total_cmp(&a.score));
    Ok(Overview { provenance, heads, compositions, written })
}

fn one_head(
    args: &CircuitsArgs,
    opened: &Opened,
    circuits: &Circuits,
    head: Head,
    provenance: RunProvenance,
) -> anyhow::Result<OneHead> {
    let tokens = args.token.iter().map(|text| single_token(opened, "--token", text, &TERMINAL));
    let tokens = tokens.collect::<anyhow::Result<Vec<u32>>>()?;
    let links = |circuit: Circuit| -> anyhow::Result<Vec<TokenLink>> {
        let entries = if tokens.is_empty() {
            with_bar("tokens", |progress| circuits.largest_entries(head, circuit, args.top.into(), progress))?
        } else {
            rows(circuits, head, circuit, &tokens, args.top.into())?
        };
        Ok(entries.into_iter().map(|entry| link(opened, entry)).collect())
    };
    let singular = |circuit: Circuit| -> anyhow::Result<Vec<Direction>> {
        let found = circuits.singular(head, circuit)?;
        let direction = |i: usize| -> anyhow::Result<Direction> {
            let named = |direction: &Tensor, reads: bool| -> anyhow::Result<Vec<Label>> {
                let tokens = circuits.tokens_of(direction, reads, TOKENS)?;
                Ok(tokens.into_iter().map(|(id, _)| opened.label(id)).collect())
            };
            // QK reads on both sides: the queries' tokens and the keys'.
            let writes = named(&found.right.get(i)?, circuit == Circuit::Qk)?;
            Ok(Direction { value: found.values[i], reads: named(&found.left.get(i)?, true)?, writes })
        };
        (0..SINGULAR.min(found.values.len())).map(direction).collect()
    };
    let eigenvalues = circuits.token_eigenvalues(head)?;
    Ok(OneHead {
        provenance,
        layer: head.layer,
        head: head.head,
        copying: known(circuits.copying_score(head)?),
        eigenvalues: eigenvalues.into_iter().map(|Eigenvalue { re, im }| [re, im]).collect(),
        qk: links(Circuit::Qk)?,
        ov: links(Circuit::Ov)?,
        ov_singular: singular(Circuit::Ov)?,
        qk_singular: singular(Circuit::Qk)?,
    })
}

/// The largest entries of some tokens' rows, token by token.
#[allow(clippy::cast_possible_truncation)] // token ids are u32
fn rows(
    circuits: &Circuits,
    head: Head,
    circuit: Circuit,
    tokens: &[u32],
    count: usize,
) -> anyhow::Result<Vec<Entry>> {
    let table = circuits.rows(head, circuit, tokens)?.to_dtype(candle_core::DType::F64)?.to_vec2::<f64>()?;
    let mut all = vec![];
    for (&from, row) in tokens.iter().zip(table) {
        let mut entries: Vec<Entry> =
            row.into_iter().enumerate().map(|(to, value)| Entry { from, to: to as u32, value }).collect();
        entries.sort_by(|a, b| b.value.total_cmp(&a.value));
        all.extend(entries.into_iter().take(count));
    }
    Ok(all)
}

fn link(opened: &Opened, Entry { from, to, value }: Entry) -> TokenLink {
    TokenLink { from: opened.label(from), from_id: from, to: opened.label(to), to_id: to, value }
}
