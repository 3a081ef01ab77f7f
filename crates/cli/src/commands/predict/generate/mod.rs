//! `gpt2 generate`: continues a prompt, token by token.

mod args;
mod beams;
mod draft;
mod many;
mod recorded;
mod report;

pub(crate) use args::GenerateArgs;

use crate::output;
use crate::output::terminal::TERMINAL;
use crate::results::live_page::changes_for_page;
use crate::values::pace;
use anyhow::Context;
use gpt2_engine::Opened;
use gpt2_engine::RunProvenance;
use gpt2_engine::interventions::Applied;
use gpt2_engine::interventions::Reads;
use gpt2_engine::open::describe_not_finite;
use gpt2_engine::words::count;
use gpt2_loader::GenerationConfig;
use gpt2_model::CacheDType;
use gpt2_model::hooks::{Chain, Hooks};
use recorded::{Alive, GeneratedText, Recorded};
use report::{Report, continuation, generation, new_tokens};
use std::io::Write;
use std::time::Instant;

pub(crate) fn run(args: &GenerateArgs) -> anyhow::Result<()> {
    let read = args.prompt.read()?;
    let outputs = recorded::outputs(args)?;
    let mut inputs = args.prompt.inputs();
    args.interventions.inputs(&mut inputs);
    args.live.inputs(&mut inputs);
    let module = args.live.open(&args.model)?;
    let opened = args.model.open_for(inputs, &outputs)?;
    let generation_config = opened.files.as_ref().map(GenerationConfig::open).transpose()?.flatten();
    if let Some(text) = generation_config.and_then(|found| found.note()) {
        output::note(&text);
    }
    if let Some(path) = &args.prompt.texts {
        return many::run(args, &opened, path);
    }
    let prompt = args.prompt.one.encode(read, &opened)?;
    let max_new_tokens = new_tokens(args, &opened, &prompt);
    if let Some(n) = args.beams {
        return beams::run(args, n, &opened, prompt, max_new_tokens);
    }
    let prompts = std::slice::from_ref(&prompt.ids);
    let changes = args.interventions.options().build(&opened, Reads::Growing(&[&prompt.ids]), &TERMINAL)?;
    let live = module
        .map(|module| anyhow::Ok(Alive { module, changes: changes_for_page(&changes)? }))
        .transpose()?;
    let mut made_by = RunProvenance::new(&opened, &prompt.ids)?.under(&changes);
    made_by.kv = args.kv.map(CacheDType::as_str);
    let mut generation = generation(args, &opened, prompts, max_new_tokens)?;
    if let Some(draft) = &args.draft {
        generation.check_draft().context("--draft")?;
        generation = generation.with_draft(draft.open(&opened, &args.model.hub)?)?;
    }
    let recorded = Recorded::new(args, &opened, live)?;
    let hooks: [&dyn Hooks; 2] = [&changes.list, &recorded.rows];
    let chain = Chain(&hooks);
    let mut generation = generation.with_hooks(&chain);
    // Only the text goes to stdout.
    output::note(&made_by.first_line());
    let mut printer = Printer::new(prompt.text.as_deref(), args.json)?;
    let mut continuation = continuation(&opened, &prompt, &args.stop)?;
    let start = Instant::now();
    let explain = |error: candle_core::Error, new: &[u32]| {
        explained(error, &opened, &[&prompt.ids[..], new].concat(), &changes)
    };
    stream(generation.by_ref(), &mut printer, &mut continuation, explain)?;
    let seconds = start.elapsed().as_secs_f64();
    let draft = args.draft.as_ref().zip(generation.drafted()).map(|(kind, of)| draft::Report::new(kind, of));
    drop(generation);
    // The files come before the JSON, so that a result that is printed has all of them.
    recorded.write(
        args,
        &GeneratedText {
            opened: &opened,
            prompt: &prompt.ids,
            new: &continuation.ids,
            changes: &changes,
            made_by: &made_by,
        },
        outputs,
    )?;
    let tokens_per_second = continuation.ids.len() as f64 / seconds;
    if args.json {
        let mut report = Report::new(args, &opened, made_by, prompt, continuation, max_new_tokens);
        report.seconds = Some(seconds);
        report.tokens_per_second = Some(tokens_per_second);
        report.draft = draft;
        output::json(&report)?;
    } else {
        let tokens = continuation.ids.len();
        output::note(&format!("{} in {}", count(tokens, "token"), pace(tokens, seconds)));
        if let Some(draft) = draft {
            draft.print();
        }
    }
    Ok(())
}

/// Prints the text of each step as it comes, up to a stop string. `explain` words an error, given the new ids before it.
fn stream(
    steps: impl Iterator<Item = candle_core::Result<Vec<Option<u32>>>>,
    printer: &mut Printer,
    continuation: &mut gpt2_engine::texts::Continuation<&gpt2_loader::Tokenizer>,
    explain: impl FnOnce(candle_core::Error, &[u32]) -> anyhow::Error,
) -> anyhow::Result<()> {
    for step in steps {
        let step = match step {
            Ok(step) => step,
            Err(error) => {
                if printer.begun {
                    printer.print(&continuation.finish())?;
                    printer.end_line()?; // the error starts on a new line
                }
                return Err(explain(error, &continuation.ids));
            }
        };
        if let Some(id) = step.first().copied().flatten() {
            printer.print(&continuation.push(id))?;
            if continuation.stopped_at().is_some() {
                break;
            }
        }
    }
    printer.print(&continuation.finish())?;
    printer.end_line()
}

/// Explains why a step after `ids` failed: if a number was not finite, says where it first appeared.
fn explained(error: candle_core::Error, opened: &Opened, ids: &[u32], changes: &Applied) -> anyhow::Error {
    let hooks = Some(&changes.list as &dyn Hooks);
    let Ok(text) = opened.input_ids(ids) else { return error.into() }; // (1, T)
    match opened.model.first_not_finite(&text, hooks) {
        Ok(Some(found)) => {
            anyhow::anyhow!(describe_not_finite(&found, &opened.model, &text, hooks, opened.spelling))
        }
        _ => error.into(),
    }
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
        self.begun = true;
        out.write_text(piece)?;
        Ok(out.flush()?)
    }

    fn end_line(&mut self) -> anyhow::Result<()> {
        Ok(self.out.as_mut().map_or(Ok(()), |out| writeln!(out))?)
    }
}
