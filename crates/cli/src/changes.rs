//! The interventions of a run, built from the options with what they need from files and other prompts.

use crate::inputs::Inputs;
use crate::interventions::{At, InterventionArgs, vector};
use crate::prompt::{encode, read_file};
use crate::session::Session;
use crate::values::count;
use anyhow::{Context, bail};
use gpt2_model::hooks::{Intervention, Interventions, Patch, Recorder};
use gpt2_model::{Config, ForwardArgs, MeanOver};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The text that a run reads, on which some interventions depend.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reads<'a> {
    /// A prompt of these tokens, in one pass.
    Whole(&'a [u32]),
    /// A prompt of these tokens, then more through a cache: means are fixed beforehand.
    Growing(&'a [u32]),
    /// Texts without the prompt's positions, of which the string says what they are.
    Others(&'static str),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Changes {
    /// As hooks.
    pub(crate) list: Interventions,
    /// As on the command line, for the output.
    pub(crate) texts: Vec<String>,
    /// What the list comes from besides the command line.
    pub(crate) sources: Sources,
}

/// What interventions come from besides the command line.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Sources {
    /// The other prompt's tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from_prompt: Option<Vec<u32>>,
    /// The texts over which means are taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mean_of: Option<MeanOf>,
}

/// Texts over which means are taken.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct MeanOf {
    pub(crate) file: PathBuf,
    pub(crate) texts: usize,
    /// Whether there is a mean for each position.
    pub(crate) by_position: bool,
}

impl Sources {
    pub(crate) fn is_empty(&self) -> bool {
        self.from_prompt.is_none() && self.mean_of.is_none()
    }
}

impl InterventionArgs {
    /// Adds the files that the options name.
    pub(crate) fn inputs(&self, inputs: &mut Inputs) {
        for steer in &self.add {
            inputs.file("a vector of --add", &steer.file);
        }
        if let Some(path) = &self.mean_of {
            inputs.file("the texts of --mean-of", path);
        }
    }

    /// The interventions, checked against the model.
    pub(crate) fn build(&self, session: &Session, reads: Reads) -> anyhow::Result<Changes> {
        let (model, config) = (&session.model, session.model.config());
        if let Reads::Others(what) = reads {
            if let Some(option) = first_given([("--patch", self.patch.len()), ("--block", self.block.len())])
            {
                bail!("{option}: names positions of a prompt, but this command runs on {what}; leave it out");
            }
            if !self.mean_ablate.is_empty() && self.mean_of.is_none() {
                bail!(
                    "--mean-ablate: this command runs on {what}; give the texts to take the mean over with --mean-of FILE"
                );
            }
        }
        let lists = [&self.ablate, &self.mean_ablate, &self.scale, &self.attention_temperature, &self.block];
        let mut all: Vec<Intervention> = lists.into_iter().flatten().cloned().collect();
        let mut texts: Vec<String> = all.iter().map(Intervention::to_string).collect();
        let mut sources = Sources::default();
        if let Some(text) = &self.from_prompt {
            let ids = tokens(session, text, "--from-prompt")?;
            self.check_lengths(&ids, reads)?;
            for patch in self.patches(session, &ids)? {
                texts.push(format!("{patch} from a prompt of {}", count(ids.len(), "token")));
                all.push(patch);
            }
            sources.from_prompt = Some(ids);
        }
        self.add_vectors(&mut all, &mut texts, reads)?;
        let mut list = Interventions::new(all, config)?;
        if let Some(path) = &self.mean_of {
            let others = others(session, path)?;
            let t = match reads {
                Reads::Whole(ids) => Some(ids.len()),
                Reads::Growing(_) | Reads::Others(_) => None,
            };
            let by_position = others.iter().all(|ids| Some(ids.len()) == t);
            let over = if by_position { MeanOver::EachPosition } else { MeanOver::AllPositions };
            let tensors =
                others.iter().map(|ids| session.input_ids(ids)).collect::<anyhow::Result<Vec<_>>>()?;
            list = list.with_means_over(model, &tensors, over)?;
            let each = if by_position { "each position of" } else { "all positions of" };
            let over = format!(" over {each} {}", count(others.len(), "text"));
            for text in texts.iter_mut().filter(|text| text.starts_with("mean-ablate")) {
                text.push_str(&over);
            }
            sources.mean_of = Some(MeanOf { file: path.clone(), texts: others.len(), by_position });
        }
        if let Reads::Growing(ids) = reads {
            // The text grows, but means are still taken over the prompt.
            list = list.with_means_of(model, &session.input_ids(ids)?)?;
        }
        Ok(Changes { list, texts, sources })
    }

    /// Those interventions that need no prompt and no tokenizer, for a model that is in training.
    pub(crate) fn for_training(&self, config: &Config) -> anyhow::Result<Changes> {
        let others = [self.patch.len(), self.block.len(), self.mean_ablate.len()];
        if let Some(option) = first_given(["--patch", "--block", "--mean-ablate"].into_iter().zip(others)) {
            bail!("{option}: is not for training; use --ablate, --scale, --attention-temperature or --add");
        }
        let lists = [&self.ablate, &self.scale, &self.attention_temperature];
        let mut all: Vec<Intervention> = lists.into_iter().flatten().cloned().collect();
        let mut texts: Vec<String> = all.iter().map(Intervention::to_string).collect();
        self.add_vectors(&mut all, &mut texts, Reads::Others("batches of the text"))?;
        Ok(Changes { list: Interventions::new(all, config)?, texts, sources: Sources::default() })
    }

    fn add_vectors(
        &self,
        all: &mut Vec<Intervention>,
        texts: &mut Vec<String>,
        reads: Reads,
    ) -> anyhow::Result<()> {
        for steer in &self.add {
            match (reads, steer.at.position) {
                (Reads::Whole(ids), Some(position)) if position >= ids.len() => bail!(
                    "--add {}: the prompt has positions 0 to {}",
                    steer.text,
                    ids.len().saturating_sub(1)
                ),
                (Reads::Others(what), Some(_)) => {
                    bail!(
                        "--add {}: names a position, but this command runs on {what}; leave @POS out",
                        steer.text
                    )
                }
                _ => {}
            }
            let vector = vector(steer).with_context(|| format!("--add {}", steer.text))?;
            let At { place: layer, position } = steer.at;
            all.push(Intervention::Add { layer, position, vector });
            texts.push(format!("add {}", steer.text));
        }
        Ok(())
    }

    /// Refuses patches at all positions from a prompt of another length, and at a position that either lacks.
    fn check_lengths(&self, other: &[u32], reads: Reads) -> anyhow::Result<()> {
        let (Reads::Whole(ids) | Reads::Growing(ids)) = reads else { return Ok(()) };
        let (t, from) = (ids.len(), other.len());
        if t != from && self.patch.iter().any(|patch| patch.position.is_none()) {
            bail!(
                "--from-prompt has {from} tokens and the prompt {t}: make them equal, or patch single positions (--patch PLACE@POS)"
            );
        }
        let mut positions = self.patch.iter().filter_map(|patch| patch.position);
        if let Some(position) = positions.find(|&p| p >= t.min(from)) {
            bail!(
                "--patch at position {position}: the prompt has positions 0 to {} and --from-prompt 0 to {}",
                t - 1,
                from - 1
            );
        }
        Ok(())
    }

    /// The patches, with the values of a run over the other prompt.
    fn patches(&self, session: &Session, other: &[u32]) -> anyhow::Result<Vec<Intervention>> {
        let layers = session.model.config().n_layer;
        if let Some(beyond) = self.patch.iter().find(|patch| patch.place.layer() >= layers) {
            bail!("--patch {}: the model has layers 0 to {}", beyond.place, layers - 1);
        }
        let recorder = Recorder::new(self.patch.iter().map(|patch| patch.place.point()));
        let args = ForwardArgs { hooks: Some(&recorder), ..Default::default() };
        session.model.transformer.forward(&session.input_ids(other)?, args)?;
        let patch = |&At { place, position }: &At<_>| -> anyhow::Result<Intervention> {
            Ok(Intervention::Patch(Patch { place, position, from: recorder.value(place.point())? }))
        };
        self.patch.iter().map(patch).collect()
    }
}

/// The first option that was given, of some with the number of their values.
fn first_given<'a>(options: impl IntoIterator<Item = (&'a str, usize)>) -> Option<&'a str> {
    options.into_iter().find(|(_, given)| *given > 0).map(|(option, _)| option)
}

/// The texts of `--mean-of`, one a line.
fn others(session: &Session, path: &Path) -> anyhow::Result<Vec<Vec<u32>>> {
    const LONGEST: u64 = 1 << 24;
    let text = read_file("the texts of --mean-of", path, LONGEST)?;
    let mut all = vec![];
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        all.push(tokens(session, line, &format!("{}: line {}", path.display(), i + 1))?);
    }
    if all.is_empty() {
        bail!("{}: holds no text; write one a line", path.display());
    }
    Ok(all)
}

/// The tokens of a text that the model can read in one pass; `what` names the text in errors.
fn tokens(session: &Session, text: &str, what: &str) -> anyhow::Result<Vec<u32>> {
    let (tokenizer, n) = (session.tokenizer()?, session.model.config().n_positions);
    tokenizer.check_length(text, n).with_context(|| what.to_string())?;
    let ids = encode(tokenizer, text, what)?;
    if ids.is_empty() || ids.len() > n {
        bail!("{what} has {} tokens, expected 1 to the model's n_positions = {n}", ids.len());
    }
    Ok(ids)
}
