//! [`ModelId`]: the name of a model on the Hub, or of a data set.

use std::fmt;

/// The names that GPT-2's own models are known by, and their ids.
const ALIASES: [(&str, &str, &str); 5] = [
    ("gpt2", "openai-community", "gpt2"),
    ("gpt2-medium", "openai-community", "gpt2-medium"),
    ("gpt2-large", "openai-community", "gpt2-large"),
    ("gpt2-xl", "openai-community", "gpt2-xl"),
    ("distilgpt2", "distilbert", "distilgpt2"),
];

/// The longest name that the Hub allows.
const LONGEST: usize = 96;

/// `owner/name`, checked against the Hub's rules, so that it can be part of a path and of an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelId {
    owner: String,
    name: String,
    is_dataset: bool,
}

impl ModelId {
    /// Reads `owner/name`, or one of the names of GPT-2's own models: `gpt2`, `gpt2-medium`, `gpt2-large`,
    /// `gpt2-xl`, `distilgpt2`; also `gpt2-small`, which is `gpt2`. `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        // As TransformerLens calls it.
        let short = if text == "gpt2-small" { "gpt2" } else { text };
        if let Some((_, owner, name)) = ALIASES.iter().find(|(alias, ..)| *alias == short) {
            return Some(Self { owner: (*owner).into(), name: (*name).into(), is_dataset: false });
        }
        let (owner, name) = text.split_once('/')?;
        (is_valid(owner) && is_valid(name) && text.len() <= LONGEST).then(|| Self {
            owner: owner.into(),
            name: name.into(),
            is_dataset: false,
        })
    }

    /// Reads `owner/name` as the name of a data set, which the Hub keeps beside the models. `None` for anything else.
    #[must_use]
    pub fn of_dataset(text: &str) -> Option<Self> {
        Some(Self { is_dataset: true, ..Self::parse(text).filter(|_| text.contains('/'))? })
    }

    /// Whether it is the name of a data set.
    #[must_use]
    pub fn is_dataset(&self) -> bool {
        self.is_dataset
    }

    /// `owner/name`, of a model or of a data set.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }

    /// Every name that stands for a model, and that model.
    pub fn aliases() -> impl Iterator<Item = (&'static str, Self)> {
        ALIASES.iter().map(|(alias, owner, name)| {
            (*alias, Self { owner: (*owner).into(), name: (*name).into(), is_dataset: false })
        })
    }

    /// The short name of this model, if it has one.
    #[must_use]
    pub fn alias(&self) -> Option<&'static str> {
        let is_it = |(_, owner, name): &&(&str, &str, &str)| *owner == self.owner && *name == self.name;
        ALIASES.iter().find(is_it).map(|a| a.0).filter(|_| !self.is_dataset)
    }

    /// The part before the slash.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The part after the slash.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}/{}", if self.is_dataset { "datasets/" } else { "" }, self.owner, self.name)
    }
}

/// Letters, digits, `-`, `_` and `.`; no `--` or `..`, and neither `-` nor `.` at either end.
fn is_valid(part: &str) -> bool {
    !part.is_empty()
        && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && !part.contains("--")
        && !part.contains("..")
        && !part.starts_with(['-', '.'])
        && !part.ends_with(['-', '.'])
}

#[cfg(test)]
mod tests {
    use super::ModelId;

    #[test]
    fn a_data_set_is_no_model_of_the_same_name() {
        let dataset = ModelId::of_dataset("openai-community/gpt2").unwrap();
        assert_eq!(dataset.to_string(), "datasets/openai-community/gpt2");
        assert_eq!((dataset.path().as_str(), dataset.alias()), ("openai-community/gpt2", None));
        assert_ne!(Some(dataset), ModelId::parse("gpt2"));
        assert_eq!(ModelId::of_dataset("gpt2"), None);
    }

    #[test]
    fn names_and_ids_are_read_and_paths_are_not() {
        for (text, id) in [
            ("gpt2", "openai-community/gpt2"),
            ("distilgpt2", "distilbert/distilgpt2"),
            ("microsoft/DialoGPT-small", "microsoft/DialoGPT-small"),
            ("a/b_c.d", "a/b_c.d"),
        ] {
            assert_eq!(ModelId::parse(text).map(|m| m.to_string()).as_deref(), Some(id), "{text}");
        }
        for text in ["", "gpt3", "a/", "/b", "a/b/c", "../b", "a/..", "a/b--c", "a b/c", "./b", "a/é", "~/b"]
        {
            assert_eq!(ModelId::parse(text), None, "{text}");
        }
        assert_eq!(ModelId::parse(&format!("a/{}", "b".repeat(95))), None);
    }
}
