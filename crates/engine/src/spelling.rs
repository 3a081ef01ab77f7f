//! The spelling of options in messages: a command's flags or Python's keywords.

use std::fmt::Display;

/// The face whose user reads the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spelling {
    /// `--mean-of`
    #[default]
    Flags,
    /// `mean_of`
    Keywords,
}

impl Spelling {
    /// An option by its name in words, such as `mean-of`.
    #[must_use]
    pub fn option(self, name: &str) -> String {
        match self {
            Self::Flags => format!("--{name}"),
            Self::Keywords => name.replace('-', "_"),
        }
    }

    /// An option with its value: `--model gpt2`, or `model="gpt2"`.
    #[must_use]
    pub fn given(self, name: &str, value: impl Display) -> String {
        let option = self.option(name);
        match self {
            Self::Flags => format!("{option} {value}"),
            Self::Keywords => format!("{option}={:?}", value.to_string()),
        }
    }

    /// An option that is switched on: `--allow-nonfinite`, or `allow_nonfinite=True`.
    #[must_use]
    pub fn switch(self, name: &str) -> String {
        match self {
            Self::Flags => self.option(name),
            Self::Keywords => format!("{}=True", self.option(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Spelling::{Flags, Keywords};

    #[test]
    fn each_face_has_its_own_spelling() {
        assert_eq!(Flags.option("mean-of"), "--mean-of");
        assert_eq!(Keywords.option("mean-of"), "mean_of");
        assert_eq!(Flags.given("model", "gpt2"), "--model gpt2");
        assert_eq!(Keywords.given("model", "gpt2"), "model=\"gpt2\"");
        assert_eq!(Keywords.switch("allow-nonfinite"), "allow_nonfinite=True");
    }
}
