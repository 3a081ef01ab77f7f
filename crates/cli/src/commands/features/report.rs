//! What `gpt2 features` prints.

use crate::output;
use crate::provenance::Provenance;
use crate::session::Label;
use gpt2_loader::DictionaryOrigin;
use gpt2_view::Align::{Left, Right};
use gpt2_view::Table;
use serde::Serialize;
use std::io::Write;

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) provenance: Provenance,
    pub(super) model: String,
    pub(super) dictionary: About,
    pub(super) quality: Quality,
    pub(super) tokens: Vec<Place>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) details: Vec<Detail>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) effects: Option<Attributed>,
}

/// Which dictionary it is.
#[derive(Clone, Serialize)]
pub(super) struct About {
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

/// How well the dictionary rebuilds the value. Losses are means in nats; a single token has none.
#[derive(Serialize)]
pub(super) struct Quality {
    /// How many features fire at a position, on average.
    pub(super) l0: f64,
    pub(super) explained_variance: Option<f64>,
    pub(super) loss: Option<f64>,
    pub(super) loss_rebuilt: Option<f64>,
    pub(super) loss_zeroed: Option<f64>,
    pub(super) loss_recovered: Option<f64>,
}

/// A token's strongest features.
#[derive(Serialize)]
pub(super) struct Place {
    pub(super) position: usize,
    pub(super) token: Label,
    /// How many features fire.
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
    /// None where what the feature adds does not go straight into the residual stream.
    pub(super) promoted: Option<Promoted>,
}

#[derive(Serialize)]
pub(super) struct Fires {
    pub(super) position: usize,
    pub(super) token: Label,
    pub(super) activation: f32,
}

/// Tokens with what a unit of the feature's activation adds to their logits, the scale of `ln_f`, and that of a dictionary that
/// normalizes, aside.
#[derive(Clone, Serialize)]
pub(super) struct Promoted {
    pub(super) likelier: Vec<(Label, f64)>,
    pub(super) less_likely: Vec<(Label, f64)>,
}

/// What features add to a logit, or a difference of logits, at the end.
#[derive(Serialize)]
pub(super) struct Attributed {
    pub(super) target: Label,
    pub(super) against: Option<Label>,
    /// The effects of all features at all positions together.
    pub(super) total: f64,
    pub(super) largest: Vec<OfFeature>,
}

#[derive(Serialize)]
pub(super) struct OfFeature {
    pub(super) position: usize,
    pub(super) token: Label,
    pub(super) feature: u32,
    pub(super) activation: f32,
    pub(super) effect: f64,
}

pub(super) fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}", report.provenance.first_line())?;
    let About { name, architecture, hook, hook_out, features, .. } = &report.dictionary;
    let reads =
        hook_out.as_ref().map_or_else(|| hook.clone(), |hook_out| format!("{hook}, predicts {hook_out}"));
    writeln!(out, "{name}: {architecture}, {features} features of {reads}")?;
    writeln!(out, "{}\n", quality(&report.quality))?;
    if report.details.is_empty() && report.effects.is_none() {
        strongest(&mut out, report)?;
    }
    for detail in &report.details {
        print_detail(&mut out, detail)?;
    }
    match &report.effects {
        Some(effects) => print_effects(&mut out, effects),
        None => Ok(()),
    }
}

fn quality(quality: &Quality) -> String {
    let mut parts = vec![format!("L0 {:.1}", quality.l0)];
    if let Some(explained) = quality.explained_variance {
        parts.push(format!("explained variance {explained:.3}"));
    }
    if let (Some(clean), Some(rebuilt), Some(zeroed)) =
        (quality.loss, quality.loss_rebuilt, quality.loss_zeroed)
    {
        let recovered = quality.loss_recovered.map(|share| format!(": {share:.3} recovered"));
        parts.push(format!(
            "loss {clean:.3}, rebuilt {rebuilt:.3}, zeroed {zeroed:.3} nats{}",
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
            place
                .strongest
                .iter()
                .flat_map(|one| [one.feature.to_string(), format!("{:.3}", one.activation)]),
        );
        cells.resize(columns.len(), String::new());
        table.row(cells);
    }
    write!(out, "{}", table.render())?;
    Ok(())
}

fn print_detail(out: &mut impl Write, detail: &Detail) -> anyhow::Result<()> {
    writeln!(out, "feature {}", detail.feature)?;
    match &detail.promoted {
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
    if detail.fires.is_empty() {
        writeln!(out, "  fires nowhere in this text\n")?;
        return Ok(());
    }
    let mut table = Table::new(&[("position", Right), ("token", Left), ("activation", Right)]);
    for one in &detail.fires {
        table.row(vec![one.position.to_string(), one.token.to_string(), format!("{:.3}", one.activation)]);
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
            format!("{:.3}", one.activation),
            format!("{:+.3}", one.effect),
        ]);
    }
    write!(out, "{}", table.render())?;
    Ok(())
}
