//! `gpt2 features`: which features of a sparse autoencoder or transcoder fire in a text, and what they do.

mod over_store;
mod report;

use crate::changes::Changes;
use crate::dictionaries::{self, Found, Opened};
use crate::exports;
use crate::output::note;
use crate::outputs::Outputs;
use crate::prompt::{Prompt, single_token};
use crate::provenance::Provenance;
use crate::session::{Label, Session};
use crate::study::StudyArgs;
use crate::texts::{Job, PromptsArgs, Ran};
use anyhow::{Context, bail};
use candle_core::Tensor;
use clap::{Arg, value_parser};
use gpt2_circuits::Circuits;
use gpt2_circuits::features::{FeatureRun, Features, PartPair};
use gpt2_model::analysis::Metric;
use gpt2_model::dictionary::Fired;
use gpt2_model::hooks::{Head, Hooks, Intervention, KnockOut};
use report::{
    About, Active, Attention, Attributed, Detail, OfFeature, Pair, Place, Promoted, Quality, Report, Side,
    print,
};
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("aimed").arg("target"))]
// Without a change of features, too.
#[command(mut_arg("dictionary", |_| {
    let help = "A sparse autoencoder or transcoder of SAELens or gpt2 train-features: a folder, or owner/name/FOLDER on the Hub";
    Arg::new("dictionary").long("dictionary").value_name("DIR|NAME").required(true).help(help)
}))]
#[command(after_help = "\
A dictionary is a folder as SAELens writes it, with cfg.json and sae_weights.safetensors. Its settings say which value it reads.
Explained variance says how much of that value it rebuilds. Loss recovered says how much of what zeros there would cost the
prediction it keeps. With --target, the effect of a feature is how much of the token's logit would go with it, to first order.
With --attention, the pairs are what a feature at the query and one at the key add to the score before softmax; their sum is the score.
With --store, it is about all tokens of a corpus that gpt2 record wrote: the features that fire most often, or, for each of --feature,
the K places where it fires most, each with the text around it. With --texts, results come one after another, with --json as lines of JSON, and --export holds LINE/NAME for each text.

Examples:
  gpt2 features \"O Romeo, Romeo\" --dictionary sae
  gpt2 features \"O Romeo, Romeo\" --dictionary sae --feature 7,12   # where they fire, and what they say
  gpt2 features \"To be, or not to\" --dictionary sae --target \" be\" --against \" the\"
  gpt2 features \"To be, or not to\" --dictionary sae --attention 1.3/5:1   # why a head attends there
  gpt2 features --texts prompts.txt --dictionary sae --json   # many texts, one a line
  gpt2 record notes.txt --points blocks.1.hook_resid_pre --out activations
  gpt2 features --store activations --dictionary sae --feature 7,12   # where they fire most in a corpus")]
pub(crate) struct FeaturesArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptsArgs,
    /// Instead of a prompt, read values that gpt2 record wrote: how often features fire, and where most
    #[arg(long, value_name = "DIR", conflicts_with_all = NOT_OVER_A_STORE)]
    pub(crate) store: Option<PathBuf>,
    /// How many features to show for each token, or effects in all
    #[arg(short = 'k', long, default_value_t = 5, value_name = "K", value_parser = value_parser!(u16).range(1..))]
    pub(crate) top_k: u16,
    /// Show where these features fire, and which tokens they make likelier, instead of the strongest at each token
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(crate) feature: Vec<u32>,
    /// Show the features with the largest effects on this token's logit at the end, with its leading space
    #[arg(long, value_name = "TOKEN")]
    pub(crate) target: Option<String>,
    /// Measure the logit of --target minus that of this token
    #[arg(long, value_name = "TOKEN", requires = "aimed")]
    pub(crate) against: Option<String>,
    /// Split a head's score of position KEY for position QUERY by pairs of features: L.H/QUERY:KEY, as in 3.2/7:4, a head of the
    /// layer that reads the dictionary's stream
    #[arg(long, value_name = "L.H/QUERY:KEY", value_parser = HeadPair::from_str)]
    pub(crate) attention: Option<HeadPair>,
    /// Write all activations as `features` (tokens, features), and what is read and rebuilt, to a .safetensors file
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(crate) export: Option<PathBuf>,
    /// Let --export replace an existing file
    #[arg(long, requires = "export", help_heading = "Files")]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) study: StudyArgs,
}

/// A head and two positions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadPair {
    head: Head,
    query: usize,
    key: usize,
}

impl FromStr for HeadPair {
    type Err = String;

    /// As what `--block` takes, of one head.
    fn from_str(s: &str) -> Result<Self, String> {
        let parsed = format!("block {s}").parse::<Intervention>();
        match parsed {
            Ok(Intervention::KnockOut(Some(layer), KnockOut { head: Some(head), query, key })) => {
                Ok(Self { head: Head { layer, head }, query, key })
            }
            _ => Err("expected LAYER.HEAD/QUERY:KEY, such as 3.2/7:4".into()),
        }
    }
}

/// The options that are about a run of the model.
const NOT_OVER_A_STORE: [&str; 21] = [
    "prompt",
    "file",
    "ids",
    "texts",
    "field",
    "target",
    "against",
    "attention",
    "export",
    "overwrite",
    "ablate",
    "mean_ablate",
    "scale",
    "attention_temperature",
    "block",
    "patch",
    "circuit",
    "add",
    "ablate_feature",
    "scale_feature",
    "set_feature",
];

/// What all texts of a run share.
struct Run<'a> {
    args: &'a FeaturesArgs,
    session: &'a Session,
    about: About,
    features: Features,
    /// What to attribute to features, and the tokens that it is about.
    metric: Option<(Metric, Label, Option<Label>)>,
    /// The tokens of each of `--feature`.
    promoted: Vec<Option<Promoted>>,
}

pub(crate) fn run(args: &FeaturesArgs) -> anyhow::Result<()> {
    if let Some(store) = &args.store {
        return over_store::run(args, store);
    }
    let text = args.prompt.read()?;
    let mut outputs = Outputs::new(args.overwrite);
    if let Some(path) = &args.export {
        exports::add_to(&mut outputs, path)?;
    }
    let source = args.dictionary()?;
    let session = args.study.session_for(args.prompt.inputs(), &outputs)?;
    let (about, features) = opened(&session, source)?;
    let config = session.dictionary(source)?.found.checkpoint.config();
    if config.prepend_bos {
        note(
            "the dictionary was trained on texts that begin with the end-of-text token, and may explain the first tokens badly",
        );
    }
    let run = Run {
        args,
        session: &session,
        about,
        metric: metric(args, &session)?,
        promoted: promoted(args, &session, &features)?,
        features,
    };
    let (prompts, study, export) = (&args.prompt, &args.study, args.export.as_deref());
    let job = Job { prompts, study, session: &session, chosen: None, export, outputs };
    job.run(text, |prompt, changes| run.on(prompt, changes), print)
}

impl FeaturesArgs {
    /// The name of the dictionary, which is refused before a model is fetched and read.
    fn dictionary(&self) -> anyhow::Result<&str> {
        let source = self.study.interventions.dictionary.as_ref().context("features needs --dictionary")?;
        dictionaries::find(source, &self.study.model.hub)?;
        Ok(source)
    }
}

/// The dictionary, at its places in the model.
fn opened(session: &Session, source: &str) -> anyhow::Result<(About, Features)> {
    let Opened { found: Found { checkpoint, .. }, dictionary } = session.dictionary(source)?;
    let config = checkpoint.config();
    config.remarks.iter().for_each(|remark| note(remark));
    let features = Features::new(dictionary, config.hook, config.hook_out, session.model.config())
        .with_context(|| checkpoint.name().to_string())?;
    let about = About {
        name: checkpoint.name().to_string(),
        origin: checkpoint.origin().cloned(),
        architecture: config.architecture.to_string(),
        hook: config.hook.to_string(),
        hook_out: (config.hook_out != config.hook).then(|| config.hook_out.to_string()),
        features: dictionary.features(),
    };
    Ok((about, features))
}

/// What `--target` and `--against` ask for.
fn metric(args: &FeaturesArgs, session: &Session) -> anyhow::Result<Option<(Metric, Label, Option<Label>)>> {
    let Some(target) = &args.target else { return Ok(None) };
    let target = single_token(session, "--target", target)?;
    let against = args.against.as_deref().map(|text| single_token(session, "--against", text)).transpose()?;
    if against == Some(target) {
        bail!("--target and --against are the same token: their difference is always 0");
    }
    let metric = against.map_or(Metric::Logit(target), |against| Metric::difference(target, against));
    Ok(Some((metric, session.label(target), against.map(|against| session.label(against)))))
}

/// The tokens that each of `--feature` makes likelier and less likely; none where its direction is not in the stream.
fn promoted(
    args: &FeaturesArgs,
    session: &Session,
    features: &Features,
) -> anyhow::Result<Vec<Option<Promoted>>> {
    let count = features.dictionary().features();
    if let Some(feature) = args.feature.iter().find(|&&feature| feature as usize >= count) {
        bail!("--feature {feature}: the dictionary has features 0 to {}", count - 1);
    }
    if args.feature.is_empty() {
        return Ok(vec![]);
    }
    let circuits = Circuits::new(&session.model)?;
    let tokens = |direction: &Tensor| -> candle_core::Result<Vec<(Label, f64)>> {
        let found = circuits.tokens_of(direction, false, args.top_k.into())?;
        Ok(found.into_iter().map(|(id, logit)| (session.label(id), logit)).collect())
    };
    let of = |&feature: &u32| -> anyhow::Result<Option<Promoted>> {
        let Some(direction) = features.direction(&session.model, feature)? else { return Ok(None) };
        let negative = tokens(&direction.neg()?)?.into_iter().map(|(label, logit)| (label, -logit)).collect();
        Ok(Some(Promoted { likelier: tokens(&direction)?, less_likely: negative }))
    };
    args.feature.iter().map(of).collect()
}

impl Run<'_> {
    fn on(&self, prompt: &Prompt, changes: &Changes) -> anyhow::Result<Ran<Report>> {
        let ids = self.session.input_ids(&prompt.ids)?; // (1, T)
        let found = self.features.run(&self.session.model, &ids, Some(&changes.list))?;
        let check = [&found.target, &found.rebuilt];
        self.args.study.finite.check(self.session, &ids, Some(&changes.list), check)?;
        let labels: Vec<Label> = prompt.ids.iter().map(|&id| self.session.label(id)).collect();
        let tokens =
            labels.iter().enumerate().map(|(position, token)| self.place(&found, position, token)).collect();
        let report = Report {
            provenance: Provenance::new(self.session, &prompt.ids)?.under(changes),
            model: self.session.name.clone(),
            dictionary: self.about.clone(),
            quality: self.quality(&found, &prompt.ids, changes)?,
            details: self.details(&found, &labels),
            effects: self.effects(&ids, &labels, changes)?,
            attention: self.attention(&ids, &labels, changes)?,
            tokens,
        };
        let tensors = if self.args.export.is_some() {
            let FeatureRun { code, target, rebuilt, .. } = &found;
            let named =
                [("features", code.dense()?), ("target", target.clone()), ("rebuilt", rebuilt.clone())];
            named.map(|(name, tensor)| (name.to_owned(), tensor)).into()
        } else {
            vec![]
        };
        Ok(Ran::new(report, tensors))
    }

    /// The strongest features at a position.
    fn place(&self, found: &FeatureRun, position: usize, token: &Label) -> Place {
        let fired = found.code.row(position);
        let mut strongest: Vec<Fired> = fired.to_vec();
        strongest.sort_by(|a, b| b.value.abs().total_cmp(&a.value.abs()).then(a.feature.cmp(&b.feature)));
        strongest.truncate(self.args.top_k.into());
        let active = |one: Fired| Active { feature: one.feature, activation: one.value };
        Place {
            position,
            token: token.clone(),
            fired: fired.len(),
            strongest: strongest.into_iter().map(active).collect(),
        }
    }

    fn quality(&self, found: &FeatureRun, ids: &[u32], changes: &Changes) -> anyhow::Result<Quality> {
        let several = ids.len() > 1;
        let losses = several.then(|| self.features.losses(&self.session.model, ids, Some(&changes.list)));
        let losses = losses.transpose()?;
        Ok(Quality {
            l0: found.code.mean_fired(),
            explained_variance: if several { found.explained_variance()? } else { None },
            loss: losses.map(|losses| losses.clean),
            loss_rebuilt: losses.map(|losses| losses.rebuilt),
            loss_zeroed: losses.map(|losses| losses.zeroed),
            loss_recovered: losses.and_then(|losses| losses.recovered()),
        })
    }

    /// Where each of `--feature` fires.
    fn details(&self, found: &FeatureRun, labels: &[Label]) -> Vec<Detail> {
        let of = |(&feature, promoted): (&u32, &Option<Promoted>)| {
            let at = |(position, token): (usize, &Label)| {
                let activation = found.code.value(position, feature);
                (activation != 0.0).then(|| report::Fires { position, token: token.clone(), activation })
            };
            Detail {
                feature,
                promoted: promoted.clone(),
                fires: labels.iter().enumerate().filter_map(at).collect(),
            }
        };
        self.args.feature.iter().zip(&self.promoted).map(of).collect()
    }

    fn attention(
        &self,
        ids: &Tensor,
        labels: &[Label],
        changes: &Changes,
    ) -> anyhow::Result<Option<Attention>> {
        let Some(HeadPair { head, query, key }) = self.args.attention else { return Ok(None) };
        let (model, hooks) = (&self.session.model, Some(&changes.list as &dyn Hooks));
        let found = self.features.attention(model, ids, head, (query, key), hooks).context("--attention")?;
        let active = |one: Fired| Active { feature: one.feature, activation: one.value };
        let pair = |one: &PartPair| Pair {
            query: one.query.map(active),
            key: one.key.map(active),
            score: one.score,
        };
        let side = |position: usize| Side { position, token: labels[position].clone() };
        Ok(Some(Attention {
            head: head.to_string(),
            query: side(query),
            key: side(key),
            weight: found.weight,
            score: found.score,
            pairs: found.pairs.iter().take(self.args.top_k.into()).map(pair).collect(),
        }))
    }

    fn effects(
        &self,
        ids: &Tensor,
        labels: &[Label],
        changes: &Changes,
    ) -> anyhow::Result<Option<Attributed>> {
        let Some((metric, target, against)) = &self.metric else { return Ok(None) };
        let all = self.features.attribution(&self.session.model, ids, metric, Some(&changes.list))?;
        let total: f64 = all.iter().map(|one| one.effect).sum();
        if !total.is_finite() {
            bail!("the effects of features are not finite: the gradient of the logit overflows");
        }
        let effect = |one: &gpt2_circuits::features::Attribution| OfFeature {
            position: one.position,
            token: labels[one.position].clone(),
            feature: one.fired.feature,
            activation: one.fired.value,
            effect: one.effect,
        };
        let largest = all.iter().take(self.args.top_k.into()).map(effect).collect();
        Ok(Some(Attributed { target: target.clone(), against: against.clone(), total, largest }))
    }
}
