//! Interventions as Python gives them.

use crate::array::Array;
use crate::error::Failed;
use anyhow::{Context, bail};
use candle_core::DType;
use gpt2_engine::{At, OnHeads, check_effective};
use gpt2_model::hooks::{Intervention, Interventions, Patch, Place, Recorder};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel, MeanOver};
use pyo3::prelude::*;

/// Interventions as text, with what they need from other texts.
#[derive(Debug, Default, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct InterventionTexts {
    /// The kind of an intervention on heads, such as `scale`, and what follows it: `3.2=0.5`.
    heads: Vec<(String, String)>,
    /// `7:4`
    block: Vec<String>,
    /// `5.mlp@3`
    patch: Vec<String>,
    /// The ids of the other prompt.
    from_prompt: Option<Vec<u32>>,
    /// The ids of the texts over which means are taken.
    mean_of: Option<Vec<Vec<u32>>>,
    /// A layer, perhaps with a position, and a vector: `5@3`.
    add: Vec<(String, Py<Array>)>,
}

/// The text that a run reads, on which some interventions depend.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TextsRead<'a> {
    /// Whole texts, in one pass.
    Whole(&'a [Vec<u32>]),
    /// Texts that grow: means are taken over what is there first.
    Growing(&'a [Vec<u32>]),
    /// Many runs over a text and others of its length: means are taken over this one.
    Branches(&'a [u32]),
    /// Texts that the caller does not know.
    Others,
}

impl TextsRead<'_> {
    fn lengths(self) -> Vec<usize> {
        match self {
            Self::Whole(rows) | Self::Growing(rows) => rows.iter().map(Vec::len).collect(),
            Self::Branches(ids) => vec![ids.len()],
            Self::Others => vec![],
        }
    }
}

impl InterventionTexts {
    /// The interventions of a run, checked against the model.
    pub(crate) fn build(&self, model: &Gpt2LMHeadModel, reads: TextsRead) -> Result<Interventions, Failed> {
        Ok(self.checked(model, reads)?)
    }

    fn checked(&self, model: &Gpt2LMHeadModel, reads: TextsRead) -> anyhow::Result<Interventions> {
        let lengths = reads.lengths();
        let config = model.config();
        let mut all = vec![];
        for (kind, text) in &self.heads {
            let of = OnHeads::parse(kind, text).with_context(|| format!("{kind}: {text:?}"))?;
            let each = of.each(config.n_head);
            Interventions::new(each.clone(), config).with_context(|| format!("{kind} {text}"))?;
            all.extend(each);
        }
        // A row that is padded has its positions elsewhere than the others.
        let one_length = lengths.first().copied().filter(|t| lengths.iter().all(|other| other == t));
        let check_position = |text: &str, position: usize| match one_length {
            None if lengths.is_empty() => {
                bail!(
                    "{text}: names a position of a text, but this runs on texts of its own; leave the position out"
                )
            }
            None => bail!("{text}: names a position, but the texts differ in length; run them one by one"),
            Some(t) if position >= t => bail!("{text}: the text has positions 0 to {}", t - 1),
            Some(_) => Ok(()),
        };
        for text in &self.block {
            let one: Intervention =
                format!("block {text}").parse().with_context(|| format!("block: {text:?}"))?;
            if let Intervention::KnockOut(_, pair) = &one {
                check_position(&one.to_string(), pair.query)?;
            }
            all.push(one);
        }
        all.extend(self.patches(model, &check_position, one_length)?);
        for (text, vector) in &self.add {
            let at: At<usize> = text.parse().map_err(|_| {
                anyhow::anyhow!(
                    "add: {text:?}: expected a layer, or a layer and a position, such as 5 or 5@3"
                )
            })?;
            if let Some(position) = at.position {
                check_position(&format!("add {text}"), position)?;
            }
            let vector = vector.get().tensor().to_dtype(DType::F32)?;
            if !gpt2_model::finite::all_finite(&vector)? {
                bail!("add {text}: the vector holds NaN or infinity");
            }
            all.push(Intervention::Add { layer: at.place, position: at.position, vector });
        }
        check_effective(&all)?;
        for one in &all {
            Interventions::new([one.clone()], config).with_context(|| one.to_string())?;
        }
        let takes_means = all.iter().any(|one| matches!(one, Intervention::MeanAblate(_)));
        let list = Interventions::new(all, config)?;
        if let Some(texts) = &self.mean_of {
            return means(list, model, texts, reads);
        }
        let own = match reads {
            _ if !takes_means => None,
            TextsRead::Branches(ids) => Some(ids),
            TextsRead::Whole([_]) => None, // the pass itself takes them
            TextsRead::Growing([ids]) => Some(&ids[..]),
            _ => bail!(
                "mean_ablate: this runs on several texts; give the texts to take means over with mean_of"
            ),
        };
        match own {
            Some(ids) => {
                let ids = model.ids(ids)?;
                Ok(list.with_means_of(model, &ids)?)
            }
            None => Ok(list),
        }
    }

    fn patches(
        &self,
        model: &Gpt2LMHeadModel,
        check_position: &dyn Fn(&str, usize) -> anyhow::Result<()>,
        one_length: Option<usize>,
    ) -> anyhow::Result<Vec<Intervention>> {
        let Some(ids) = &self.from_prompt else {
            return match self.patch.first() {
                Some(text) => bail!("patch {text}: needs from_prompt, the text that the values come from"),
                None => Ok(vec![]),
            };
        };
        let parsed = self.patch.iter().map(|text| {
            let at: At<Place> = text.parse().map_err(|error| anyhow::anyhow!("patch: {text:?}: {error}"))?;
            let layers = model.config().n_layer;
            if at.place.layer() >= layers {
                bail!("patch {text}: the model has layers 0 to {}", layers - 1);
            }
            match (at.position, one_length) {
                (None, Some(t)) if ids.len() == t => {}
                (None, Some(t)) => bail!(
                    "patch {text}: from_prompt has {} tokens and the text {t}: make them equal, or patch single positions, as in \
                     {text}@0",
                    ids.len()
                ),
                (None, None) => bail!("patch {text}: the texts differ in length from one another; run them one by one"),
                (Some(position), _) => {
                    check_position(&format!("patch {text}"), position)?;
                    if position >= ids.len() {
                        bail!("patch {text}: from_prompt has positions 0 to {}", ids.len().saturating_sub(1));
                    }
                }
            }
            Ok(at)
        });
        let places = parsed.collect::<anyhow::Result<Vec<_>>>()?;
        let recorder = Recorder::new(places.iter().map(|at| at.place.point()));
        let args = ForwardArgs { hooks: Some(&recorder), ..Default::default() };
        let ids = model.ids(ids)?;
        model.transformer.forward(&ids, args)?;
        let patch = |At { place, position }: At<Place>| -> anyhow::Result<Intervention> {
            Ok(Intervention::Patch(Patch { place, position, from: recorder.value(place.point())? }))
        };
        places.into_iter().map(patch).collect()
    }
}

/// Fixes the means of mean ablations: of each position if all texts are as long as every row of a single pass, else of all positions.
fn means(
    list: Interventions,
    model: &Gpt2LMHeadModel,
    texts: &[Vec<u32>],
    reads: TextsRead,
) -> anyhow::Result<Interventions> {
    if texts.is_empty() {
        bail!("mean_of: holds no text");
    }
    let tensors = texts.iter().map(|ids| model.ids(ids)).collect::<candle_core::Result<Vec<_>>>()?;
    let alike = |&t: &usize| texts.iter().all(|ids| ids.len() == t);
    let over = match reads {
        TextsRead::Whole(_) | TextsRead::Branches(_) if reads.lengths().iter().all(alike) => {
            MeanOver::EachPosition
        }
        _ => MeanOver::AllPositions,
    };
    Ok(list.with_means_over(model, &tensors, over)?)
}
