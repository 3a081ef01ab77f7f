//! `--beams`: the most probable texts.

use super::args::GenerateArgs;
use crate::output;
use gpt2_engine::Opened;
use gpt2_engine::RunProvenance;
use gpt2_engine::texts::Prompt;
use gpt2_model::beams::{BeamSearch, Hypothesis};
use serde::Serialize;
use std::io::Write;
use std::time::Instant;

#[derive(Serialize)]
struct Report {
    provenance: RunProvenance,
    model: String,
    num_beams: usize,
    length_penalty: f64,
    early_stopping: bool,
    repetition_penalty: f64,
    max_new_tokens: usize,
    prompt_ids: Vec<u32>,
    /// The best first.
    hypotheses: Vec<BeamText>,
    seconds: f64,
}

#[derive(Serialize)]
struct BeamText {
    /// The generated ids, including the end token.
    ids: Vec<u32>,
    /// Their text without the end token; `None` for a prompt of ids.
    text: Option<String>,
    /// The log-probability in nats, divided by tokens^length_penalty.
    score: f64,
}

pub(super) fn run(
    args: &GenerateArgs,
    beams: u16,
    opened: &Opened,
    prompt: Prompt,
    max_new_tokens: usize,
) -> anyhow::Result<()> {
    let search = BeamSearch {
        num_beams: beams.into(),
        length_penalty: args.length_penalty,
        early_stopping: args.early_stopping,
        repetition_penalty: args.repetition_penalty,
    };
    let provenance = RunProvenance::new(opened, &prompt.ids)?;
    output::note(&provenance.first_line());
    let start = Instant::now();
    let found = search.run(&opened.model, &prompt.ids, max_new_tokens)?;
    let seconds = start.elapsed().as_secs_f64();
    let is_end = |id: &u32| opened.model.config().is_eos(*id);
    let text = |Hypothesis { ids, .. }: &Hypothesis| -> anyhow::Result<Option<String>> {
        let shown = &ids[..ids.len() - usize::from(ids.last().is_some_and(is_end))];
        Ok(prompt.text.is_some().then(|| opened.tokenizer().map(|t| t.decode(shown))).transpose()?)
    };
    if args.json {
        let found =
            found.into_iter().map(|one| Ok(BeamText { text: text(&one)?, ids: one.ids, score: one.score }));
        let BeamSearch { num_beams, length_penalty, early_stopping, repetition_penalty } = search;
        return output::json(&Report {
            provenance,
            model: opened.name.clone(),
            num_beams,
            length_penalty,
            early_stopping,
            repetition_penalty,
            max_new_tokens,
            prompt_ids: prompt.ids,
            hypotheses: found.collect::<anyhow::Result<_>>()?,
            seconds,
        });
    }
    let best = found.first();
    let mut out = output::stdout();
    if let Some(prompt) = &prompt.text {
        out.write_text(prompt)?;
        out.write_text(&best.map(text).transpose()?.flatten().unwrap_or_default())?;
    } else {
        let shown = best.iter().flat_map(|best| &best.ids).filter(|id| !is_end(id));
        let ids: Vec<String> = shown.map(u32::to_string).collect();
        write!(out, "{}", ids.join(","))?;
    }
    writeln!(out)?;
    if let Some(best) = best {
        output::note(&format!("{} tokens, score {:.4}, in {seconds:.2} s", best.ids.len(), best.score));
    }
    Ok(())
}
