//! `gpt2 circuits`: what the weights of heads do by token, and how heads feed one another.

use crate::inputs::Inputs;
use crate::output::{self, note};
use crate::outputs::Outputs;
use crate::progress::with_bar;
use crate::prompt::single_token;
use crate::provenance::Provenance;
use crate::session::{ModelArgs, Session};
use crate::values::one_of;
use gpt2_circuits::{Circuit, Circuits, Composition, Eigenvalue, Entry};
use gpt2_model::hooks::Head;
use gpt2_view::Align::{Left, Right};
use gpt2_view::{Table, visible_text, visible_token};
use serde::Serialize;
use std::io::Write;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Weights alone, without a text: layer norms are folded in and everything is centered, as in TransformerLens. QK says which
token looks for which, OV which tokens become likelier when a token is attended to.

Examples:
  gpt2 circuits                           copying scores and the strongest compositions between heads
  gpt2 circuits 1.2                       one head: its largest entries by token, eigenvalues, singular vectors
  gpt2 circuits 1.2 --token \" Romeo\"      what the head does with one token
  gpt2 circuits 5.1 --model gpt2 --json")]
pub(crate) struct CircuitsArgs {
    /// A head, LAYER.HEAD counted from 0 [default: all heads, and how they feed one another]
    #[arg(value_name = "L.H", value_parser = str::parse::<Head>)]
    pub(crate) head: Option<Head>,
    /// Tokens whose rows to show, including their leading space, instead of the largest entries (repeatable)
    #[arg(long, value_name = "TOKEN", requires = "head")]
    pub(crate) token: Vec<String>,
    /// Which compositions to rank: of queries, keys or values, or all
    #[arg(long, value_name = "KIND", conflicts_with = "head", value_parser = one_of(COMPOSITIONS))]
    pub(crate) composition: Vec<Composition>,
    /// How many entries to show
    #[arg(short = 'k', long, default_value_t = 10, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) top: u16,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

const COMPOSITIONS: &[(&str, Composition)] =
    &[("q", Composition::Q), ("k", Composition::K), ("v", Composition::V)];

/// How many singular values to show, and how many tokens of each.
const SINGULAR: usize = 5;
const TOKENS: usize = 6;

#[derive(Serialize)]
struct Overview {
    provenance: Provenance,
    heads: Vec<OfHead>,
    /// How strongly the output of one head feeds another, strongest first.
    compositions: Vec<Pair>,
}

#[derive(Serialize)]
struct OfHead {
    layer: usize,
    head: usize,
    /// The sum of the eigenvalues of OV by token divided by the sum of their sizes, -1 to 1.
    copying: Option<f64>,
}

#[derive(Serialize)]
struct Pair {
    /// What of the later head reads: `q`, `k` or `v`.
    reads: &'static str,
    from: String,
    to: String,
    score: f64,
}

#[derive(Serialize)]
struct OneHead {
    provenance: Provenance,
    layer: usize,
    head: usize,
    copying: Option<f64>,
    /// Of OV by token: real and imaginary part, largest size first.
    eigenvalues: Vec<[f64; 2]>,
    /// Scores of a key's token for a query's token.
    qk: Vec<Link>,
    /// Changes of a token's logit when a token is attended to.
    ov: Vec<Link>,
    ov_singular: Vec<Direction>,
    qk_singular: Vec<Direction>,
}

#[derive(Serialize)]
struct Link {
    from: String,
    from_id: u32,
    to: String,
    to_id: u32,
    value: f64,
}

/// A singular value, and the tokens of its directions. Both signs of the two directions together mean the same.
#[derive(Serialize)]
struct Direction {
    value: f64,
    reads: Vec<String>,
    writes: Vec<String>,
}

pub(crate) fn run(args: &CircuitsArgs) -> anyhow::Result<()> {
    let session = args.model.session_for(Inputs::default(), &Outputs::new(false))?;
    let circuits = Circuits::new(&session.model)?;
    let provenance = Provenance::of_weights(&session)?;
    match args.head {
        None => {
            let report = overview(args, &circuits, provenance)?;
            output::report(args.json, &report, |report| print_overview(report, args.top.into()))?;
        }
        Some(head) => {
            let report = one_head(args, &session, &circuits, head, provenance)?;
            output::report(args.json, &report, print_head)?;
        }
    }
    Ok(())
}

/// `None` for the NaN of a head whose values are 0.
fn known(score: f64) -> Option<f64> {
    Some(score).filter(|score| !score.is_nan())
}

fn overview(args: &CircuitsArgs, circuits: &Circuits, provenance: Provenance) -> anyhow::Result<Overview> {
    let mut heads = vec![];
    for layer in 0..circuits.layers() {
        for head in 0..circuits.heads(layer) {
            let copying = known(circuits.copying_score(Head { layer, head })?);
            heads.push(OfHead { layer, head, copying });
        }
    }
    let mut compositions = vec![];
    let asked = |kind: &Composition| args.composition.is_empty() || args.composition.contains(kind);
    for &(reads, kind) in COMPOSITIONS.iter().filter(|(_, kind)| asked(kind)) {
        let scores = with_bar("pairs of layers", |progress| circuits.composition(kind, progress))?;
        let count = heads.len();
        for (i, score) in scores.flatten_all()?.to_vec1::<f64>()?.into_iter().enumerate() {
            let name = |i: usize| format!("{}.{}", heads[i].layer, heads[i].head);
            if score > 0.0 {
                compositions.push(Pair { reads, from: name(i / count), to: name(i % count), score });
            }
        }
    }
    compositions.sort_by(|a, b| b.score.total_cmp(&a.score));
    Ok(Overview { provenance, heads, compositions })
}

fn one_head(
    args: &CircuitsArgs,
    session: &Session,
    circuits: &Circuits,
    head: Head,
    provenance: Provenance,
) -> anyhow::Result<OneHead> {
    let tokens = args.token.iter().map(|text| single_token(session, "--token", text));
    let tokens = tokens.collect::<anyhow::Result<Vec<u32>>>()?;
    let links = |circuit: Circuit| -> anyhow::Result<Vec<Link>> {
        let entries = if tokens.is_empty() {
            with_bar("tokens", |progress| circuits.largest_entries(head, circuit, args.top.into(), progress))?
        } else {
            rows(circuits, head, circuit, &tokens, args.top.into())?
        };
        Ok(entries.into_iter().map(|entry| link(session, entry)).collect())
    };
    let singular = |circuit: Circuit| -> anyhow::Result<Vec<Direction>> {
        let found = circuits.singular(head, circuit)?;
        let direction = |i: usize| -> anyhow::Result<Direction> {
            let named = |direction: &candle_core::Tensor, reads: bool| -> anyhow::Result<Vec<String>> {
                let ids: Vec<u32> =
                    circuits.tokens_of(direction, reads, TOKENS)?.into_iter().map(|(id, _)| id).collect();
                Ok(session.labels(&ids))
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

fn link(session: &Session, Entry { from, to, value }: Entry) -> Link {
    let label = |id: u32| session.labels(&[id]).concat();
    Link { from: label(from), from_id: from, to: label(to), to_id: to, value }
}

fn print_overview(report: &Overview, shown: usize) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}: weights alone\n", visible_text(&report.provenance.model))?;
    writeln!(
        out,
        "copying: from -1 to 1, whether a head raises the logits of the tokens that it attends to; highest first\n"
    )?;
    let mut sorted: Vec<&OfHead> = report.heads.iter().collect();
    let of = |head: &OfHead| head.copying.unwrap_or(f64::NEG_INFINITY);
    sorted.sort_by(|a, b| of(b).total_cmp(&of(a)));
    let mut table = Table::new(&[("head", Right), ("copying", Right)]);
    for OfHead { layer, head, copying } in sorted.into_iter().take(shown) {
        let copying = copying.map_or_else(|| "none".to_owned(), |copying| format!("{copying:+.3}"));
        table.row(vec![format!("{layer}.{head}"), copying]);
    }
    writeln!(out, "{}", table.render())?;
    writeln!(
        out,
        "composition: how strongly the output of a head feeds a later one's queries, keys or values\n"
    )?;
    let mut table = Table::new(&[("from", Right), ("to", Right), ("reads", Left), ("score", Right)]);
    for Pair { reads, from, to, score } in report.compositions.iter().take(shown) {
        table.row(vec![from.clone(), to.clone(), (*reads).to_owned(), format!("{score:.3}")]);
    }
    write!(out, "{}", table.render())?;
    if report.heads.len() > shown || report.compositions.len() > shown {
        note(&format!("the first {shown} of each; -k shows more, --json has all"));
    }
    Ok(())
}

fn print_head(report: &OneHead) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}: weights alone\n", visible_text(&report.provenance.model))?;
    let largest = report
        .eigenvalues
        .iter()
        .take(4)
        .map(|[re, im]| if im.abs() < 1e-9 { format!("{re:+.2}") } else { format!("{re:+.2}{im:+.2}i") });
    writeln!(
        out,
        "head {}.{}: copying {}; the largest eigenvalues of OV by token: {}\n",
        report.layer,
        report.head,
        report.copying.map_or_else(|| "none".to_owned(), |copying| format!("{copying:+.3}")),
        largest.collect::<Vec<_>>().join(", ")
    )?;
    for (title, links, from, to) in [
        ("QK, where it looks: the score of a key for a query", &report.qk, "query", "key"),
        (
            "OV, what it writes: the change of a logit when a token is attended to",
            &report.ov,
            "attended",
            "logit of",
        ),
    ] {
        writeln!(out, "{title}\n")?;
        let mut table = Table::new(&[(from, Left), (to, Left), ("value", Right)]);
        for Link { from, to, value, .. } in links {
            table.row(vec![visible_token(from), visible_token(to), format!("{value:+.2}")]);
        }
        writeln!(out, "{}", table.render())?;
    }
    for (title, directions, reads, writes) in [
        (
            "singular directions of OV: what it reads and what that becomes",
            &report.ov_singular,
            "reads",
            "writes",
        ),
        (
            "singular directions of QK: which queries look for which keys",
            &report.qk_singular,
            "queries",
            "keys",
        ),
    ] {
        writeln!(out, "{title}\n")?;
        let mut table = Table::new(&[("value", Right), (reads, Left), (writes, Left)]);
        for Direction { value, reads, writes } in directions {
            let named =
                |tokens: &[String]| tokens.iter().map(|t| visible_token(t)).collect::<Vec<_>>().join(" ");
            table.row(vec![format!("{value:.2}"), named(reads), named(writes)]);
        }
        writeln!(out, "{}", table.render())?;
    }
    Ok(())
}
