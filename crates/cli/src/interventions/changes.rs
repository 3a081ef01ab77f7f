//! The interventions of a run, built from the options with what they need from files and other prompts.

use super::args::{HeadsOption, InterventionArgs, vector};
use super::checks::{Reads, first_given};
use super::circuit;
use crate::input::prompt::{encode_within, read_file};
use crate::model::session::Session;
use crate::output::read_files::ReadFiles;
use crate::values::count;
use anyhow::{Context, anyhow, bail};
use gpt2_engine::{At, NamedDictionary, check_effective};
use gpt2_loader::DictionaryCheckpoint;
use gpt2_model::hooks::{Intervention, Interventions, Patch, Recorder};
use gpt2_model::{Config, ForwardArgs, MeanOver};
use serde::Serialize;
use std::cell::OnceCell;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Default)]
pub(crate) struct Changes {
    /// The interventions, as the model's hooks.
    pub(crate) list: Interventions,
    /// Each intervention as the command line spells it, for the output.
    pub(crate) texts: Vec<String>,
    /// The texts besides the prompt that the interventions take values from.
    pub(crate) sources: Sources,
}

/// Texts besides the prompt that interventions take values from.
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
    /// Whether each position has a mean of its own; `None` if that differs from text to text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) by_position: Option<bool>,
}

impl Sources {
    pub(crate) fn is_empty(&self) -> bool {
        self.from_prompt.is_none() && self.mean_of.is_none()
    }
}

impl InterventionArgs {
    /// Adds the files that the options name.
    pub(crate) fn inputs(&self, inputs: &mut ReadFiles) {
        for steer in &self.add {
            inputs.file("a vector of --add", &steer.file);
        }
        if let Some(path) = &self.mean_of {
            inputs.file("the texts of --mean-of", path);
        }
        if let Some(path) = &self.circuit {
            inputs.file("the circuit", path);
        }
        if let Some(source) = &self.dictionary
            && let Ok(NamedDictionary::Folder(folder)) = NamedDictionary::find(source)
        {
            for path in DictionaryCheckpoint::paths_in(&folder) {
                inputs.file("a file of --dictionary", path);
            }
        }
    }

    /// The interventions of a run, checked against the model.
    pub(crate) fn build(&self, session: &Session, reads: Reads) -> anyhow::Result<Changes> {
        self.check(reads)?;
        Prepared::new(self, session)?.of(reads)
    }

    /// Builds the interventions for a model in training. Error for an option that does not work in training, such as
    /// `--patch`.
    pub(crate) fn for_training(&self, config: &Config) -> anyhow::Result<Changes> {
        let others = [
            self.patch.len(),
            self.block.len(),
            self.mean_ablate.len(),
            usize::from(self.dictionary.is_some()),
            usize::from(self.circuit.is_some()),
        ];
        let names = ["--patch", "--block", "--mean-ablate", "--dictionary", "--circuit"];
        if let Some(option) = first_given(names.into_iter().zip(others)) {
            bail!("{option}: is not for training; use --ablate, --scale, --attention-temperature or --add");
        }
        let lists = [&self.ablate, &self.scale, &self.attention_temperature];
        let mut all = on_heads(lists.into_iter().flatten(), config)?;
        let mut texts: Vec<String> = all.iter().map(Intervention::to_string).collect();
        self.check(Reads::Others("batches of the text"))?;
        self.add_vectors(&mut all, &mut texts)?;
        check_effective(&all)?;
        Ok(Changes { list: checked(all, config)?, texts, sources: Sources::default() })
    }

    fn add_vectors(&self, all: &mut Vec<Intervention>, texts: &mut Vec<String>) -> anyhow::Result<()> {
        for steer in &self.add {
            let vector = vector(steer).with_context(|| format!("--add {}", steer.text))?;
            let At { place: layer, position } = steer.at;
            all.push(Intervention::Add { layer, position, vector });
            texts.push(format!("add {}", steer.text));
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

/// The interventions of runs over many texts: what does not depend on the text is computed once.
pub(crate) struct Prepared<'a> {
    args: &'a InterventionArgs,
    session: &'a Session,
    /// Without the means of `--mean-of`.
    plain: Changes,
    /// The texts of `--mean-of`.
    others: Option<Others>,
}

/// Texts over which means are taken, and the interventions with these means.
struct Others {
    file: PathBuf,
    texts: Vec<Vec<u32>>,
    /// The common number of tokens of the texts; `None` if they differ in length, or if only a circuit uses the means.
    length: Option<usize>,
    each_position: OnceCell<Changes>,
    all_positions: OnceCell<Changes>,
}

impl<'a> Prepared<'a> {
    pub(crate) fn new(args: &'a InterventionArgs, session: &'a Session) -> anyhow::Result<Self> {
        let config = session.model.config();
        let lists = [&args.ablate, &args.mean_ablate, &args.scale, &args.attention_temperature];
        let mut all = on_heads(lists.into_iter().flatten(), config)?;
        all.extend(args.block.iter().cloned());
        let mut texts: Vec<String> = all.iter().map(Intervention::to_string).collect();
        let mut sources = Sources::default();
        if let Some(text) = &args.from_prompt {
            let ids = tokens(session, text, "--from-prompt")?;
            for patch in args.patches(session, &ids)? {
                texts.push(format!("{patch} from a prompt of {}", count(ids.len(), "token")));
                all.push(patch);
            }
            sources.from_prompt = Some(ids);
        }
        args.add_vectors(&mut all, &mut texts)?;
        for change in args.feature_changes(session)? {
            let name = args.dictionary.as_deref().map(|source| session.dictionary(source)).transpose()?;
            let name = name.map_or("", |opened| opened.found.checkpoint.name());
            texts.push(format!("{change}, a feature of {name}"));
            all.push(change);
        }
        check_effective(&all)?;
        let mut others = args.mean_of.as_ref().map(|file| Others::read(session, file)).transpose()?;
        if let Some(others) = others.as_mut().filter(|_| args.mean_ablate.is_empty()) {
            others.length = None; // a circuit takes one mean over all positions
        }
        // Last, so that edges carry what the others make of heads and MLPs.
        if let Some(path) = &args.circuit {
            let other = sources.from_prompt.as_deref();
            let means = others.as_ref().map(|others| &others.texts[..]);
            let circuit = circuit::intervention(session, path, other, means, &checked(all.clone(), config)?)?;
            texts.push(circuit.to_string());
            all.push(circuit);
        }
        let list = checked(all, config)?;
        Ok(Self { args, session, plain: Changes { list, texts, sources }, others })
    }

    /// The interventions of a run over one text, as if it were the only one.
    pub(crate) fn of(&self, reads: Reads) -> anyhow::Result<Changes> {
        self.args.check(reads)?;
        if let Some(ids) = &self.plain.sources.from_prompt {
            self.args.check_lengths(ids, reads)?;
        }
        let mut changes = match &self.others {
            None => self.plain.clone(),
            Some(others) => others.under(self, others.by_position(reads))?.clone(),
        };
        if let Reads::Growing(ids) = reads {
            // The text grows, but means are still taken over the prompt.
            let ids = self.session.input_ids(ids)?;
            changes.list = changes.list.with_means_of(&self.session.model, &ids)?;
        }
        Ok(changes)
    }

    /// Whether runs over two texts of these numbers of tokens have the same interventions.
    pub(crate) fn treat_alike(&self, a: usize, b: usize) -> bool {
        let length = self.others.as_ref().and_then(|others| others.length);
        !self.args.take_own_means() && (length == Some(a)) == (length == Some(b))
    }

    /// The interventions that all runs share, for the output. Which positions a mean covers may differ from text to text.
    pub(crate) fn described(&self) -> Changes {
        let mut changes = self.plain.clone();
        if let Some(Others { file, texts, length, .. }) = &self.others {
            let number = count(texts.len(), "text");
            let over = match length {
                Some(t) => format!("{number}, by position in texts of {}", count(*t, "token")),
                None => format!("all positions of {number}"),
            };
            changes.say_means(&over);
            let file = file.clone();
            let texts = texts.len();
            changes.sources.mean_of = Some(MeanOf { file, texts, by_position: None });
        }
        changes
    }

    /// Hashes what comes from files.
    pub(crate) fn hash(&self, hasher: &mut impl Hasher) -> anyhow::Result<()> {
        for one in self.plain.list.iter() {
            if let Intervention::Add { vector, .. } = one {
                vector.to_vec1::<f32>()?.iter().for_each(|number| number.to_bits().hash(hasher));
            }
        }
        self.args.hash_dictionary(self.session, hasher)?;
        if let Some(path) = &self.args.circuit {
            std::fs::read(path).with_context(|| path.display().to_string())?.hash(hasher);
        }
        self.others.as_ref().map(|others| &others.texts).hash(hasher);
        Ok(())
    }
}

impl Changes {
    /// The interventions as a page with a model reads them; refuses those that text cannot hold.
    pub(crate) fn for_page(&self) -> anyhow::Result<Vec<String>> {
        let one = |one: &Intervention| {
            let text = one.to_string();
            let is_whole = text.parse::<Intervention>().is_ok() && self.sources.is_empty();
            if is_whole {
                Ok(text)
            } else {
                Err(anyhow!("--live: a page cannot hold `{text}`; leave it out"))
            }
        };
        self.list.iter().map(one).collect()
    }

    /// Appends to the text of each mean ablation what its mean is taken over.
    fn say_means(&mut self, over: &str) {
        for text in self.texts.iter_mut().filter(|text| text.starts_with("mean-ablate")) {
            text.push_str(" over ");
            text.push_str(over);
        }
    }
}

impl Others {
    /// Reads the texts of `--mean-of`, one a line.
    fn read(session: &Session, path: &Path) -> anyhow::Result<Self> {
        const LONGEST: u64 = 1 << 24;
        let text = read_file("the texts of --mean-of", path, LONGEST)?;
        let mut texts = vec![];
        for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            texts.push(tokens(session, line, &format!("{}: line {}", path.display(), i + 1))?);
        }
        let Some(first) = texts.first().map(Vec::len) else {
            bail!("{}: holds no text; write one a line", path.display());
        };
        let length = Some(first).filter(|t| texts.iter().all(|ids| ids.len() == *t));
        let each_position = OnceCell::new();
        let all_positions = OnceCell::new();
        Ok(Self { file: path.to_path_buf(), texts, length, each_position, all_positions })
    }

    /// Whether a run over that text takes a mean for each position.
    fn by_position(&self, reads: Reads) -> bool {
        matches!(reads, Reads::Whole(ids) if self.length == Some(ids.len()))
    }

    fn under(&self, prepared: &Prepared, by_position: bool) -> anyhow::Result<&Changes> {
        let (cell, over) = if by_position {
            (&self.each_position, MeanOver::EachPosition)
        } else {
            (&self.all_positions, MeanOver::AllPositions)
        };
        if let Some(changes) = cell.get() {
            return Ok(changes);
        }
        let session = prepared.session;
        let mut changes = prepared.plain.clone();
        let tensors =
            self.texts.iter().map(|ids| session.input_ids(ids)).collect::<anyhow::Result<Vec<_>>>()?;
        changes.list = changes.list.with_means_over(&session.model, &tensors, over)?;
        let positions = if by_position { "each position" } else { "all positions" };
        changes.say_means(&format!("{positions} of {}", count(self.texts.len(), "text")));
        let file = self.file.clone();
        let texts = self.texts.len();
        changes.sources.mean_of = Some(MeanOf { file, texts, by_position: Some(by_position) });
        Ok(cell.get_or_init(|| changes))
    }
}

/// The interventions on single heads, checked against the model; an error names the option as typed.
pub(crate) fn on_heads<'a>(
    given: impl Iterator<Item = &'a HeadsOption>,
    config: &Config,
) -> anyhow::Result<Vec<Intervention>> {
    let mut all = vec![];
    for one in given {
        let each = one.each(config.n_head);
        Interventions::new(each.clone(), config).with_context(|| one.text.clone())?;
        all.extend(each);
    }
    Ok(all)
}

/// Error for an output that holds one run, under `--compare`.
pub(crate) fn holds_one_run(option: &str) -> anyhow::Error {
    anyhow!(
        "{option}: would hold the changed run alone beside --compare; write it without --compare, once with the interventions and \
         once without"
    )
}

/// Error for `--compare` without an intervention.
pub(crate) fn nothing_to_compare() -> anyhow::Error {
    anyhow!(
        "--compare: there is nothing to compare the plain run with; add an intervention, such as --ablate 0.3"
    )
}

/// Checks interventions against the model; an error names the option.
fn checked(all: Vec<Intervention>, config: &Config) -> anyhow::Result<Interventions> {
    for one in &all {
        Interventions::new(vec![one.clone()], config).with_context(|| format!("--{one}"))?;
    }
    Ok(Interventions::new(all, config)?)
}

/// The tokens of a text that the model can read in one pass; `what` names the text in errors.
fn tokens(session: &Session, text: &str, what: &str) -> anyhow::Result<Vec<u32>> {
    let tokenizer = session.tokenizer()?;
    let n = session.model.config().n_positions;
    let ids = encode_within(tokenizer, text, what, n)?;
    if ids.is_empty() {
        bail!("{what} has no token, expected 1 to the model's n_positions = {n}");
    }
    Ok(ids)
}
