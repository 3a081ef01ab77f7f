//! `--texts`: continues many prompts, several in each pass.

use super::args::GenerateArgs;
use crate::input::prompt::prompt;
use crate::output::terminal::TERMINAL;
use crate::output::{self, note};
use crate::study::over_texts::Numbered;
use crate::values::pace;
use anyhow::bail;
use gpt2_engine::Observer;
use gpt2_engine::studies::Run;
use gpt2_engine::studies::predict::generate::{Batch, Options, Report, Row};
use gpt2_engine::texts::{TextLine, place};
use gpt2_engine::words::count;
use serde_json::{Map, Value};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

/// A prompt's line.
struct PromptLine {
    line: u64,
    /// The other fields of a line of JSON.
    input: Map<String, Value>,
    place: String,
    text: String,
}

pub(super) fn run(args: &GenerateArgs, run: &Run, path: &Path) -> anyhow::Result<()> {
    let options = args.options();
    let mut batch = Batch::new(&options, run)?;
    let mut batched = vec![];
    let (mut lines, size) = args.prompt.open(path)?;
    let start = Instant::now();
    let mut texts = 0;
    let mut tokens = 0;
    loop {
        let line = lines.next_text();
        let next = line.and_then(|line| line.map(|line| read(&options, run, path, line)).transpose());
        let joins = matches!(&next, Ok(Some((_, row))) if batch.takes(row));
        if !joins && !batch.is_empty() {
            texts += batched.len();
            let lines_of_batch = std::mem::take(&mut batched);
            tokens += TERMINAL.between(|| complete(args, &mut batch, lines_of_batch))?;
            TERMINAL.step("bytes", lines.read, size)?;
        }
        let Some((line, row)) = next? else { break };
        batched.push(line);
        batch.push(row);
    }
    TERMINAL.clear();
    if texts == 0 {
        bail!("{}: holds no text; write one a line", place(path, None))
    }
    let seconds = start.elapsed().as_secs_f64();
    let texts = count(texts, "text");
    note(&format!("{} after {texts} in {}", count(tokens, "token"), pace(tokens, seconds)));
    output::flush()
}

fn read(options: &Options, run: &Run, path: &Path, line: TextLine) -> anyhow::Result<(PromptLine, Row)> {
    let TextLine { number, content, input } = line;
    let place = place(path, Some(number));
    let prompt = prompt(run.opened, &content, &place)?;
    let text = prompt.text.clone().unwrap_or_default();
    let row = Row::new(options, run.opened, prompt, place.clone())?;
    Ok((PromptLine { line: number, input, place, text }, row))
}

/// Continues all prompts of a batch at once and prints each. Returns the number of generated tokens.
fn complete(args: &GenerateArgs, batch: &mut Batch, lines: Vec<PromptLine>) -> anyhow::Result<usize> {
    let reports = batch.run(None, &mut |_, _| ControlFlow::Continue(()))?;
    let mut tokens = 0;
    let mut out = output::stdout();
    for (PromptLine { line, input, place, text }, report) in lines.into_iter().zip(&reports) {
        if args.json {
            serde_json::to_writer(&mut out, &Numbered { line, input: &input, report })?;
        } else {
            writeln!(out, "== {} ==", gpt2_view::visible_text(&place))?;
        }
        if let Report::Drawn(found) = report {
            tokens += found.ids.len();
            if !args.json {
                out.write_text(&text)?;
                out.write_text(&found.shown)?;
                writeln!(out)?;
            }
        }
        writeln!(out)?;
    }
    out.flush()?;
    Ok(tokens)
}
