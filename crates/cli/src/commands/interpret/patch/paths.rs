//! `--path`: what senders tell readers.

use super::report::PathPatch;
use crate::input::pairs::Mean;
use crate::output::progress::with_progress;
use anyhow::bail;
use gpt2_circuits::discovery::{Freeze, Pair, Paths, Reader, Study, Writer};
use gpt2_engine::Opened;
use gpt2_engine::words::name_of;
use gpt2_model::hooks::Hooks;
use std::str::FromStr;

pub(super) const FREEZES: &[(&str, Freeze)] =
    &[("all", Freeze::All), ("heads", Freeze::Heads), ("nothing", Freeze::Nothing)];

/// Senders and readers, as the user typed them.
#[derive(Debug, Clone)]
pub(crate) struct PathsText {
    senders: Vec<Writer>,
    receivers: Vec<Reader>,
    text: String,
}

impl FromStr for PathsText {
    type Err = String;

    /// `0.1,0.2->3.2.q,logits`
    fn from_str(text: &str) -> Result<Self, String> {
        let (senders, receivers) =
            text.split_once("->").ok_or("expected senders and readers, such as 0.3->1.2.k,1.0.k")?;
        Ok(Self {
            senders: senders.split(',').map(|one| one.trim().parse()).collect::<Result<_, _>>()?,
            receivers: receivers.split(',').map(|one| one.trim().parse()).collect::<Result<_, _>>()?,
            text: text.to_owned(),
        })
    }
}

/// The share of the mean difference between clean and corrupted prompts that the clean runs lose along each path.
pub(super) fn measure(
    paths: &[PathsText],
    freeze: Freeze,
    opened: &Opened,
    pairs: &[Pair],
    hooks: Option<&dyn Hooks>,
) -> anyhow::Result<Vec<PathPatch>> {
    if paths.is_empty() {
        return Ok(vec![]);
    }
    let mut study = Study::new(&opened.model, pairs)?;
    if let Some(hooks) = hooks {
        study = study.with_hooks(hooks)?;
    }
    let all = paths.iter().map(|PathsText { senders, receivers, .. }| Paths {
        senders: senders.clone(),
        receivers: receivers.clone(),
        freeze,
    });
    let all: Vec<Paths> = all.collect();
    let (clean, corrupt) = with_progress("runs", |progress| study.plain(progress))?;
    let difference = Mean::of(&clean).mean - Mean::of(&corrupt).mean;
    let found = with_progress("paths", |progress| study.path_patching(&all, progress))?;
    if !found.iter().flatten().all(|metric| metric.is_finite()) {
        bail!("--path: the logit difference of a path is not finite");
    }
    let freeze = name_of(FREEZES, &freeze);
    let lost = |(path, metrics): (&PathsText, Vec<f64>)| {
        let lost: Vec<f64> =
            clean.iter().zip(metrics).map(|(clean, patched)| (clean - patched) / difference).collect();
        PathPatch { path: path.text.clone(), freeze, lost: Mean::of(&lost) }
    };
    Ok(paths.iter().zip(found).map(lost).collect())
}
