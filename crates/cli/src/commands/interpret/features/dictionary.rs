//! The dictionary at its hook points in the model, and the tokens that its features promote.

use super::args::FeaturesArgs;
use super::report::{DictionarySummary, Promoted};
use crate::output::note;
use crate::output::terminal::TERMINAL;
use anyhow::bail;
use candle_core::Tensor;
use gpt2_circuits::Circuits;
use gpt2_circuits::features::Features;
use gpt2_engine::{Label, Opened};

/// Opens the dictionary at its hook points in the model.
pub(super) fn open(opened: &Opened, source: &str) -> anyhow::Result<(DictionarySummary, Features)> {
    let found = opened.dictionary(source, &TERMINAL)?;
    let checkpoint = &found.found.checkpoint;
    let config = checkpoint.config();
    config.remarks.iter().for_each(|remark| note(remark));
    let features = found.features(opened.model.config())?;
    let about = DictionarySummary {
        name: checkpoint.name().to_string(),
        origin: checkpoint.origin().cloned(),
        architecture: config.architecture.to_string(),
        hook: config.hook.to_string(),
        hook_out: (config.hook_out != config.hook).then(|| config.hook_out.to_string()),
        features: found.dictionary.features(),
    };
    Ok((about, features))
}

/// The tokens that each of `--feature` makes likelier and less likely; none where its direction is not in the stream.
pub(super) fn promoted(
    args: &FeaturesArgs,
    opened: &Opened,
    features: &Features,
) -> anyhow::Result<Vec<Option<Promoted>>> {
    let count = features.dictionary().features();
    if let Some(feature) = args.feature.iter().find(|&&feature| feature as usize >= count) {
        bail!("--feature {feature}: the dictionary has features 0 to {}", count - 1);
    }
    if args.feature.is_empty() {
        return Ok(vec![]);
    }
    let circuits = Circuits::new(&opened.model)?;
    let tokens = |direction: &Tensor| -> candle_core::Result<Vec<(Label, f64)>> {
        let found = circuits.tokens_of(direction, false, args.top_k.into())?;
        Ok(found.into_iter().map(|(id, logit)| (opened.label(id), logit)).collect())
    };
    let of = |&feature: &u32| -> anyhow::Result<Option<Promoted>> {
        let Some(direction) = features.direction(&opened.model, feature)? else { return Ok(None) };
        let negative = tokens(&direction.neg()?)?.into_iter().map(|(label, logit)| (label, -logit)).collect();
        Ok(Some(Promoted { likelier: tokens(&direction)?, less_likely: negative }))
    };
    args.feature.iter().map(of).collect()
}
