//! Numbers, names and choices in words.

/// A choice by its name, for options that take one of a few.
pub type Choices<T> = [(&'static str, T)];

/// The name of a choice.
#[must_use]
pub fn name_of<T: PartialEq>(choices: &Choices<T>, choice: &T) -> &'static str {
    choices.iter().find(|(_, other)| other == choice).map_or("", |(name, _)| name)
}

/// The choice of this name; `what` names the option in the error.
///
/// # Errors
/// When there is no such choice: it lists the names.
pub fn one_of<T: Copy>(what: &str, name: &str, choices: &Choices<T>) -> anyhow::Result<T> {
    choices.iter().find(|(known, _)| *known == name).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        anyhow::anyhow!("{what} {name:?}: expected one of {}", names.join(", "))
    })
}

/// `1 token`, `2 tokens`
#[must_use]
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A number with three decimals; a large one in a few characters.
#[must_use]
pub fn short(number: f64) -> String {
    if number.abs() < 1e6 { format!("{number:.3}") } else { format!("{number:.3e}") }
}
