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
use gpt2_engine::studies::predict::generate::{Batches, Options, Report, Row};
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
    /// The bytes of the file up to its end.
    read: u64,
}

pub(super) fn run(args: &GenerateArgs, run: &Run, path: &Path) -> anyhow::Result<()> {
    let options = args.options();
    let batches = Batches::new(&options, run)?;
    let (mut lines, size) = args.prompt.open(path)?;
    let start = Instant::now();
    let mut texts = 0;
    let mut tokens = 0;
    let rows = std::iter::from_fn(|| {
        let line = lines.next_text().transpose()?;
        Some(line.and_then(|line| read(&options, run, path, line, lines.read)))
    });
    batches.run(rows, None, &mut |_, _| ControlFlow::Continue(()), &mut |line: PromptLine, report| {
        let read = line.read;
        texts += 1;
        tokens += TERMINAL.between(|| show(args, line, &report))?;
        TERMINAL.step("bytes", read, size)?;
        Ok(())
    })?;
    TERMINAL.clear();
    if texts == 0 {
        bail!("{}: holds no text; write one a line", place(path, None))
    }
    let seconds = start.elapsed().as_secs_f64();
    let texts = count(texts, "text");
    note(&format!("{} after {texts} in {}", count(tokens, "token"), pace(tokens, seconds)));
    output::flush()
}

fn read(
    options: &Options,
    run: &Run,
    path: &Path,
    line: TextLine,
    read: u64,
) -> anyhow::Result<Row<PromptLine>> {
    let TextLine { number, content, input } = line;
    let place = place(path, Some(number));
    let prompt = prompt(run.opened, &content, &place)?;
    let text = prompt.text.clone().unwrap_or_default();
    let line = PromptLine { line: number, input, place: place.clone(), text, read };
    Row::new(options, run.opened, prompt, place, line)
}

/// Prints a text. Returns the number of generated tokens.
fn show(args: &GenerateArgs, of: PromptLine, report: &Report) -> anyhow::Result<usize> {
    let PromptLine { line, input, place, text, .. } = of;
    let Report::Drawn(found) = report else { return Ok(0) };
    let mut out = output::stdout();
    if args.json {
        serde_json::to_writer(&mut out, &Numbered { line, input: &input, report })?;
    } else {
        writeln!(out, "== {} ==", gpt2_view::visible_text(&place))?;
        out.write_text(&text)?;
        out.write_text(&found.shown)?;
        writeln!(out)?;
    }
    writeln!(out)?;
    out.flush()?;
    Ok(found.ids.len())
}
