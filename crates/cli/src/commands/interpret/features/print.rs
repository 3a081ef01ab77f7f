//! Prints the features in a text.

use crate::output;
use gpt2_engine::Label;
use gpt2_engine::studies::interpret::features::{
    Active, Attention, Attributed, Detail, Promoted, Quality, Report,
};
use gpt2_engine::words::short;
use gpt2_view::Align::{Left, Right};
use gpt2_view::{Table, visible_text};
use std::io::Write;

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
    if let Some(attention) = &report.attention {
        if report.effects.is_some() {
            writeln!(out)?;
        }
        print_attention(&mut out, attention)?;
    }
    if !report.explanations.is_empty() {
        writeln!(out)?;
    }
    for (feature, texts) in &report.explanations {
        print_explanation(&mut out, *feature, texts)?;
    }
    Ok(())
}

/// The explanations of a feature, a line each.
pub(super) fn print_explanation(out: &mut impl Write, feature: u32, texts: &[String]) -> anyhow::Result<()> {
    for text in texts {
        writeln!(out, "feature {feature}: {}", visible_text(text))?;
    }
    Ok(())
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
