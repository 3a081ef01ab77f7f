//! The options of a continuation.

use super::draft::DraftKind;
use crate::open::{CACHES, Opened};
use crate::spelling::Spelling;
use crate::texts::{Content, new_tokens};
use crate::words::{name_of, one_of};
use anyhow::bail;
use gpt2_model::beams::BeamSearch;
use gpt2_model::{CacheDType, Sampling};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The most beams: each has a cache of its own.
const MOST_BEAMS: usize = 1000;

/// The options of a continuation: by default, of text that is drawn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The text to continue, or its ids.
    pub prompt: Content,
    /// The most tokens to add; by default 100, or fewer if the context has less room.
    pub max_new_tokens: Option<usize>,
    /// Divides the logits: below 1 prefers probable tokens, 0 is greedy.
    pub temperature: f64,
    /// The number of the most probable tokens to draw from; 0 is all.
    pub top_k: usize,
    /// Draws from the fewest tokens whose probabilities sum to it.
    pub top_p: Option<f64>,
    /// Draws only from tokens at least so many times as probable as the most probable one.
    pub min_p: Option<f64>,
    /// Draws from the tokens that are about as surprising as expected, the fewest whose probabilities sum to it.
    pub typical_p: Option<f64>,
    /// Above 1 makes tokens that the text already has less probable.
    pub repetition_penalty: f64,
    /// Whether to take the most probable token always.
    pub greedy: bool,
    /// The number of beams of a search for the most probable text, in place of drawing one.
    pub beams: Option<usize>,
    /// A found text's score is its log-probability divided by `tokens ^ length_penalty`.
    pub length_penalty: f64,
    /// Whether the search stops once `beams` texts have ended.
    pub early_stopping: bool,
    /// The text ends before the first of these.
    pub stop: Vec<String>,
    /// The precision of the cached keys and values; by default that of the model.
    #[serde(with = "cache_dtype")]
    pub kv: Option<CacheDType>,
    /// Guesses the next tokens, which the model checks several at a time. The text stays the same.
    pub draft: Option<DraftKind>,
    /// The number of several prompts to continue in each pass.
    pub batch: usize,
    /// Whether the step for a token is recorded once as a CUDA graph and then launched again, which gives the same text.
    pub cuda_graph: bool,
}

impl Default for Options {
    fn default() -> Self {
        let BeamSearch { length_penalty, early_stopping, .. } = BeamSearch::default();
        Self {
            prompt: Content::default(),
            max_new_tokens: None,
            temperature: 1.0,
            top_k: 40,
            top_p: None,
            min_p: None,
            typical_p: None,
            repetition_penalty: 1.0,
            greedy: false,
            beams: None,
            length_penalty,
            early_stopping,
            stop: vec![],
            kv: None,
            draft: None,
            batch: 8,
            cuda_graph: false,
        }
    }
}

impl Options {
    /// The rules by which tokens are drawn.
    #[must_use]
    pub fn sampling(&self, seed: u64) -> Sampling {
        let base = if self.greedy {
            Sampling::greedy()
        } else {
            Sampling {
                temperature: self.temperature,
                top_k: (self.top_k > 0).then_some(self.top_k),
                top_p: self.top_p,
                min_p: self.min_p,
                typical_p: self.typical_p,
                ..Sampling::default()
            }
        };
        Sampling { repetition_penalty: self.repetition_penalty, seed, ..base }
    }

    /// The search, if beams are asked for.
    pub(super) fn search(&self) -> Option<BeamSearch> {
        let &Self { length_penalty, early_stopping, repetition_penalty, .. } = self;
        let num_beams = self.beams?;
        Some(BeamSearch { num_beams, length_penalty, early_stopping, repetition_penalty })
    }

    /// The most tokens to generate after a prompt of `prompt` tokens.
    pub(super) fn new_tokens(&self, opened: &Opened, prompt: usize) -> usize {
        new_tokens(self.max_new_tokens, opened.model.config(), prompt)
    }

    /// Refuses options that have no meaning beside hooks and interventions.
    ///
    /// # Errors
    /// When there is one.
    pub fn check_hooks(&self, spelling: Spelling) -> anyhow::Result<()> {
        if self.cuda_graph {
            bail!(
                "{}: a graph repeats each step as it is, and interventions and hooks read and change its values; leave out the graph, or all of these",
                spelling.option("cuda-graph")
            )
        }
        Ok(())
    }

    /// Refuses options that have no meaning beside others.
    ///
    /// # Errors
    /// When there is one.
    pub fn check(&self, spelling: Spelling) -> anyhow::Result<()> {
        if self.stop.iter().any(String::is_empty) {
            bail!("{}: an empty string would end every text before it begins", spelling.option("stop"));
        }
        if self.batch == 0 {
            bail!("{}: expected at least 1", spelling.given("batch", 0));
        }
        let draft = (self.draft.is_some() && self.cuda_graph).then_some(("draft", true));
        let graph = spelling.option("cuda-graph");
        refuse(draft, spelling, &format!("{graph} repeats a step of one token"))?;
        let is_drawn = self.drawn_by();
        match self.beams {
            Some(beams) if !(1..=MOST_BEAMS).contains(&beams) => {
                bail!("{}: expected 1 to {MOST_BEAMS}", spelling.given("beams", beams))
            }
            Some(_) => {
                let others = [
                    ("greedy", self.greedy),
                    ("stop", !self.stop.is_empty()),
                    ("draft", self.draft.is_some()),
                    ("kv", self.kv.is_some()),
                    ("cuda-graph", self.cuda_graph),
                ];
                let given = is_drawn.into_iter().chain(others).find(|(_, given)| *given);
                refuse(given, spelling, "beams search for the most probable text")
            }
            None => {
                let Self { length_penalty, early_stopping, .. } = Self::default();
                let of_beams = [
                    ("length-penalty", differs(self.length_penalty, length_penalty)),
                    ("early-stopping", self.early_stopping != early_stopping),
                ];
                let beams = spelling.option("beams");
                let given = of_beams.into_iter().find(|(_, given)| *given);
                refuse(given, spelling, &format!("there is no search without {beams}"))?;
                let given = is_drawn.into_iter().find(|(_, given)| *given && self.greedy);
                refuse(
                    given,
                    spelling,
                    &format!("{} takes the most probable token", spelling.option("greedy")),
                )
            }
        }
    }

    /// The options of drawing by name, and whether each differs from its default.
    fn drawn_by(&self) -> [(&'static str, bool); 5] {
        let default = Self::default();
        [
            ("temperature", differs(self.temperature, default.temperature)),
            ("top-k", self.top_k != default.top_k),
            ("top-p", self.top_p.is_some()),
            ("min-p", self.min_p.is_some()),
            ("typical-p", self.typical_p.is_some()),
        ]
    }
}

/// Whether a number is another than its default.
fn differs(number: f64, default: f64) -> bool {
    number.to_bits() != default.to_bits()
}

/// Refuses an option that is given; `why` says what leaves it without a meaning.
fn refuse(given: Option<(&str, bool)>, spelling: Spelling, why: &str) -> anyhow::Result<()> {
    match given {
        Some((option, _)) => bail!("{}: {why}; leave one of them out", spelling.option(option)),
        None => Ok(()),
    }
}

/// The dtype of a cache, by its name.
pub(in crate::studies) mod cache_dtype {
    use super::{CACHES, CacheDType, Deserialize, Deserializer, Serialize, Serializer, name_of, one_of};

    #[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref)] // the form that serde calls
    pub(in crate::studies) fn serialize<S: Serializer>(
        kv: &Option<CacheDType>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        kv.as_ref().map(|kv| name_of(CACHES, kv)).serialize(to)
    }

    pub(in crate::studies) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<CacheDType>, D::Error> {
        let name = Option::<String>::deserialize(from)?;
        let kv = name.map(|name| one_of("kv", &name, CACHES)).transpose();
        kv.map_err(serde::de::Error::custom)
    }
}
