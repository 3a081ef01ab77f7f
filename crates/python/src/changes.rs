//! Interventions as Python gives them.

use crate::array::Array;
use crate::error::Failed;
use anyhow::{Context, bail};
use candle_core::{DType, Tensor};
use gpt2_model::hooks::{Intervention, Interventions, Patch, Place, Recorder};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel, MeanOver};
use gpt2_session::{At, OnHeads, check_effective};
use pyo3::prelude::*;

/// Interventions as text, with what they need from other texts.
#[derive(Debug, Default, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Changes {
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

impl Changes {
    /// The interventions of a run over rows of `lengths` tokens, checked against the model.
    pub(crate) fn build(&self, model: &Gpt2LMHeadModel, lengths: &[usize]) -> Result<Interventions, Failed> {
        Ok(self.checked(model, lengths)?)
    }

    fn checked(&self, model: &Gpt2LMHeadModel, lengths: &[usize]) -> anyhow::Result<Interventions> {
        let config = model.config();
        let mut all = vec![];
        for (kind, text) in &self.heads {
            let of = OnHeads::parse(kind, text).with_context(|| format!("{kind}: {text:?}"))?;
            let each = of.each(config.n_head);
            Interventions::new(each.clone(), config).with_context(|| format!("{kind} {text}"))?;
            all.extend(each);
        }
        let shortest = lengths.iter().copied().min().unwrap_or(0);
        let check_position = |text: &str, position: usize| match shortest {
            0 => bail!(
                "{text}: names a position of a text, but this runs on several texts; leave the position out"
            ),
            t if position >= t => bail!("{text}: the text has positions 0 to {}", t - 1),
            _ => Ok(()),
        };
        for text in &self.block {
            let one: Intervention =
                format!("block {text}").parse().with_context(|| format!("block: {text:?}"))?;
            if let Intervention::KnockOut(_, pair) = &one {
                check_position(&one.to_string(), pair.query)?;
            }
            all.push(one);
        }
        all.extend(self.patches(model, shortest)?);
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
        let list = Interventions::new(all, config)?;
        match &self.mean_of {
            Some(texts) => means(list, model, texts, lengths),
            None => Ok(list),
        }
    }

    fn patches(&self, model: &Gpt2LMHeadModel, t: usize) -> anyhow::Result<Vec<Intervention>> {
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
            match at.position {
                None if ids.len() != t => bail!(
                    "patch {text}: from_prompt has {} tokens and the text {t}: make them equal, or patch single positions, as in \
                     {text}@0",
                    ids.len()
                ),
                Some(position) if position >= t.min(ids.len()) => bail!(
                    "patch {text}: the text has positions 0 to {} and from_prompt 0 to {}",
                    t.saturating_sub(1),
                    ids.len().saturating_sub(1)
                ),
                _ => Ok(at),
            }
        });
        let places = parsed.collect::<anyhow::Result<Vec<_>>>()?;
        let recorder = Recorder::new(places.iter().map(|at| at.place.point()));
        let args = ForwardArgs { hooks: Some(&recorder), ..Default::default() };
        let ids = Tensor::new(&ids[..], model.transformer.wte.device())?.unsqueeze(0)?;
        model.transformer.forward(&ids, args)?;
        let patch = |At { place, position }: At<Place>| -> anyhow::Result<Intervention> {
            Ok(Intervention::Patch(Patch { place, position, from: recorder.value(place.point())? }))
        };
        places.into_iter().map(patch).collect()
    }
}

/// Fixes the means of mean ablations: of each position if all texts are as long as every row, else of all positions.
fn means(
    list: Interventions,
    model: &Gpt2LMHeadModel,
    texts: &[Vec<u32>],
    lengths: &[usize],
) -> anyhow::Result<Interventions> {
    if texts.is_empty() {
        bail!("mean_of: holds no text");
    }
    let device = model.transformer.wte.device();
    let tensor = |ids: &Vec<u32>| Tensor::new(&ids[..], device)?.unsqueeze(0);
    let tensors = texts.iter().map(tensor).collect::<candle_core::Result<Vec<_>>>()?;
    let alike = lengths.iter().all(|&t| texts.iter().all(|ids| ids.len() == t));
    let over = if alike { MeanOver::EachPosition } else { MeanOver::AllPositions };
    Ok(list.with_means_over(model, &tensors, over)?)
}
