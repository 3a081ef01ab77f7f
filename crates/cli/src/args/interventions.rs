//! Changes to heads and attention on the command line.

use gpt2_model::hooks::{Head, Intervention, Interventions, KnockOut};
use gpt2_model::{Config, Gpt2LMHeadModel};
use std::str::FromStr;

/// Options that change heads and attention while the model runs.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Interventions")]
pub(crate) struct InterventionArgs {
    /// Heads whose output is left out: LAYER.HEAD, counted from 0 (repeatable)
    #[arg(long, value_name = "L.H", value_delimiter = ',')]
    ablate: Vec<HeadArg>,
    /// Heads whose output becomes its mean over the prompt (repeatable)
    #[arg(long, value_name = "L.H", value_delimiter = ',')]
    mean_ablate: Vec<HeadArg>,
    /// Heads whose output is multiplied by a factor (repeatable)
    #[arg(long, value_name = "L.H=FACTOR", value_delimiter = ',')]
    scale: Vec<ScaleArg>,
    /// Positions QUERY that may not attend to KEY, counted from 0: in all layers, or in a layer or head alone, as
    /// in 3/7:4 and 3.2/7:4 (repeatable)
    #[arg(long, value_name = "[L[.H]/]QUERY:KEY", value_delimiter = ',')]
    block: Vec<BlockArg>,
}

impl InterventionArgs {
    /// The interventions, checked against the model; a mean is that of the prompt.
    pub(crate) fn build(&self, config: &Config) -> anyhow::Result<Interventions> {
        let zero = self.ablate.iter().map(|head| Intervention::ZeroAblate(head.0));
        let mean = self.mean_ablate.iter().map(|head| Intervention::MeanAblate(head.0));
        let scale = self.scale.iter().map(|scale| Intervention::Scale(scale.head.0, scale.factor));
        let block = self.block.iter().map(|block| Intervention::KnockOut(block.layer, block.pair));
        Ok(Interventions::new(zero.chain(mean).chain(scale).chain(block), config)?)
    }

    /// [`build`](Self::build) for a text that grows from the prompt `ids`: their means are kept.
    pub(crate) fn for_text_from(
        &self,
        model: &Gpt2LMHeadModel,
        ids: &[u32],
    ) -> anyhow::Result<Interventions> {
        let ids = candle_core::Tensor::new(ids, model.transformer.wte.device())?.unsqueeze(0)?; // (1, T)
        Ok(self.build(model.config())?.with_means_of(model, &ids)?)
    }
}

fn index(s: &str) -> Option<usize> {
    s.trim().parse().ok()
}

/// `5.1`
#[derive(Debug, Clone, Copy)]
struct HeadArg(Head);

impl FromStr for HeadArg {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let parts = s.split_once('.').and_then(|(layer, head)| Some((index(layer)?, index(head)?)));
        let (layer, head) = parts.ok_or("expected LAYER.HEAD, such as 5.1")?;
        Ok(Self(Head { layer, head }))
    }
}

/// `3.2=0.5`
#[derive(Debug, Clone, Copy)]
struct ScaleArg {
    head: HeadArg,
    factor: f64,
}

impl FromStr for ScaleArg {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let expected = || "expected LAYER.HEAD=FACTOR, such as 3.2=0.5".to_owned();
        let (head, factor) = s.split_once('=').ok_or_else(expected)?;
        let factor = factor.trim().parse().ok().filter(|x: &f64| x.is_finite()).ok_or_else(expected)?;
        Ok(Self { head: head.parse().map_err(|_| expected())?, factor })
    }
}

/// `7:4`, `3/7:4` or `3.2/7:4`
#[derive(Debug, Clone, Copy)]
struct BlockArg {
    layer: Option<usize>,
    pair: KnockOut,
}

impl FromStr for BlockArg {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let parse = || {
            let (place, pair) = match s.split_once('/') {
                Some((place, pair)) => (Some(place), pair),
                None => (None, s),
            };
            let (layer, head) = match place.map(|place| (place, place.parse::<HeadArg>())) {
                None => (None, None),
                Some((_, Ok(HeadArg(Head { layer, head })))) => (Some(layer), Some(head)),
                Some((layer, Err(_))) => (Some(index(layer)?), None),
            };
            let (query, key) = pair.split_once(':')?;
            Some(Self { layer, pair: KnockOut { head, query: index(query)?, key: index(key)? } })
        };
        parse().ok_or_else(|| {
            "expected QUERY:KEY, such as 7:4, 3/7:4 in layer 3 or 3.2/7:4 in its head 2".into()
        })
    }
}
