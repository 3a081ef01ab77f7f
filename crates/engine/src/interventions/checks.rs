//! Refuses interventions that do not fit the text that a run reads.

use super::options::{At, InterventionOptions};
use crate::spelling::Spelling;
use anyhow::bail;
use gpt2_model::hooks::{Intervention, Patch};

/// The texts that a run reads, on which some interventions depend.
#[derive(Debug, Clone, Copy)]
pub enum Reads<'a> {
    /// Texts of these tokens, in one pass.
    Whole(&'a [&'a [u32]]),
    /// Texts of these tokens, then more through a cache: means are fixed beforehand.
    Growing(&'a [&'a [u32]]),
    /// A text and others of its length, in many runs: means are taken over this one.
    Branches(&'a [u32]),
    /// Texts that are not known beforehand, of which the string says what they are.
    Others(&'static str),
}

impl<'a> Reads<'a> {
    /// The text whose own mean a mean ablation takes.
    pub(super) fn only(self) -> Option<&'a [u32]> {
        match self {
            Self::Whole([ids]) | Self::Growing([ids]) => Some(ids),
            Self::Branches(ids) => Some(ids),
            _ => None,
        }
    }

    /// The common number of tokens of the texts.
    pub(super) fn length(self) -> Option<usize> {
        match self {
            Self::Whole([first, rest @ ..]) | Self::Growing([first, rest @ ..]) => {
                Some(first.len()).filter(|t| rest.iter().all(|ids| ids.len() == *t))
            }
            Self::Branches(ids) => Some(ids.len()),
            _ => None,
        }
    }
}

impl InterventionOptions {
    /// Refuses what does not fit the texts that a run reads, before anything is read for it.
    ///
    /// # Errors
    /// When an intervention names a position that the texts lack, or means that it does not say where to take.
    pub fn check(&self, reads: Reads, spelling: Spelling) -> anyhow::Result<()> {
        if let Reads::Others(what) = reads {
            return self.check_others(what, spelling);
        }
        if self.take_own_means() && reads.only().is_none() {
            bail!(
                "{}: there are several texts; give the texts to take the mean over with {}",
                spelling.option("mean-ablate"),
                spelling.option("mean-of")
            );
        }
        for named in self.positions(spelling) {
            let Some(t) = reads.length() else {
                bail!(
                    "{}: names a position, but the texts differ in length; run them one by one",
                    named.option
                );
            };
            // A text that grows may reach it.
            let grows = matches!(reads, Reads::Growing(_));
            if !grows && named.position >= t {
                bail!(
                    "{}: there is no position {}; the prompt has positions 0 to {}",
                    named.option,
                    named.position,
                    t.saturating_sub(1)
                );
            }
        }
        Ok(())
    }

    /// The positions that vectors, features and knocked-out attention name, each with its option.
    fn positions(&self, spelling: Spelling) -> Vec<NamedPosition> {
        let named =
            |option: String, position: Option<usize>| Some(NamedPosition { option, position: position? });
        let add = spelling.option("add");
        let steers = self.add.iter().map(|steer| named(format!("{add} {}", steer.text), steer.at.position));
        let features = self.features.iter().map(|feature| {
            let At { place, position } = feature.at;
            named(format!("feature {place}@{}", position.unwrap_or_default()), position)
        });
        let blocks = self.block.iter().map(|block| match block {
            Intervention::KnockOut(_, pair) => {
                named(block.to_string().replacen("block", &spelling.option("block"), 1), Some(pair.query))
            }
            _ => None,
        });
        steers.chain(features).chain(blocks).flatten().collect()
    }

    /// Refuses what depends on a prompt, where there is none.
    fn check_others(&self, what: &str, spelling: Spelling) -> anyhow::Result<()> {
        let option = |name| spelling.option(name);
        for (name, given) in [("patch", self.patch.len()), ("block", self.block.len())] {
            if given > 0 {
                bail!(
                    "{}: names positions of a prompt, but this runs on {what}; leave it out, or leave the position out",
                    option(name)
                );
            }
        }
        if self.from_prompt.is_some() {
            bail!(
                "{}: this runs on {what}; for {}, use {}",
                option("from-prompt"),
                option("circuit"),
                option("mean-of")
            );
        }
        if self.take_own_means() {
            bail!(
                "{}: this runs on {what}; give the texts to take the mean over with {}",
                option("mean-ablate"),
                option("mean-of")
            );
        }
        match self.positions(spelling).first() {
            Some(named) => {
                bail!("{}: names a position, but this runs on {what}; leave the position out", named.option)
            }
            None => Ok(()),
        }
    }

    /// Refuses patches at all positions from a prompt of another length, and at a position that either lacks.
    pub(super) fn check_lengths(
        &self,
        other: &[u32],
        reads: Reads,
        spelling: Spelling,
    ) -> anyhow::Result<()> {
        if matches!(reads, Reads::Others(_)) {
            return Ok(());
        }
        let option = |name| spelling.option(name);
        if self.circuit.is_some() && matches!(reads, Reads::Growing(_)) {
            bail!(
                "{}: the text grows beyond {}; give {} in its place",
                option("circuit"),
                option("from-prompt"),
                option("mean-of")
            );
        }
        let from = other.len();
        let Some(t) = reads.length() else {
            bail!(
                "{}: the texts differ in length from one another; run them one by one",
                option("from-prompt")
            );
        };
        if t != from && (self.circuit.is_some() || self.patch.iter().any(|patch| patch.position.is_none())) {
            let or = match &self.circuit {
                Some(_) => String::new(),
                None => format!(", or patch single positions ({} PLACE@POS)", option("patch")),
            };
            bail!("{} has {from} tokens and the prompt {t}: make them equal{or}", option("from-prompt"));
        }
        let mut positions = self.patch.iter().filter_map(|patch| patch.position);
        if let Some(position) = positions.find(|&p| p >= t.min(from)) {
            bail!(
                "{} at position {position}: the prompt has positions 0 to {} and {} 0 to {}",
                option("patch"),
                t - 1,
                option("from-prompt"),
                from - 1
            );
        }
        Ok(())
    }
}

/// A position that an option names.
struct NamedPosition {
    /// The option with its value, for errors.
    option: String,
    position: usize,
}

/// Refuses changes of a head's output that another one undoes: an ablation, or a patch of all positions, leaves nothing of them.
pub(super) fn check_effective(all: &[Intervention]) -> anyhow::Result<()> {
    let is_patch = |one: &Intervention| matches!(one, Intervention::Patch(Patch { position: None, .. }));
    for last in all.iter().filter(|one| is_patch(one) || matches!(one, Intervention::ZeroAblate(_))) {
        let undone = all.iter().find(|one| match one {
            Intervention::MeanAblate(_) | Intervention::Scale(..) | Intervention::Temperature(..) => true,
            Intervention::ZeroAblate(_) => is_patch(last),
            _ => false,
        } && one.head() == last.head());
        if let Some(undone) = undone {
            bail!(
                "`{undone}` changes nothing beside `{last}`, which replaces the head's whole output: leave one of them out"
            );
        }
    }
    Ok(())
}

/// Error for a comparison without an intervention.
pub(crate) fn nothing_to_compare(spelling: Spelling) -> anyhow::Error {
    anyhow::anyhow!(
        "{}: there is nothing to compare the plain run with; add an intervention, such as {}",
        spelling.switch("compare"),
        spelling.given("ablate", "0.3")
    )
}
