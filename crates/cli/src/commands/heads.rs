//! `gpt2 heads`: previous-token, duplicate-token and induction scores of each head.

use crate::args::HeadsArgs;
use crate::output;
use crate::provenance::{Provenance, count};
use candle_core::{Device, Tensor};
use gpt2_model::analysis::{head_scores, repeated_rows};
use gpt2_view::{Align, Table, visible_text};
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;

#[derive(Serialize)]
struct Report {
    provenance: Provenance,
    model: String,
    length: u16,
    batch: u16,
    seed: u64,
    /// The random tokens, one row each.
    ids: Vec<Vec<u32>>,
    heads: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    layer: usize,
    head: usize,
    previous_token: f32,
    duplicate_token: f32,
    induction: f32,
}

pub(crate) fn run(args: &HeadsArgs) -> anyhow::Result<ExitCode> {
    let session = args.model.session()?;
    let (length, batch, seed) = (args.length.into(), args.batch.into(), args.model.run.seed);
    let scores = head_scores(&session.model.transformer, length, batch, seed)?;
    let ids = repeated_rows(length, batch, session.model.config().vocab_size, seed);
    let mut heads = vec![];
    for (layer, scores) in scores.iter().enumerate() {
        for (head, score) in scores.iter().enumerate() {
            let (previous_token, duplicate_token) = (score.previous_token, score.duplicate_token);
            heads.push(Row { layer, head, previous_token, duplicate_token, induction: score.induction });
        }
    }
    let numbers: Vec<f32> =
        heads.iter().flat_map(|row| [row.previous_token, row.duplicate_token, row.induction]).collect();
    let read = Tensor::from_vec(ids.concat(), (batch, 2 * length), &session.device)?;
    args.finite.check(&session, &read, None, [&Tensor::new(numbers, &Device::Cpu)?])?;
    let report = Report {
        provenance: Provenance::of_tokens(&session, 2 * length)?,
        model: session.name,
        length: args.length,
        batch: args.batch,
        seed,
        ids,
        heads,
    };
    output::report(args.json, &report, print)?;
    Ok(ExitCode::SUCCESS)
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(
        out,
        "{}: {} of {}, each repeated once; {}",
        visible_text(&report.model),
        count(report.batch.into(), "row"),
        count(report.length.into(), "random token"),
        report.provenance.caption()
    )?;
    writeln!(
        out,
        "the mean weight on the token before, the same token's first occurrence, and what followed it\n"
    )?;
    let columns = ["head", "previous", "duplicate", "induction"].map(|title| (title, Align::Right));
    let mut table = Table::new(&columns);
    for row in &report.heads {
        let number = |x: f32| format!("{x:.3}");
        table.row(vec![
            format!("{}.{}", row.layer, row.head),
            number(row.previous_token),
            number(row.duplicate_token),
            number(row.induction),
        ]);
    }
    writeln!(out, "{}", table.render())?;
    for (kind, score) in [
        ("previous-token", (|row| row.previous_token) as fn(&Row) -> f32),
        ("duplicate-token", |row| row.duplicate_token),
        ("induction", |row| row.induction),
    ] {
        if let Some(best) = report.heads.iter().max_by(|a, b| score(a).total_cmp(&score(b))) {
            writeln!(out, "the most {kind}-like head: {}.{} ({:.3})", best.layer, best.head, score(best))?;
        }
    }
    Ok(())
}
