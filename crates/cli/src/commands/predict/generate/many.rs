//! `--texts`: continues many prompts, several in each pass.

use super::args::GenerateArgs;
use super::report::{Report, continuation, generation, new_tokens};
use crate::input::prompt::prompt;
use crate::output::{self, note};
use crate::study::over_texts::Numbered;
use crate::values::pace;
use anyhow::{Context, bail};
use gpt2_engine::Opened;
use gpt2_engine::RunProvenance;
use gpt2_engine::texts::Prompt;
use gpt2_engine::texts::{TextLine, place};
use gpt2_engine::words::count;
use serde_json::{Map, Value};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// A prompt in its line.
struct PromptLine {
    line: u64,
    /// The other fields of a line of JSON.
    input: Map<String, Value>,
    place: String,
    prompt: Prompt,
    /// The most tokens to generate after it.
    new: usize,
}

pub(super) fn run(args: &GenerateArgs, opened: &Opened, path: &Path) -> anyhow::Result<()> {
    let (mut lines, bar) = args.prompt.open(path)?;
    let most = usize::from(args.batch);
    let start = Instant::now();
    let (mut texts, mut tokens) = (0, 0);
    let mut batch: Vec<PromptLine> = vec![];
    loop {
        let line = lines.next_text();
        let row = line.and_then(|line| line.map(|line| row(args, opened, path, line)).transpose());
        let joins = matches!(&row, Ok(Some(row)) if batch.len() < most && fit(opened, &batch, row));
        if !joins && !batch.is_empty() {
            texts += batch.len();
            tokens += bar.suspend(|| complete(args, opened, std::mem::take(&mut batch)))?;
            bar.set_position(lines.read);
        }
        match row? {
            Some(row) => batch.push(row),
            None => break,
        }
    }
    bar.finish_and_clear();
    if texts == 0 {
        bail!("{}: holds no text; write one a line", place(path, None))
    }
    let seconds = start.elapsed().as_secs_f64();
    let texts = count(texts, "text");
    note(&format!("{} after {texts} in {}", count(tokens, "token"), pace(tokens, seconds)));
    output::flush()
}

fn row(args: &GenerateArgs, opened: &Opened, path: &Path, line: TextLine) -> anyhow::Result<PromptLine> {
    let place = place(path, Some(line.number));
    let prompt = prompt(opened, &line.content, &place)?;
    let new = new_tokens(args, opened, &prompt);
    let room = opened.model.config().n_positions + 1 - prompt.ids.len();
    if new > room {
        bail!(
            "{place}: a prompt of {} and {new} new ones do not fit the model's n_positions = {}; at most {room} new tokens do",
            count(prompt.ids.len(), "token"),
            opened.model.config().n_positions
        )
    }
    Ok(PromptLine { line: line.number, input: line.input, place, prompt, new })
}

/// Whether a row fits into the context beside others: the longest prompt and the largest number of new tokens count for all.
fn fit(opened: &Opened, others: &[PromptLine], row: &PromptLine) -> bool {
    let rows = || others.iter().chain([row]);
    let width = rows().map(|row| row.prompt.ids.len()).max().unwrap_or(0);
    let new = rows().map(|row| row.new).max().unwrap_or(0);
    width + new <= opened.model.config().n_positions + 1
}

/// Continues all rows at once and prints each. Returns the number of generated tokens.
fn complete(args: &GenerateArgs, opened: &Opened, rows: Vec<PromptLine>) -> anyhow::Result<usize> {
    let prompts: Vec<_> = rows.iter().map(|row| row.prompt.ids.clone()).collect();
    let most = rows.iter().map(|row| row.new).max().unwrap_or(0);
    let mut generation = generation(args, opened, &prompts, most)?;
    let found = rows.iter().map(|row| continuation(opened, &row.prompt, &args.stop));
    let mut found = found.collect::<anyhow::Result<Vec<_>>>()?;
    let together = || match (rows.first(), rows.last()) {
        (Some(first), Some(last)) if first.line != last.line => {
            format!("{} to line {}", first.place, last.line)
        }
        _ => rows.iter().map(|row| row.place.clone()).collect(),
    };
    while let Some(step) = generation.next() {
        for (i, id) in step.with_context(together)?.into_iter().enumerate() {
            let Some(id) = id else { continue };
            found[i].push(id);
            if found[i].ids.len() == rows[i].new || found[i].stopped_at().is_some() {
                generation.end(i);
            }
        }
    }
    let tokens = found.iter().map(|found| found.ids.len()).sum();
    let mut out = output::stdout();
    for (PromptLine { line, input, place, prompt, new }, mut found) in rows.into_iter().zip(found) {
        found.finish();
        if args.json {
            let mut made_by = RunProvenance::new(opened, &prompt.ids)?;
            made_by.kv = args.kv.map(gpt2_model::CacheDType::as_str);
            let report = Report::new(args, opened, made_by, prompt, found, new);
            serde_json::to_writer(&mut out, &Numbered { line, input: &input, report: &report })?;
        } else {
            writeln!(out, "== {} ==", gpt2_view::visible_text(&place))?;
            out.write_text(prompt.text.as_deref().unwrap_or_default())?;
            out.write_text(&found.text)?;
            writeln!(out)?;
        }
        writeln!(out)?;
    }
    out.flush()?;
    Ok(tokens)
}
