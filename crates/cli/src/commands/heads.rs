//! `gpt2 heads`: previous-token, duplicate-token and induction scores of each head.

use crate::args::HeadsArgs;
use crate::output;
use gpt2_model::analysis::head_scores;
use gpt2_view::{Align, Table, visible_text};
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;

#[derive(Serialize)]
struct Report {
    model: String,
    length: u16,
    batch: u16,
    seed: u64,
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
    let seed = args.model.run.seed;
    let scores = head_scores(&session.model.transformer, args.length.into(), args.batch.into(), seed)?;
    let mut heads = vec![];
    for (layer, scores) in scores.iter().enumerate() {
        for (head, score) in scores.iter().enumerate() {
            let (previous_token, duplicate_token) = (score.previous_token, score.duplicate_token);
            heads.push(Row { layer, head, previous_token, duplicate_token, induction: score.induction });
        }
    }
    let report = Report { model: session.name, length: args.length, batch: args.batch, seed, heads };
    output::report(args.json, &report, print)?;
    Ok(ExitCode::SUCCESS)
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(
        out,
        "{}: {} rows of {} random tokens, each repeated once",
        visible_text(&report.model),
        report.batch,
        report.length
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
