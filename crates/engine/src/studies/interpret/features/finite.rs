//! Refuses a result with numbers that are not finite.

use super::dictionary::{DictionarySummary, Promoted};
use super::report::Report;
use crate::studies::study::Run;
use anyhow::bail;

/// A number of a result, and what it is.
pub(super) type NamedNumber = (&'static str, f64);

/// Refuses numbers that are not finite, unless the caller allows them.
pub(super) fn check(
    run: &Run,
    dictionary: &DictionarySummary,
    numbers: impl IntoIterator<Item = NamedNumber>,
) -> anyhow::Result<()> {
    let allow = run.allow_nonfinite;
    let Some((what, number)) = numbers.into_iter().find(|(_, number)| !allow && !number.is_finite()) else {
        return Ok(());
    };
    bail!(
        "{}: {what} is {number}: the dictionary's numbers, or the values at {} that it reads, are too large to compute with; are \
         they damaged, or of another model? {} shows the result anyway",
        dictionary.name,
        dictionary.hook,
        run.opened.spelling.switch("allow-nonfinite")
    )
}

/// The numbers of the result about a text.
pub(super) fn of_text(report: &Report) -> Vec<NamedNumber> {
    let quality = &report.quality;
    let mut all: Vec<NamedNumber> = vec![("L0", quality.l0)];
    for (what, number) in [
        ("the explained variance", quality.explained_variance),
        ("the loss", quality.loss),
        ("the loss with rebuilt values", quality.loss_rebuilt),
        ("the loss with zeros", quality.loss_zeroed),
        ("the recovered share of the loss", quality.loss_recovered),
    ] {
        all.extend(number.map(|number| (what, number)));
    }
    let activation = |of: f32| ("an activation", f64::from(of));
    all.extend(report.tokens.iter().flat_map(|place| &place.strongest).map(|one| activation(one.activation)));
    for detail in &report.details {
        all.extend(detail.fires.iter().map(|one| activation(one.activation)));
        all.extend(promoted(detail.promoted.as_ref()));
    }
    for one in report.effects.iter().flat_map(|effects| &effects.largest) {
        all.push(("an effect", one.effect));
    }
    if let Some(attention) = &report.attention {
        let pairs = attention.pairs.iter().map(|pair| ("a score", pair.score));
        all.extend([("a weight", attention.weight), ("a score", attention.score)].into_iter().chain(pairs));
    }
    all
}

/// The logits that a feature promotes.
pub(super) fn promoted(promoted: Option<&Promoted>) -> impl Iterator<Item = NamedNumber> {
    let lists = promoted.into_iter().flat_map(|lists| [&lists.likelier, &lists.less_likely]);
    lists.flatten().map(|(_, logit)| ("a promoted logit", *logit))
}
