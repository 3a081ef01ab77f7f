//! The reports of `gpt2 circuits`, as they are printed.

use crate::output::{self, note};
use gpt2_engine::Label;
use gpt2_engine::studies::interpret::circuits::{
    ComposedHeads, CopyingHead, Direction, OneHead, Overview, TokenLink,
};
use gpt2_view::Align::{Left, Right};
use gpt2_view::{Table, visible_text};
use std::io::Write;

pub(super) fn overview(report: &Overview, shown: usize) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}: weights alone\n", visible_text(&report.provenance.model))?;
    writeln!(
        out,
        "copying: from -1 to 1, whether a head raises the logits of the tokens that it attends to; highest first\n"
    )?;
    let mut sorted: Vec<&CopyingHead> = report.heads.iter().collect();
    let of = |head: &CopyingHead| head.copying.unwrap_or(f64::NEG_INFINITY);
    sorted.sort_by(|a, b| of(b).total_cmp(&of(a)));
    let mut table = Table::new(&[("head", Right), ("copying", Right)]);
    for CopyingHead { layer, head, copying } in sorted.into_iter().take(shown) {
        let copying = copying.map_or_else(|| "none".to_owned(), |copying| format!("{copying:+.3}"));
        table.row(vec![format!("{layer}.{head}"), copying]);
    }
    writeln!(out, "{}", table.render())?;
    writeln!(
        out,
        "composition: how strongly the output of a head feeds a later one's queries, keys or values\n"
    )?;
    let mut table = Table::new(&[("from", Right), ("to", Right), ("reads", Left), ("score", Right)]);
    for ComposedHeads { reads, from, to, score } in report.compositions.iter().take(shown) {
        table.row(vec![from.clone(), to.clone(), (*reads).to_owned(), format!("{score:.3}")]);
    }
    write!(out, "{}", table.render())?;
    if report.heads.len() > shown || report.compositions.len() > shown {
        note(&format!("the first {shown} of each; -k shows more, --json has all"));
    }
    Ok(())
}

pub(super) fn head(report: &OneHead) -> anyhow::Result<()> {
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
    if let Some(unseen) = report.unseen.filter(|unseen| *unseen > 0) {
        writeln!(out, "without {unseen} tokens that training hardly saw; all: --all-tokens\n")?;
    }
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
        for TokenLink { from, to, value, .. } in links {
            table.row(vec![from.to_string(), to.to_string(), format!("{value:+.2}")]);
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
            let named = |tokens: &[Label]| tokens.iter().map(Label::to_string).collect::<Vec<_>>().join(" ");
            table.row(vec![format!("{value:.2}"), named(reads), named(writes)]);
        }
        writeln!(out, "{}", table.render())?;
    }
    Ok(())
}
