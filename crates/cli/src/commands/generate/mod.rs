//! `gpt2 generate`: continues a prompt, token by token.

mod args;
mod recorded;

pub(super) use args::GenerateArgs;

use crate::changes::Reads;
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

/// The default of `--max-new-tokens` if the context has room.
const DEFAULT_NEW_TOKENS: usize = 100;

#[derive(Serialize)]
struct Report {
    provenance: Provenance,
    sampling: Draw,
    model: String,
    prompt_ids: Vec<u32>,
    /// The generated ids, including the end token.
    ids: Vec<u32>,
    /// Their text without the end token; `None` for a prompt of ids.
    text: Option<String>,
    stopped_at_eos: bool,
    seconds: f64,
    tokens_per_second: f64,
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

    let prompts = std::slice::from_ref(&prompt.ids);
    let changes = args.interventions.build(&session, Reads::Growing(&prompt.ids))?;
    let mut made_by = Provenance::new(&session, &prompt.ids)?.under(&changes);
    made_by.kv = args.kv.as_ref().map(DType::as_str);
    let mut generation = Generation::new(&session.model, prompts, sampling(args), max_new_tokens)?;
    if let Some(kv) = args.kv {
        generation = generation.with_cache_dtype(kv)?;
    }
    let recorded = Recorded::new(args, &session)?;
    let hooks: [&dyn Hooks; 2] = [&changes.list, &recorded.rows];
    let chain = Chain(&hooks);
    let generation = generation.with_hooks(&chain);
    // Only the text goes to stdout.
    output::note(&made_by.first_line());
    let mut printer = Printer::new(&session, prompt.text.as_deref(), args.json)?;
    let start = Instant::now();
    let mut ids = vec![];
    for step in generation {
        let step = match step {
            Ok(step) => step,
            Err(error) => {
                if printer.begun {
                    printer.finish()?; // the error starts on a new line
                }
                let text = session.input_ids(&[&prompt.ids[..], &ids].concat())?; // (1, T)
                return Err(match session.model.first_not_finite(&text, Some(&changes.list)) {
                    Ok(Some(found)) => {
                        anyhow::anyhow!(finite::describe(&found, &session.model, &text, Some(&changes.list)))
                    }
                    _ => error.into(),
                });
            }
        };
        if let Some(id) = step.first().copied().flatten() {
            ids.push(id);
            if !config.is_eos(id) {
                printer.push(id)?;
            }
        }
    }
    printer.finish()?;
    let seconds = start.elapsed().as_secs_f64();
    // The files come before the JSON, so that a result that is printed has all of them.
    recorded.write(
        args,
        &Text { session: &session, prompt: &prompt.ids, new: &ids, changes: &changes, made_by: &made_by },
        outputs,
    )?;
    let tokens_per_second = ids.len() as f64 / seconds;
    if args.json {
        let stopped_at_eos = ids.last().is_some_and(|&id| config.is_eos(id));
        let shown = &ids[..ids.len() - usize::from(stopped_at_eos)];
        let text = prompt.text.is_some().then(|| session.tokenizer().map(|t| t.decode(shown))).transpose()?;
        let Sampling { temperature, top_k, top_p, repetition_penalty, seed } = sampling(args);
        output::json(&Report {
            provenance: made_by,
            sampling: Draw { temperature, top_k, top_p, repetition_penalty, seed, max_new_tokens },
            model: session.name.clone(),
            prompt_ids: prompt.ids,
            ids,
            text,
            stopped_at_eos,
            seconds,
            tokens_per_second,
        })?;
    } else {
        output::note(&format!("{} tokens in {seconds:.2} s, {tokens_per_second:.1} tokens/s", ids.len()));
    }
    Ok(())
}

/// The other settings that the text depends on.
#[derive(Serialize)]
struct Draw {
    temperature: f64,
    top_k: Option<usize>,
    top_p: Option<f64>,
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
            ..Sampling::default()
        }
    };
    Sampling { repetition_penalty: args.repetition_penalty, seed: args.model.run.seed, ..base }
}

/// Streams to stdout: the prompt's text and its continuation, or ids if the prompt was ids.
struct Printer<'a> {
    out: output::Stdout,
    mode: Mode<'a>,
    /// Whether the current line holds anything.
    begun: bool,
}

enum Mode<'a> {
    Text(TextStream<'a>),
    Ids,
    Quiet,
}

impl<'a> Printer<'a> {
    fn new(session: &'a Session, text: Option<&str>, quiet: bool) -> anyhow::Result<Self> {
        let mut out = output::stdout();
        let mode = match text {
            _ if quiet => Mode::Quiet,
            None => Mode::Ids,
            Some(text) => {
                write!(out, "{text}")?;
                out.flush()?;
                Mode::Text(session.tokenizer()?.stream())
            }
        };
        Ok(Self { out, mode, begun: text.is_some() && !quiet })
    }

    fn push(&mut self, id: u32) -> anyhow::Result<()> {
        match &mut self.mode {
            Mode::Text(stream) => write!(self.out, "{}", stream.push(id))?,
            Mode::Ids => write!(self.out, "{}{id}", if self.begun { "," } else { "" })?,
            Mode::Quiet => return Ok(()),
        }
        self.begun = true;
        Ok(self.out.flush()?)
    }

    fn finish(mut self) -> anyhow::Result<()> {
        match self.mode {
            Mode::Text(stream) => writeln!(self.out, "{}", stream.finish())?,
            Mode::Ids => writeln!(self.out)?,
            Mode::Quiet => {}
        }
        Ok(())
    }
}
