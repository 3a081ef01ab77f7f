//! `gpt2 generate`: continues a prompt, token by token.

mod args;
mod beams;
mod draft;
mod many;
mod recorded;
mod report;

pub(crate) use args::GenerateArgs;

use crate::interventions::changes::Changes;
use crate::interventions::checks::Reads;
use crate::model::finite;
use crate::model::session::Session;
use crate::output;
use crate::results::provenance::RunProvenance;
use crate::values::{count, pace};
use anyhow::Context;
use gpt2_loader::GenerationConfig;
use gpt2_model::CacheDType;
use gpt2_model::hooks::{Chain, Hooks};
use recorded::{GeneratedText, Recorded};
use report::{Report, continuation, generation, new_tokens};
use std::io::Write;
use std::time::Instant;

pub(crate) fn run(args: &GenerateArgs) -> anyhow::Result<()> {
    let read = args.prompt.read()?;
    let outputs = recorded::outputs(args)?;
    let mut inputs = args.prompt.inputs();
    args.interventions.inputs(&mut inputs);
    args.live.check(&args.model)?;
    let session = args.model.session_for(inputs, &outputs)?;
    if let Some(text) = GenerationConfig::open(&session.files)?.and_then(|found| found.note()) {
        output::note(&text);
    }
    if let Some(path) = &args.prompt.texts {
        return many::run(args, &session, path);
    }
    let prompt = args.prompt.one.encode(read, &session)?;
    let max_new_tokens = new_tokens(args, &session, &prompt);
    if let Some(n) = args.beams {
        return beams::run(args, n, &session, prompt, max_new_tokens);
    }
    let prompts = std::slice::from_ref(&prompt.ids);
    let changes = args.interventions.build(&session, Reads::Growing(&prompt.ids))?;
    let live = args.live.wanted.then(|| changes.for_page()).transpose()?;
    let mut made_by = RunProvenance::new(&session, &prompt.ids)?.under(&changes);
    made_by.kv = args.kv.map(CacheDType::as_str);
    let mut generation = generation(args, &session, prompts, max_new_tokens)?;
    if let Some(draft) = &args.draft {
        generation.check_draft().context("--draft")?;
        generation = generation.with_draft(draft.open(&session, &args.model.hub)?)?;
    }
    let recorded = Recorded::new(args, &session, live)?;
    let hooks: [&dyn Hooks; 2] = [&changes.list, &recorded.rows];
    let chain = Chain(&hooks);
    let mut generation = generation.with_hooks(&chain);
    // Only the text goes to stdout.
    output::note(&made_by.first_line());
    let mut printer = Printer::new(prompt.text.as_deref(), args.json)?;
    let mut continuation = continuation(&session, &prompt, &args.stop)?;
    let start = Instant::now();
    let explain = |error: candle_core::Error, new: &[u32]| {
        explained(error, &session, &[&prompt.ids[..], new].concat(), &changes)
    };
    stream(generation.by_ref(), &mut printer, &mut continuation, explain)?;
    let seconds = start.elapsed().as_secs_f64();
    let draft = args.draft.as_ref().zip(generation.drafted()).map(|(kind, of)| draft::Report::new(kind, of));
    drop(generation);
    // The files come before the JSON, so that a result that is printed has all of them.
    recorded.write(
        args,
        &GeneratedText {
            session: &session,
            prompt: &prompt.ids,
            new: &continuation.ids,
            changes: &changes,
            made_by: &made_by,
        },
        outputs,
    )?;
    let tokens_per_second = continuation.ids.len() as f64 / seconds;
    if args.json {
        let mut report = Report::new(args, &session, made_by, prompt, continuation, max_new_tokens);
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
    continuation: &mut gpt2_engine::Continuation<&gpt2_loader::Tokenizer>,
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
fn explained(error: candle_core::Error, session: &Session, ids: &[u32], changes: &Changes) -> anyhow::Error {
    let hooks = Some(&changes.list as &dyn Hooks);
    let Ok(text) = session.input_ids(ids) else { return error.into() }; // (1, T)
    match session.model.first_not_finite(&text, hooks) {
        Ok(Some(found)) => anyhow::anyhow!(finite::describe(&found, &session.model, &text, hooks)),
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
