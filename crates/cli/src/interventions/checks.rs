//! Refuses interventions that do not fit a command, or the text that it reads.

use super::args::InterventionArgs;
use anyhow::bail;
use gpt2_model::hooks::Intervention;

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

impl InterventionArgs {
    /// Refuses `--circuit` in a command that changes or shows the residual stream: within a circuit, no part reads that
    /// stream as a whole.
    pub(crate) fn no_circuit(&self, what: &str) -> anyhow::Result<()> {
        match self.circuit {
            Some(_) => bail!(
                "--circuit: is not for {what}; it works in forward, attention, heads, generate, score and record"
            ),
            None => Ok(()),
        }
    }

    /// Whether the interventions name positions of a text, or take means over it.
    pub(crate) fn need_whole_texts(&self) -> bool {
        let positions = self.from_prompt.is_some() || !self.block.is_empty();
        let steers = self.add.iter().any(|steer| steer.at.position.is_some());
        let features = self.features().any(|(at, _)| at.position.is_some());
        positions || steers || features || self.take_own_means()
    }

    /// Whether the interventions take means over the text that a run reads.
    pub(crate) fn take_own_means(&self) -> bool {
        !self.mean_ablate.is_empty() && self.mean_of.is_none()
    }

    /// Refuses what does not fit the text that a run reads.
    pub(super) fn check(&self, reads: Reads) -> anyhow::Result<()> {
        let t = match reads {
            Reads::Others(what) => return self.check_others(what),
            Reads::Growing(_) => return Ok(()),
            Reads::Whole(ids) => ids.len(),
        };
        let last = t.saturating_sub(1);
        for steer in &self.add {
            if steer.at.position.is_some_and(|position| position >= t) {
                bail!("--add {}: the prompt has positions 0 to {last}", steer.text);
            }
        }
        if let Some((at, _)) =
            self.features().find(|(at, _)| at.position.is_some_and(|position| position >= t))
        {
            let position = at.position.unwrap_or_default();
            bail!("feature {}@{position}: the prompt has positions 0 to {last}", at.place);
        }
        for block in &self.block {
            if let Intervention::KnockOut(_, pair) = block
                && pair.query >= t
            {
                bail!("--{block}: there is no position {}; the prompt has positions 0 to {last}", pair.query);
            }
        }
        Ok(())
    }

    /// Refuses what depends on a prompt, where there is none.
    fn check_others(&self, what: &str) -> anyhow::Result<()> {
        let given = first_given([("--patch", self.patch.len()), ("--block", self.block.len())]);
        if let Some(option) = given {
            bail!("{option}: names positions of a prompt, but this command runs on {what}; leave it out");
        }
        if self.from_prompt.is_some() {
            bail!("--from-prompt: this command runs on {what}; for --circuit, use --mean-of");
        }
        if self.take_own_means() {
            bail!(
                "--mean-ablate: this command runs on {what}; give the texts to take the mean over with --mean-of FILE"
            );
        }
        if let Some(steer) = self.add.iter().find(|steer| steer.at.position.is_some()) {
            bail!("--add {}: names a position, but this command runs on {what}; leave @POS out", steer.text);
        }
        match self.features().find_map(|(at, _)| Some((at.place, at.position?))) {
            Some((feature, position)) => bail!(
                "feature {feature}@{position}: names a position, but this command runs on {what}; leave @POS out"
            ),
            None => Ok(()),
        }
    }

    /// Refuses patches at all positions from a prompt of another length, and at a position that either lacks.
    pub(super) fn check_lengths(&self, other: &[u32], reads: Reads) -> anyhow::Result<()> {
        let (Reads::Whole(ids) | Reads::Growing(ids)) = reads else { return Ok(()) };
        let t = ids.len();
        let from = other.len();
        if self.circuit.is_some() && matches!(reads, Reads::Growing(_)) {
            bail!("--circuit: the text grows beyond --from-prompt; give --mean-of FILE in its place");
        }
        if t != from && (self.circuit.is_some() || self.patch.iter().any(|patch| patch.position.is_none())) {
            let or =
                if self.circuit.is_some() { "" } else { ", or patch single positions (--patch PLACE@POS)" };
            bail!("--from-prompt has {from} tokens and the prompt {t}: make them equal{or}");
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
}

/// The first of `options` that was given; each is a name and the number of its values.
pub(super) fn first_given<'a>(options: impl IntoIterator<Item = (&'a str, usize)>) -> Option<&'a str> {
    options.into_iter().find(|(_, given)| *given > 0).map(|(option, _)| option)
}
