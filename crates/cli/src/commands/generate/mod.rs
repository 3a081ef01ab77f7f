//! `gpt2 generate`: continues a prompt, token by token.

mod args;
mod beams;
mod draft;
mod recorded;
mod stop;

pub(super) use args::GenerateArgs;

use crate::changes::{Changes, Reads};
use crate::provenance::Provenance;
use crate::session::Session;
use crate::{finite, output};
use candle_core::DType;
use gpt2_loader::TextStream;
use gpt2_model::hooks::{Chain, Hooks};
use gpt2_model::{Generation, Sampling};
use recorded::{Recorded, Text};
use serde::Serialize;
use std::io::Write;
use std::time::Instant;
use stop::Until;

/// The default of `--max-new-tokens` if the context has room.
const DEFAULT_NEW_TOKENS: usize = 100;

#[derive(Serialize)]
struct Report<'a> {
    provenance: Provenance,
    sampling: Draw,
    model: String,
    prompt_ids: Vec<u32>,
    /// The generated ids, including the end token.
    ids: Vec<u32>,
    /// Their text without the end token, up to a stop string; `None` for a prompt of ids.
    text: Option<String>,
    stopped_at_eos: bool,
    /// The stop string that ended the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped_at: Option<&'a str>,
    seconds: f64,
    tokens_per_second: f64,
    /// With `--draft`: how its guesses fared.
    #[serde(skip_serializing_if = "Option::is_none")]
    draft: Option<draft::Report>,
}

pub(crate) fn run(args: &GenerateArgs) -> anyhow::Result<()> {
    let text = args.prompt.read()?;
    let outputs = recorded::outputs(args)?;
    let mut inputs = args.prompt.inputs();
    args.interventions.inputs(&mut inputs);
    let session = args.model.session_for(inputs, &outputs)?;
    let prompt = args.prompt.encode(text, &session)?;
    let config = session.model.config();
    let room = config.n_positions + 1 - prompt.ids.len();
    let max_new_tokens = args.max_new_tokens.unwrap_or(DEFAULT_NEW_TOKENS.min(room));

    if let Some(n) = args.beams {
        return beams::run(args, n, &session, prompt, max_new_tokens);
    }
    let prompts = std::slice::from_ref(&prompt.ids);
    let changes = args.interventions.build(&session, Reads::Growing(&prompt.ids))?;
    let mut made_by = Provenance::new(&session, &prompt.ids)?.under(&changes);
    made_by.kv = args.kv.as_ref().map(DType::as_str);
    let mut generation = Generation::new(&session.model, prompts, sampling(args), max_new_tokens)?;
    if let Some(kv) = args.kv {
        generation = generation.with_cache_dtype(kv)?;
    }
    if let Some(draft) = &args.draft {
        generation = generation.with_draft(draft.open(&session, &args.model.hub)?)?;
    }
    let recorded = Recorded::new(args, &session)?;
    let hooks: [&dyn Hooks; 2] = [&changes.list, &recorded.rows];
    let chain = Chain(&hooks);
    let mut generation = generation.with_hooks(&chain);
    // Only the text goes to stdout.
    output::note(&made_by.first_line());
    let mut printer = Printer::new(&session, prompt.text.as_deref(), args)?;
    let start = Instant::now();
    let mut ids = vec![];
    for step in generation.by_ref() {
        let step = match step {
            Ok(step) => step,
            Err(error) => {
                if printer.begun {
                    printer.finish()?; // the error starts on a new line
                }
                return Err(explained(error, &session, &[&prompt.ids[..], &ids].concat(), &changes));
            }
        };
        if let Some(id) = step.first().copied().flatten() {
            ids.push(id);
            if !config.is_eos(id) {
                printer.push(id)?;
            }
            if printer.stopped_at().is_some() {
                break;
            }
        }
    }
    let stopped_at = printer.stopped_at();
    let text = printer.finish()?;
    let seconds = start.elapsed().as_secs_f64();
    let draft = args.draft.as_ref().zip(generation.drafted()).map(|(kind, of)| draft::Report::new(kind, of));
    drop(generation);
    // The files come before the JSON, so that a result that is printed has all of them.
    recorded.write(
        args,
        &Text { session: &session, prompt: &prompt.ids, new: &ids, changes: &changes, made_by: &made_by },
        outputs,
    )?;
    let tokens_per_second = ids.len() as f64 / seconds;
    if args.json {
        let stopped_at_eos = ids.last().is_some_and(|&id| config.is_eos(id));
        let Sampling { temperature, top_k, top_p, min_p, typical_p, repetition_penalty, seed } =
            sampling(args);
        output::json(&Report {
            provenance: made_by,
            sampling: Draw {
                temperature,
                top_k,
                top_p,
                min_p,
                typical_p,
                repetition_penalty,
                seed,
                max_new_tokens,
            },
            model: session.name.clone(),
            prompt_ids: prompt.ids,
            ids,
            text: prompt.text.map(|_| text),
            stopped_at_eos,
            stopped_at,
            seconds,
            tokens_per_second,
            draft,
        })?;
    } else {
        output::note(&format!("{} tokens in {seconds:.2} s, {tokens_per_second:.1} tokens/s", ids.len()));
        if let Some(draft) = draft {
            draft.print();
        }
    }
    Ok(())
}

/// Where a number that is not finite came from, if that is why a step after `ids` failed.
fn explained(error: candle_core::Error, session: &Session, ids: &[u32], changes: &Changes) -> anyhow::Error {
    let hooks = Some(&changes.list as &dyn Hooks);
    let Ok(text) = session.input_ids(ids) else { return error.into() }; // (1, T)
    match session.model.first_not_finite(&text, hooks) {
        Ok(Some(found)) => anyhow::anyhow!(finite::describe(&found, &session.model, &text, hooks)),
        _ => error.into(),
    }
}

/// The other settings that the text depends on.
#[derive(Serialize)]
struct Draw {
    temperature: f64,
    top_k: Option<usize>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    typical_p: Option<f64>,
    repetition_penalty: f64,
    seed: u64,
    max_new_tokens: usize,
}

fn sampling(args: &GenerateArgs) -> Sampling {
    let base = if args.greedy {
        Sampling::greedy()
    } else {
        Sampling {
            temperature: args.temperature,
            top_k: (args.top_k > 0).then_some(args.top_k),
            top_p: args.top_p,
            min_p: args.min_p,
            typical_p: args.typical_p,
            ..Sampling::default()
        }
    };
    Sampling { repetition_penalty: args.repetition_penalty, seed: args.model.run.seed, ..base }
}

/// Streams to stdout, except with `--json`: the prompt's text and its continuation, or ids if the prompt was ids.
struct Printer<'a> {
    /// `None` with `--json`.
    out: Option<output::Stdout>,
    /// `None` for ids.
    stream: Option<TextStream<'a>>,
    until: Until<'a>,
    /// The continuation so far.
    text: String,
    /// Whether the current line holds anything.
    begun: bool,
}

impl<'a> Printer<'a> {
    fn new(session: &'a Session, text: Option<&str>, args: &'a GenerateArgs) -> anyhow::Result<Self> {
        let mut out = (!args.json).then(output::stdout);
        if let (Some(out), Some(text)) = (&mut out, text) {
            out.write_text(text)?;
            out.flush()?;
        }
        let stream = text.map(|_| Ok::<_, anyhow::Error>(session.tokenizer()?.stream())).transpose()?;
        let begun = text.is_some() && !args.json;
        Ok(Self { out, stream, until: Until::new(&args.stop), text: String::new(), begun })
    }

    /// The stop string that ended the text.
    fn stopped_at(&self) -> Option<&'a str> {
        self.until.found
    }

    fn push(&mut self, id: u32) -> anyhow::Result<()> {
        let piece = match &mut self.stream {
            Some(stream) => self.until.push(&stream.push(id)),
            None => format!("{}{id}", if self.begun { "," } else { "" }),
        };
        self.print(&piece)
    }

    fn print(&mut self, piece: &str) -> anyhow::Result<()> {
        self.begun = true;
        self.text.push_str(piece);
        let Some(out) = &mut self.out else { return Ok(()) };
        out.write_text(piece)?;
        Ok(out.flush()?)
    }

    /// Ends the line; the continuation.
    fn finish(mut self) -> anyhow::Result<String> {
        if let Some(stream) = self.stream.take() {
            let rest = self.until.push(&stream.finish()) + &self.until.finish();
            self.print(&rest)?;
        }
        if let Some(out) = &mut self.out {
            writeln!(out)?;
        }
        Ok(self.text)
    }
}
