//! `gpt2 generate`: continues a prompt, token by token.

mod args;
mod many;
mod recorded;

pub(crate) use args::GenerateArgs;

use crate::output;
use crate::output::terminal::TERMINAL;
use crate::results::live_page::changes_for_page;
use crate::values::pace;
use gpt2_engine::interventions::{Applied, Prepared};
use gpt2_engine::studies::Run;
use gpt2_engine::studies::predict::generate::{Continuing, Drawn, Report, Searched};
use gpt2_engine::words::count;
use gpt2_loader::GenerationConfig;
use gpt2_model::hooks::Hooks;
use recorded::{GeneratedText, Recorded};
use std::io::Write;
use std::ops::ControlFlow;

pub(crate) fn run(args: &GenerateArgs) -> anyhow::Result<()> {
    let read = args.prompt.read()?;
    let outputs = recorded::outputs(args)?;
    let mut inputs = args.prompt.inputs();
    args.interventions.inputs(&mut inputs);
    args.live.check(&args.model, &args.first_token)?;
    let opened = args.first_token.of(args.model.open_with(inputs, &outputs, &args.cpu_only())?)?;
    let generation_config = opened.files.as_ref().map(GenerationConfig::open).transpose()?.flatten();
    if let Some(text) = generation_config.and_then(|found| found.note()) {
        output::note(&text);
    }
    let interventions = Prepared::new(args.interventions.options(), &opened, &TERMINAL)?;
    let run = Run { seed: args.model.run.seed, ..Run::new(&interventions, &TERMINAL) };
    if let Some(path) = &args.prompt.texts {
        return many::run(args, &run, path);
    }
    let prompt = args.prompt.one.encode(read, &opened)?;
    let text = prompt.text.clone();
    let options = args.options();
    let continuing = options.continuing(&run, prompt)?;
    let live = args.live.wanted.then(|| changes_for_page(&continuing.applied)).transpose()?;
    let recorded = Recorded::new(args, &opened, live)?;
    // Only the text goes to stdout.
    output::note(&continuing.ready.provenance.first_line());
    let streamed = text.as_deref().filter(|_| args.beams.is_none());
    let rows = recorded.rows.as_ref().filter(|_| args.beams.is_none());
    let rows = rows.map(|rows| rows as &dyn Hooks);
    let (report, changes) = stream(continuing, rows, Printer::new(streamed, args.json)?)?;
    let drawn = match report {
        Report::Drawn(drawn) => drawn,
        Report::Searched(found) if args.json => return output::json(&found),
        Report::Searched(found) => return print_best(text.as_deref(), &found),
    };
    // The files come before the JSON, so that a result that is printed has all of them.
    let text = GeneratedText {
        opened: &opened,
        prompt: &drawn.prompt_ids,
        new: &drawn.ids,
        changes: &changes,
        made_by: &drawn.provenance,
    };
    recorded.write(args, &text, outputs)?;
    if args.json {
        return output::json(&drawn);
    }
    let Drawn { ids, seconds, draft, .. } = *drawn;
    let tokens = ids.len();
    output::note(&format!("{} in {}", count(tokens, "token"), pace(tokens, seconds.unwrap_or_default())));
    if let Some(draft) = draft {
        let share = 100.0 * draft.accepted as f64 / draft.proposed.max(1) as f64;
        output::note(&format!(
            "draft {}: {} of {} guesses right ({share:.0} %), {} passes after the prompt",
            draft.draft, draft.accepted, draft.proposed, draft.passes
        ));
    }
    Ok(())
}

/// Prints the text as it comes. A search prints nothing: its texts come at its end.
fn stream(
    continuing: Continuing,
    hooks: Option<&dyn Hooks>,
    mut printer: Printer,
) -> anyhow::Result<(Report, Applied)> {
    let mut printed = Ok(());
    let result = continuing.run(hooks, &mut |_, piece| {
        if printed.is_ok() {
            printed = printer.print(piece.text());
        }
        if printed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    printed?;
    if matches!(&result, Ok((Report::Drawn(_), _))) || printer.begun {
        printer.end_line()?; // an error starts on a new line
    }
    result
}

/// Prints the best of the texts that a search found, after the prompt's text, or as ids if the prompt was ids.
fn print_best(prompt: Option<&str>, found: &Searched) -> anyhow::Result<()> {
    let best = found.hypotheses.first();
    let mut out = output::stdout();
    out.write_text(prompt.unwrap_or_default())?;
    out.write_text(best.map(|best| &best.shown[..]).unwrap_or_default())?;
    writeln!(out)?;
    if let Some(best) = best {
        output::note(&format!(
            "{} tokens, score {:.4}, in {:.2} s",
            best.ids.len(),
            best.score,
            found.seconds
        ));
    }
    Ok(())
}

/// Streams to stdout, except with `--json`: the prompt's text and its continuation, or ids if the prompt was ids.
struct Printer {
    /// `None` with `--json`.
    out: Option<output::Stdout>,
    /// Whether the current line holds anything.
    begun: bool,
}

impl Printer {
    fn new(text: Option<&str>, as_json: bool) -> anyhow::Result<Self> {
        let mut printer = Self { out: (!as_json).then(output::stdout), begun: false };
        if let Some(text) = text {
            printer.print(text)?;
        }
        Ok(printer)
    }

    fn print(&mut self, piece: &str) -> anyhow::Result<()> {
        let Some(out) = &mut self.out else { return Ok(()) };
        self.begun |= !piece.is_empty();
        out.write_text(piece)?;
        Ok(out.flush()?)
    }

    fn end_line(&mut self) -> anyhow::Result<()> {
        Ok(self.out.as_mut().map_or(Ok(()), |out| writeln!(out))?)
    }
}
