//! `gpt2 heads`: previous-token, duplicate-token and induction scores of each head.

use crate::args::HeadsArgs;
use crate::output;
use crate::provenance::{Provenance, count};
use candle_core::{Device, Tensor};
use gpt2_model::analysis::{HeadScores, head_scores, repeated_rows};
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
    /// The scores of uniform attention.
    chance: Scores,
    heads: Vec<Row>,
}

#[derive(Clone, Copy, Serialize)]
struct Scores {
    previous_token: f32,
    duplicate_token: f32,
    induction: f32,
}

impl From<HeadScores> for Scores {
    fn from(scores: HeadScores) -> Self {
        let HeadScores { previous_token, duplicate_token, induction } = scores;
        Self { previous_token, duplicate_token, induction }
    }
}

impl Scores {
    fn numbers(&self) -> [f32; 3] {
        [self.previous_token, self.duplicate_token, self.induction]
    }
}

#[derive(Serialize)]
struct Row {
    layer: usize,
    head: usize,
    #[serde(flatten)]
    scores: Scores,
}

/// The kinds of heads, in the order of [`Scores::numbers`].
const KINDS: [&str; 3] = ["previous-token", "duplicate-token", "induction"];

/// A head is clearly above chance if its score is at least this part of the way from uniform attention to 1: the best of
/// many heads always comes out a little above.
const CLEARLY: f32 = 0.05;

pub(crate) fn run(args: &HeadsArgs) -> anyhow::Result<ExitCode> {
    let session = args.model.session()?;
    let (length, batch, seed) = (args.length.into(), args.batch.into(), args.model.run.seed);
    let scores = head_scores(&session.model.transformer, length, batch, seed)?;
    let ids = repeated_rows(length, batch, session.model.config().vocab_size, seed);
    let mut heads = vec![];
    for (layer, scores) in scores.into_iter().enumerate() {
        let rows = scores.into_iter().enumerate();
        heads.extend(rows.map(|(head, scores)| Row { layer, head, scores: scores.into() }));
    }
    let numbers: Vec<f32> = heads.iter().flat_map(|row| row.scores.numbers()).collect();
    let read = Tensor::from_vec(ids.concat(), (batch, 2 * length), &session.device)?;
    args.finite.check(&session, &read, None, [&Tensor::new(numbers, &Device::Cpu)?])?;
    let report = Report {
        provenance: Provenance::of_tokens(&session, 2 * length)?,
        model: session.name,
        length: args.length,
        batch: args.batch,
        seed,
        ids,
        chance: HeadScores::chance(length).into(),
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
        "the mean weight on the token before, the same token's first occurrence, and what followed it; beside each score, \
         how many times chance it is\n"
    )?;
    let titles = ["head", "previous", "", "duplicate", "", "induction", ""];
    let mut table = Table::new(&titles.map(|title| (title, Align::Right)));
    let chance = report.chance.numbers();
    let cells = |name: String, scores: [f32; 3], times: &dyn Fn(f32, f32) -> String| {
        let pair = |(score, chance): (f32, f32)| [format!("{score:.3}"), times(score, chance)];
        [name].into_iter().chain(scores.into_iter().zip(chance).flat_map(pair)).collect::<Vec<_>>()
    };
    table.row(cells("chance".into(), chance, &|_, _| String::new()));
    for Row { layer, head, scores } in &report.heads {
        let times = |score: f32, chance: f32| format!("{:.1}x", score / chance);
        table.row(cells(format!("{layer}.{head}"), scores.numbers(), &times));
    }
    writeln!(out, "{}", table.render())?;
    for (i, (kind, chance)) in KINDS.into_iter().zip(chance).enumerate() {
        let score = |row: &Row| row.scores.numbers()[i];
        let numbers = report.heads.iter().filter(|row| !score(row).is_nan());
        match numbers.max_by(|a, b| score(a).total_cmp(&score(b))) {
            Some(best) if score(best) > chance + CLEARLY * (1.0 - chance) => {
                let Row { layer, head, .. } = best;
                writeln!(
                    out,
                    "the most {kind}-like head: {layer}.{head} ({:.3}, chance {chance:.3})",
                    score(best)
                )?;
            }
            _ => writeln!(out, "no {kind} head: none is clearly above chance ({chance:.3})")?,
        }
    }
    Ok(())
}
