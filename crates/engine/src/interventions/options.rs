//! Interventions as data: parsed, but not yet held against a model.

use super::on_heads::OnHeads;
use crate::names::NamedDictionary;
use crate::open::OpenedDictionary;
use crate::texts::Content;
use candle_core::Tensor;
use gpt2_circuits::discovery::Edge;
use gpt2_loader::DictionaryCheckpoint;
use gpt2_model::hooks::{Activity, Intervention, Place};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// The names of all options of interventions, for studies in which none has a meaning.
pub const ALL_INTERVENTIONS: &[&str] = &[
    "dictionary",
    "ablate",
    "mean-ablate",
    "mean-of",
    "scale",
    "attention-temperature",
    "block",
    "patch",
    "from-prompt",
    "add",
    "circuit",
    "ablate-feature",
    "scale-feature",
    "set-feature",
];

/// These options without `dictionary`, for studies that read one and run no model.
pub const ALL_BUT_DICTIONARY: &[&str] = match ALL_INTERVENTIONS {
    [_dictionary, others @ ..] => others,
    [] => &[],
};

/// Interventions as a user asks for them. They are applied in the order of these fields.
#[derive(Debug, Clone, Default)]
pub struct InterventionOptions {
    /// Changes of heads: ablations, means, factors, temperatures.
    pub heads: Vec<OnHeads>,
    /// Pairs of positions between which attention is knocked out.
    pub block: Vec<Intervention>,
    /// The parts that get their values of a run over `from_prompt`.
    pub patch: Vec<At<Place>>,
    /// The other prompt, for `patch` and `circuit`.
    pub from_prompt: Option<Content>,
    /// The texts over which mean ablations and `circuit` take their means.
    pub mean_of: Option<MeanTexts>,
    /// Vectors to add to the residual stream.
    pub add: Vec<Steer>,
    /// The circuit whose edges alone are run.
    pub circuit: Option<CircuitChoice>,
    /// The dictionary whose features are changed.
    pub dictionary: Option<DictionaryChoice>,
    /// The features to change, and what becomes of them.
    pub features: Vec<FeatureOption>,
}

/// Texts over which means are taken.
#[derive(Debug, Clone)]
pub enum MeanTexts {
    /// A file with a text on each line.
    File(PathBuf),
    /// The texts themselves.
    These(Vec<Content>),
}

/// A vector to add to the residual stream before a block, at one position or at all.
#[derive(Debug, Clone)]
pub struct Steer {
    /// The layer and perhaps a position.
    pub at: At<usize>,
    /// The vector's numbers.
    pub vector: VectorSource,
    /// The value as the user wrote it, such as `5@3=v.npy*2`.
    pub text: String,
}

/// The source of a vector.
#[derive(Debug, Clone)]
pub enum VectorSource {
    /// A NumPy file, times a factor.
    File {
        /// The file.
        path: PathBuf,
        /// The factor.
        scale: f64,
    },
    /// (C), of floats.
    Numbers(Tensor),
}

/// A circuit: edges that `discover` found.
#[derive(Debug, Clone)]
pub enum CircuitChoice {
    /// A file that `discover` wrote.
    File(PathBuf),
    /// The edges themselves.
    Edges(Vec<Edge>),
}

/// A dictionary of features.
#[derive(Debug, Clone)]
pub enum DictionaryChoice {
    /// A folder, or `owner/name/FOLDER` on the Hub.
    Named(String),
    /// One that is in memory.
    Opened(Arc<OpenedDictionary>),
}

impl DictionaryChoice {
    /// The files in its folder, whether they are there or not; none of one that is built in, or on the Hub.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        match self {
            Self::Named(source) => match NamedDictionary::find(source) {
                Ok(NamedDictionary::Folder(folder)) => DictionaryCheckpoint::paths_in(&folder).into(),
                _ => vec![],
            },
            Self::Opened(dictionary) => dictionary.found.paths().collect(),
        }
    }
}

/// A feature, at one position or at all, and the activation that it gets.
#[derive(Debug, Clone, Copy)]
pub struct FeatureOption {
    /// The feature, counted from 0, and perhaps a position.
    pub at: At<u32>,
    /// The activation that it gets.
    pub to: Activity,
}

/// A place, at one position or at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At<P> {
    /// The place.
    pub place: P,
    /// The position, if it is one.
    pub position: Option<usize>,
}

impl<P: FromStr<Err: ToString>> FromStr for At<P> {
    type Err = String;

    /// `PLACE` or `PLACE@POS`
    fn from_str(s: &str) -> Result<Self, String> {
        let (place, position) = match s.split_once('@') {
            Some((place, position)) => {
                let position =
                    position.trim().parse().map_err(|_| format!("`{position}` is not a position"))?;
                (place, Some(position))
            }
            None => (s, None),
        };
        Ok(Self { place: place.trim().parse().map_err(|e: P::Err| e.to_string())?, position })
    }
}

impl FromStr for Steer {
    type Err = String;

    /// `5=v.npy`, `5@3=v.npy*-2.5`
    fn from_str(s: &str) -> Result<Self, String> {
        let expected =
            || "expected L=FILE.npy, L@POS=FILE.npy or either with *SCALE, such as 5=v.npy*4".to_owned();
        let (place, rest) = s.split_once('=').ok_or_else(expected)?;
        let (file, scale) = match rest.rsplit_once('*') {
            Some((file, scale)) => (file, scale.trim().parse().ok().filter(|x: &f64| x.is_finite())),
            None => (rest, Some(1.0)),
        };
        let scale = scale.ok_or_else(expected)?;
        let at = place.parse::<At<usize>>().map_err(|_| expected())?;
        if file.is_empty() {
            return Err(expected());
        }
        Ok(Self { at, vector: VectorSource::File { path: file.into(), scale }, text: s.to_owned() })
    }
}

impl InterventionOptions {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let lists = [
            self.heads.len(),
            self.block.len(),
            self.patch.len(),
            self.add.len(),
            self.features.len(),
            usize::from(self.circuit.is_some()),
        ];
        lists.iter().all(|given| *given == 0)
    }

    /// The options that were given, by their names.
    #[must_use]
    pub fn given(&self) -> Vec<&'static str> {
        let mut given: Vec<&'static str> = self.heads.iter().map(OnHeads::option).collect();
        let others = [
            ("block", !self.block.is_empty()),
            ("patch", !self.patch.is_empty()),
            ("from-prompt", self.from_prompt.is_some()),
            ("mean-of", self.mean_of.is_some()),
            ("add", !self.add.is_empty()),
            ("circuit", self.circuit.is_some()),
            ("dictionary", self.dictionary.is_some()),
        ];
        given.extend(others.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name));
        let features = self.features.iter().map(|feature| match feature.to {
            Activity::Times(0.0) => "ablate-feature",
            Activity::Times(_) => "scale-feature",
            Activity::Set(_) => "set-feature",
        });
        given.extend(features);
        given
    }

    /// The files that they read, each with the name of its option.
    #[must_use]
    pub fn files(&self) -> Vec<(&'static str, PathBuf)> {
        let mut files = vec![];
        for steer in &self.add {
            if let VectorSource::File { path, .. } = &steer.vector {
                files.push(("add", path.clone()));
            }
        }
        if let Some(MeanTexts::File(path)) = &self.mean_of {
            files.push(("mean-of", path.clone()));
        }
        if let Some(CircuitChoice::File(path)) = &self.circuit {
            files.push(("circuit", path.clone()));
        }
        let dictionary = self.dictionary.iter().flat_map(DictionaryChoice::paths);
        files.extend(dictionary.map(|path| ("dictionary", path)));
        files
    }

    /// Whether they name positions of a text, or take means over it.
    #[must_use]
    pub fn need_whole_texts(&self) -> bool {
        let positions = self.from_prompt.is_some() || !self.block.is_empty();
        let steers = self.add.iter().any(|steer| steer.at.position.is_some());
        let features = self.features.iter().any(|feature| feature.at.position.is_some());
        positions || steers || features || self.take_own_means()
    }

    /// Whether they take means over the text that a run reads.
    #[must_use]
    pub fn take_own_means(&self) -> bool {
        self.mean_ablates() && self.mean_of.is_none()
    }

    /// Whether a head becomes its mean.
    pub(super) fn mean_ablates(&self) -> bool {
        self.heads.iter().any(|heads| heads.option() == "mean-ablate")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpt2_model::hooks::Head;

    #[test]
    fn a_study_of_stored_values_refuses_all_but_the_dictionary() {
        let taken: Vec<_> =
            ALL_INTERVENTIONS.iter().filter(|name| !ALL_BUT_DICTIONARY.contains(name)).collect();
        assert_eq!(taken, [&"dictionary"]);
    }

    #[test]
    fn a_vector_has_a_layer_a_file_and_perhaps_a_position_and_a_scale() {
        let parsed = |s: &str| {
            let Steer { at, vector, .. } = s.parse::<Steer>()?;
            match vector {
                VectorSource::File { path, scale } => Ok((at, path, scale)),
                VectorSource::Numbers(_) => Err("numbers".to_owned()),
            }
        };
        let at = |place, position| At { place, position };
        assert_eq!(parsed("5=v.npy"), Ok((at(5, None), "v.npy".into(), 1.0)));
        assert_eq!(parsed("5@3=a=b.npy*-2.5"), Ok((at(5, Some(3)), "a=b.npy".into(), -2.5)));
        assert_eq!(parsed("0=a*b.npy*2"), Ok((at(0, None), "a*b.npy".into(), 2.0)));
        for wrong in ["", "5", "5=", "x=v.npy", "5@=v.npy", "5=v.npy*", "5=v.npy*nan", "-1=v.npy"] {
            assert!(parsed(wrong).is_err_and(|e| e.contains("5=v.npy*4")), "{wrong:?}");
        }
    }

    #[test]
    fn a_patch_has_a_place_and_perhaps_a_position() {
        let parsed = |s: &str| s.parse::<At<Place>>();
        assert_eq!(parsed("2@7"), Ok(At { place: Place::Stream(2), position: Some(7) }));
        assert_eq!(parsed("2.1"), Ok(At { place: Place::Head(Head { layer: 2, head: 1 }), position: None }));
        assert!(parsed("2.1@x").is_err_and(|e| e.contains("not a position")));
        assert!(parsed("2.x@1").is_err_and(|e| e.contains("5.mlp")));
    }
}
