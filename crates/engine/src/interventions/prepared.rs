//! The interventions of runs: built from the options with what they need from files and other prompts, and checked against a model.

use super::checks::{Reads, check_effective};
use super::circuit::RestOfCircuit;
use super::features::FeatureChanges;
use super::means::MeanTokens;
use super::options::{At, CircuitChoice, InterventionOptions};
use super::sources::{MeanSource, Sources};
use crate::observer::Observer;
use crate::open::Opened;
use crate::spelling::Spelling;
use crate::texts::tokens_within;
use crate::words::count;
use anyhow::{Context, bail};
use gpt2_model::hooks::{Intervention, Interventions, Patch, Recorder};
use gpt2_model::{Config, ForwardArgs};
use std::hash::{Hash, Hasher};

/// The interventions of a run, as the model's hooks and as text.
#[derive(Debug, Clone, Default)]
pub struct Applied {
    /// The interventions, as the model's hooks.
    pub list: Interventions,
    /// Each intervention in words, for the output.
    pub texts: Vec<String>,
    /// The texts besides the prompt that the interventions take values from.
    pub sources: Sources,
}

/// An intervention in words.
#[derive(Debug, Clone)]
struct Description {
    text: String,
    takes_mean: bool,
}

impl Description {
    fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), takes_mean: false }
    }

    /// The text; `over` says what means are taken over.
    fn under(&self, over: Option<&str>) -> String {
        match over {
            Some(over) if self.takes_mean => format!("{} over {over}", self.text),
            _ => self.text.clone(),
        }
    }
}

impl InterventionOptions {
    /// The interventions of one run, checked against the model and the texts that it reads.
    ///
    /// # Errors
    /// When one does not fit the model or the texts, or a file or a dictionary that it names cannot be read.
    pub fn build(&self, opened: &Opened, reads: Reads, observer: &dyn Observer) -> anyhow::Result<Applied> {
        self.check(reads, opened.spelling)?;
        Prepared::new(self.clone(), opened, observer)?.of(reads)
    }

    /// The interventions for a model in training.
    ///
    /// # Errors
    /// For one that does not work in training, such as a patch, or does not fit the model.
    pub fn for_training(&self, config: &Config, spelling: Spelling) -> anyhow::Result<Applied> {
        let others = [
            ("patch", self.patch.len()),
            ("block", self.block.len()),
            ("mean-ablate", usize::from(self.mean_ablates())),
            ("dictionary", usize::from(self.dictionary.is_some())),
            ("circuit", usize::from(self.circuit.is_some())),
        ];
        if let Some((name, _)) = others.into_iter().find(|(_, given)| *given > 0) {
            let taken =
                ["ablate", "scale", "attention-temperature"].map(|name| spelling.option(name)).join(", ");
            bail!(
                "{}: is not for training; use {taken} or {}",
                spelling.option(name),
                spelling.option("add")
            );
        }
        self.check(Reads::Others("batches of the text"), spelling)?;
        let mut all = AllOf::default();
        self.add_heads(&mut all, config, spelling)?;
        self.add_vectors(&mut all, spelling)?;
        check_effective(&all.list)?;
        let texts = all.texts(None);
        Ok(Applied { list: checked(all.list, config, spelling)?, texts, sources: Sources::default() })
    }

    fn add_heads(&self, all: &mut AllOf, config: &Config, spelling: Spelling) -> anyhow::Result<()> {
        for heads in &self.heads {
            let each = heads.each(config.n_head);
            Interventions::new(each.clone(), config)
                .with_context(|| format!("{} {}", spelling.option(heads.option()), heads.text()))?;
            for one in each {
                let takes_mean = matches!(one, Intervention::MeanAblate(_));
                all.push(Description { text: one.to_string(), takes_mean }, one);
            }
        }
        Ok(())
    }

    fn add_vectors(&self, all: &mut AllOf, spelling: Spelling) -> anyhow::Result<()> {
        for steer in &self.add {
            let name = || format!("{} {}", spelling.option("add"), steer.text);
            let vector = steer.numbers().with_context(name)?;
            let At { place: layer, position } = steer.at;
            let one = Intervention::Add { layer, position, vector };
            all.push(Description::new(format!("add {}", steer.text)), one);
        }
        Ok(())
    }

    /// The patches, with the values of a run over the other prompt.
    fn patches(&self, opened: &Opened, other: &[u32]) -> anyhow::Result<Vec<Intervention>> {
        let layers = opened.model.config().n_layer;
        if let Some(beyond) = self.patch.iter().find(|patch| patch.place.layer() >= layers) {
            let option = opened.spelling.option("patch");
            bail!("{option} {}: the model has layers 0 to {}", beyond.place, layers - 1);
        }
        if self.patch.is_empty() {
            return Ok(vec![]);
        }
        let recorder = Recorder::new(self.patch.iter().map(|patch| patch.place.point()));
        let args = ForwardArgs { hooks: Some(&recorder), ..Default::default() };
        opened.model.transformer.forward(&opened.input_ids(other)?, args)?;
        let patch = |&At { place, position }: &At<_>| -> anyhow::Result<Intervention> {
            Ok(Intervention::Patch(Patch { place, position, from: recorder.value(place.point())? }))
        };
        self.patch.iter().map(patch).collect()
    }
}

/// Interventions with their words.
#[derive(Debug, Default)]
struct AllOf {
    list: Vec<Intervention>,
    descriptions: Vec<Description>,
}

impl AllOf {
    fn push(&mut self, description: Description, one: Intervention) {
        self.descriptions.push(description);
        self.list.push(one);
    }

    fn texts(&self, over: Option<&str>) -> Vec<String> {
        self.descriptions.iter().map(|one| one.under(over)).collect()
    }
}

/// The interventions of runs over many texts: what does not depend on the text is computed once.
#[derive(Debug)]
pub struct Prepared<'a> {
    options: InterventionOptions,
    opened: &'a Opened,
    /// Without the means over other texts.
    plain: Interventions,
    descriptions: Vec<Description>,
    from_prompt: Option<Vec<u32>>,
    /// The texts over which means are taken.
    means: Option<MeanTokens>,
}

impl<'a> Prepared<'a> {
    /// Reads what the interventions need, and checks them against the model.
    ///
    /// # Errors
    /// See [`InterventionOptions::build`].
    pub fn new(
        options: InterventionOptions,
        opened: &'a Opened,
        observer: &dyn Observer,
    ) -> anyhow::Result<Self> {
        let config = opened.model.config();
        let spelling = opened.spelling;
        let mut all = AllOf::default();
        options.add_heads(&mut all, config, spelling)?;
        for block in &options.block {
            all.push(Description::new(block.to_string()), block.clone());
        }
        let mut from_prompt = None;
        if let Some(text) = &options.from_prompt {
            let ids = tokens_within(opened, text, &spelling.option("from-prompt"), observer)?;
            for patch in options.patches(opened, &ids)? {
                let text = format!("{patch} from a prompt of {}", count(ids.len(), "token"));
                all.push(Description::new(text), patch);
            }
            from_prompt = Some(ids);
        } else if let Some(patch) = options.patch.first() {
            let needed = spelling.option("from-prompt");
            bail!(
                "{} {}: needs {needed}, the text that the values come from",
                spelling.option("patch"),
                patch.place
            );
        }
        options.add_vectors(&mut all, spelling)?;
        if let Some(FeatureChanges { list, dictionary }) = options.feature_changes(opened, observer)? {
            for change in list {
                all.push(Description::new(format!("{change}, a feature of {dictionary}")), change);
            }
        }
        check_effective(&all.list)?;
        let means = options.mean_of.as_ref();
        let mut means = means.map(|texts| MeanTokens::read(opened, texts, observer)).transpose()?;
        if let Some(means) = means.as_mut().filter(|_| !options.mean_ablates()) {
            means.length = None; // a circuit takes one mean over all positions
        }
        // Last, so that edges carry what the others make of heads and MLPs.
        if let Some(choice) = &options.circuit {
            let others = checked(all.list.clone(), config, spelling)?;
            let mean_of = means.as_ref().map(|means| &means.texts[..]);
            let rest = RestOfCircuit { from_prompt: from_prompt.as_deref(), mean_of, others: &others };
            let circuit = choice.intervention(opened, &rest, observer)?;
            all.push(Description::new(circuit.to_string()), circuit);
        }
        let plain = checked(all.list, config, spelling)?;
        Ok(Self { options, opened, plain, descriptions: all.descriptions, from_prompt, means })
    }

    /// The model that they change.
    #[must_use]
    pub fn opened(&self) -> &'a Opened {
        self.opened
    }

    /// The options that they were built from.
    #[must_use]
    pub fn options(&self) -> &InterventionOptions {
        &self.options
    }

    /// The interventions of a run over some texts, as if they were the only ones.
    ///
    /// # Errors
    /// When one does not fit the texts.
    pub fn of(&self, reads: Reads) -> anyhow::Result<Applied> {
        let spelling = self.opened.spelling;
        self.options.check(reads, spelling)?;
        if let Some(ids) = &self.from_prompt {
            self.options.check_lengths(ids, reads, spelling)?;
        }
        let mut applied = match &self.means {
            None => self.applied(self.plain.clone(), None, None),
            Some(means) => {
                let by_position = means.by_position(reads);
                let list = means.fixed(&self.plain, self.opened, by_position)?.clone();
                let source = means.source(Some(by_position));
                self.applied(list, Some(&means.described(by_position)), Some(source))
            }
        };
        if matches!(reads, Reads::Growing(_) | Reads::Branches(_))
            && let Some(ids) = reads.only()
        {
            // The text grows or differs from run to run, but means are still taken over this one.
            let ids = self.opened.input_ids(ids)?;
            applied.list = applied.list.with_means_of(&self.opened.model, &ids)?;
        }
        Ok(applied)
    }

    fn applied(&self, list: Interventions, over: Option<&str>, mean_of: Option<MeanSource>) -> Applied {
        let texts = self.descriptions.iter().map(|one| one.under(over)).collect();
        Applied { list, texts, sources: Sources { from_prompt: self.from_prompt.clone(), mean_of } }
    }

    /// Whether runs over two texts of these numbers of tokens have the same interventions.
    #[must_use]
    pub fn treat_alike(&self, a: usize, b: usize) -> bool {
        let length = self.means.as_ref().and_then(|means| means.length);
        !self.options.take_own_means() && (length == Some(a)) == (length == Some(b))
    }

    /// The interventions that all runs share, for the output. Which positions a mean covers may differ from text to text.
    #[must_use]
    pub fn described(&self) -> Applied {
        match &self.means {
            None => self.applied(self.plain.clone(), None, None),
            Some(means) => {
                self.applied(self.plain.clone(), Some(&means.described_for_all()), Some(means.source(None)))
            }
        }
    }

    /// Hashes what comes from files, and the edges of a circuit.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn hash(&self, hasher: &mut impl Hasher, observer: &dyn Observer) -> anyhow::Result<()> {
        for one in self.plain.iter() {
            if let Intervention::Add { vector, .. } = one {
                vector.to_vec1::<f32>()?.iter().for_each(|number| number.to_bits().hash(hasher));
            }
        }
        self.options.hash_dictionary(self.opened, hasher, observer)?;
        match &self.options.circuit {
            Some(CircuitChoice::File(path)) => {
                std::fs::read(path).with_context(|| path.display().to_string())?.hash(hasher);
            }
            Some(CircuitChoice::Edges(edges)) => edges.hash(hasher),
            None => {}
        }
        self.means.as_ref().map(|means| &means.texts).hash(hasher);
        Ok(())
    }
}

/// Checks interventions against the model; an error names the option.
fn checked(all: Vec<Intervention>, config: &Config, spelling: Spelling) -> anyhow::Result<Interventions> {
    for one in &all {
        let name = || match spelling {
            Spelling::Flags => format!("--{one}"),
            Spelling::Keywords => one.to_string(),
        };
        Interventions::new(vec![one.clone()], config).with_context(name)?;
    }
    Ok(Interventions::new(all, config)?)
}
