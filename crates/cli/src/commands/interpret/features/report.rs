//! The report of `gpt2 features`, and how it is printed.

use crate::output;
use gpt2_engine::Label;
use gpt2_engine::RunProvenance;
use gpt2_engine::words::short;
use gpt2_loader::DictionaryOrigin;
use gpt2_view::Align::{Left, Right};
use gpt2_view::{Table, visible_text};
use serde::Serialize;
use std::fmt::{self, Display};
use std::io::Write;

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) provenance: RunProvenance,
    pub(super) model: String,
    pub(super) dictionary: DictionarySummary,
    pub(super) quality: Quality,
    pub(super) tokens: Vec<TokenFeatures>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) details: Vec<Detail>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) effects: Option<Attributed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) attention: Option<Attention>,
}

/// The dictionary's name and origin, and the values that it reads and predicts.
#[derive(Clone, Serialize)]
pub(super) struct DictionarySummary {
    /// The folder, or the repository on the Hub with the folder in it.
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) origin: Option<DictionaryOrigin>,
    pub(super) architecture: String,
    /// The value that it reads.
    pub(super) hook: String,
    /// The value that a transcoder predicts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hook_out: Option<String>,
    pub(super) features: usize,
}

impl Display for DictionarySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, architecture, hook, hook_out, features, .. } = self;
        write!(f, "{}: {architecture}, {features} features of {hook}", visible_text(name))?;
        hook_out.iter().try_for_each(|hook_out| write!(f, ", predicts {hook_out}"))
    }
}

/// The quality of the reconstruction. Losses are means in nats; a single token has none.
#[derive(Serialize)]
pub(super) struct Quality {
    /// The mean number of features that fire at a position.
    pub(super) l0: f64,
    pub(super) explained_variance: Option<f64>,
    pub(super) loss: Option<f64>,
    pub(super) loss_rebuilt: Option<f64>,
    pub(super) loss_zeroed: Option<f64>,
    pub(super) loss_recovered: Option<f64>,
}

/// A token's strongest features.
#[derive(Serialize)]
pub(super) struct TokenFeatures {
    pub(super) position: usize,
    pub(super) token: Label,
    /// The number of features that fire.
    pub(super) fired: usize,
    pub(super) strongest: Vec<Active>,
}

#[derive(Serialize)]
pub(super) struct Active {
    pub(super) feature: u32,
    pub(super) activation: f32,
}

/// One of `--feature`.
#[derive(Serialize)]
pub(super) struct Detail {
    pub(super) feature: u32,
    pub(super) fires: Vec<Fires>,
    /// `None` if the feature does not write directly to the residual stream.
    pub(super) promoted: Option<Promoted>,
}

#[derive(Serialize)]
pub(super) struct Fires {
    pub(super) position: usize,
    pub(super) token: Label,
    pub(super) activation: f32,
}

/// Tokens with the change of their logits per unit of the feature's activation. The scales of `ln_f` and of a
/// normalizing dictionary are left out.
#[derive(Clone, Serialize)]
pub(super) struct Promoted {
    pub(super) likelier: Vec<(Label, f64)>,
    pub(super) less_likely: Vec<(Label, f64)>,
}

/// The contributions of features to a logit, or to a difference of logits, at the last position.
#[derive(Serialize)]
pub(super) struct Attributed {
    pub(super) target: Label,
    pub(super) against: Option<Label>,
    /// The effects of all features at all positions together.
    pub(super) total: f64,
    pub(super) largest: Vec<FeatureEffect>,
}

#[derive(Serialize)]
pub(super) struct FeatureEffect {
    pub(super) position: usize,
    pub(super) token: Label,
    pub(super) feature: u32,
    pub(super) activation: f32,
    pub(super) effect: f64,
}

/// A head's score of a key for a query, before softmax, by pairs of features.
#[derive(Serialize)]
pub(super) struct Attention {
    pub(super) head: String,
    pub(super) query: TokenAtPosition,
    pub(super) key: TokenAtPosition,
    pub(super) weight: f64,
    pub(super) score: f64,
    /// The largest.
    pub(super) pairs: Vec<FeaturePair>,
}

#[derive(Serialize)]
pub(super) struct TokenAtPosition {
    pub(super) position: usize,
    pub(super) token: Label,
}

/// A pair of features; `None` is the rest of the value, which is no feature.
#[derive(Serialize)]
pub(super) struct FeaturePair {
    pub(super) query: Option<Active>,
    pub(super) key: Option<Active>,
    pub(super) score: f64,
}

pub(super) fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}", report.provenance.first_line())?;
    writeln!(out, "{}", report.dictionary)?;
    writeln!(out, "{}\n", quality(&report.quality))?;
    if report.details.is_empty() && report.effects.is_none() && report.attention.is_none() {
        strongest(&mut out, report)?;
    }
    for detail in &report.details {
        print_detail(&mut out, detail)?;
    }
    if let Some(effects) = &report.effects {
        print_effects(&mut out, effects)?;
    }
    match &report.attention {
        Some(attention) => {
            if report.effects.is_some() {
                writeln!(out)?;
            }
            print_attention(&mut out, attention)
        }
        None => Ok(()),
    }
}

fn quality(quality: &Quality) -> String {
    let mut parts = vec![format!("L0 {:.1}", quality.l0)];
    if let Some(explained) = quality.explained_variance {
        parts.push(format!("explained variance {}", short(explained)));
    }
    if let (Some(clean), Some(rebuilt), Some(zeroed)) =
        (quality.loss, quality.loss_rebuilt, quality.loss_zeroed)
    {
        let recovered = quality.loss_recovered.map(|share| format!(": {} recovered", short(share)));
        parts.push(format!(
            "loss {}, rebuilt {}, zeroed {} nats{}",
            short(clean),
            short(rebuilt),
            short(zeroed),
            recovered.unwrap_or_default()
        ));
    }
    parts.join("; ")
}

fn strongest(out: &mut impl Write, report: &Report) -> anyhow::Result<()> {
    let shown = report.tokens.iter().map(|place| place.strongest.len()).max().unwrap_or(0);
    let mut columns = vec![("position", Right), ("token", Left), ("fire", Right)];
    for _ in 0..shown {
        columns.extend([("feature", Right), ("activation", Right)]);
    }
    let mut table = Table::new(&columns);
    for place in &report.tokens {
        let mut cells = vec![place.position.to_string(), place.token.to_string(), place.fired.to_string()];
        cells.extend(
            place.strongest.iter().flat_map(|one| [one.feature.to_string(), short(one.activation.into())]),
        );
        cells.resize(columns.len(), String::new());
        table.row(cells);
    }
    write!(out, "{}", table.render())?;
    Ok(())
}

/// The tokens that a feature speaks for and against.
pub(super) fn print_promoted(out: &mut impl Write, promoted: Option<&Promoted>) -> anyhow::Result<()> {
    match promoted {
        Some(promoted) => {
            let list = |tokens: &[(Label, f64)]| {
                let each = tokens.iter().map(|(token, logit)| format!("{token} {logit:+.2}"));
                each.collect::<Vec<_>>().join(", ")
            };
            writeln!(out, "  makes likelier     {}", list(&promoted.likelier))?;
            writeln!(out, "  makes less likely  {}", list(&promoted.less_likely))?;
        }
        None => writeln!(out, "  what it adds does not go straight into the residual stream")?,
    }
    Ok(())
}

fn print_detail(out: &mut impl Write, detail: &Detail) -> anyhow::Result<()> {
    writeln!(out, "feature {}", detail.feature)?;
    print_promoted(out, detail.promoted.as_ref())?;
    if detail.fires.is_empty() {
        writeln!(out, "  fires nowhere in this text\n")?;
        return Ok(());
    }
    let mut table = Table::new(&[("position", Right), ("token", Left), ("activation", Right)]);
    for one in &detail.fires {
        table.row(vec![one.position.to_string(), one.token.to_string(), short(one.activation.into())]);
    }
    writeln!(out, "\n{}", table.render())?;
    Ok(())
}

fn print_effects(out: &mut impl Write, effects: &Attributed) -> anyhow::Result<()> {
    let of = match &effects.against {
        Some(against) => format!("the logit of {} minus that of {against}", effects.target),
        None => format!("the logit of {}", effects.target),
    };
    writeln!(out, "what features add to {of}, to first order; all of them {:+.3}\n", effects.total)?;
    let columns =
        [("position", Right), ("token", Left), ("feature", Right), ("activation", Right), ("effect", Right)];
    let mut table = Table::new(&columns);
    for one in &effects.largest {
        table.row(vec![
            one.position.to_string(),
            one.token.to_string(),
            one.feature.to_string(),
            short(one.activation.into()),
            format!("{:+.3}", one.effect),
        ]);
    }
    write!(out, "{}", table.render())?;
    Ok(())
}

fn print_attention(out: &mut impl Write, attention: &Attention) -> anyhow::Result<()> {
    let Attention { head, query, key, weight, score, pairs } = attention;
    writeln!(
        out,
        "head {head} gives {weight:.3} of its attention from {} at {} to {} at {}; its score before softmax is {score:+.3}, mostly\n",
        query.token, query.position, key.token, key.position
    )?;
    let columns = [
        ("query's feature", Right),
        ("activation", Right),
        ("key's feature", Right),
        ("activation", Right),
        ("score", Right),
    ];
    let mut table = Table::new(&columns);
    let side = |active: &Option<Active>| match active {
        Some(Active { feature, activation }) => [feature.to_string(), short((*activation).into())],
        None => ["the rest".into(), String::new()],
    };
    for one in pairs {
        let [query, key] = [side(&one.query), side(&one.key)];
        table.row([&query[..], &key[..], &[format!("{:+.3}", one.score)]].concat());
    }
    write!(out, "{}", table.render())?;
    Ok(())
}
