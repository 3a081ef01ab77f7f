//! The options of `gpt2 features`.

use crate::output::terminal::TERMINAL;
use crate::study::args::StudyArgs;
use crate::study::over_texts::PromptsArgs;
use anyhow::Context;
use clap::{Arg, value_parser};
use gpt2_engine::studies::interpret::features::{HeadPair, Options, StoreOptions, Upload};
use gpt2_engine::texts::Content;
use gpt2_view::NeuronpediaId;
use std::path::{Path, PathBuf};
use std::str::FromStr;

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("aimed").arg("target"))]
#[command(group = clap::ArgGroup::new("written").args(["export", "pages"]))]
// It has no meaning here.
#[command(mut_arg("circuit", |arg| arg.hide(true)))]
// Without a change of features, too.
#[command(mut_arg("dictionary", |_| {
    let help = "A sparse autoencoder or transcoder of SAELens or gpt2 train-features: a folder, owner/name/FOLDER on the Hub, or demo: \
                that of the demo model, which is built in";
    Arg::new("dictionary").long("dictionary").value_name("DIR|NAME").required(true).help(help)
}))]
#[command(after_help = "\
A dictionary is a folder as SAELens writes it, with cfg.json and sae_weights.safetensors. Its settings say which value it reads.
Explained variance says how much of that value it rebuilds. Loss recovered says how much of what zeros there would cost the
prediction it keeps. With --target, the effect of a feature is how much of the token's logit would go with it, to first order.
With --attention, a pair is what a feature at the query and one at the key add to the score before softmax; all pairs add up to it.
With --store, it covers a whole corpus that gpt2 record wrote: the features that fire most often, or, for each of --feature, the K
places where it fires most, each with the text around it. With --texts, results come one after another, with --json as lines of
JSON, and --export holds LINE/NAME for each text.

Examples:
  gpt2 features \"O Romeo, Romeo\" --dictionary demo   # of the demo model
  gpt2 features \"O Romeo, Romeo\" --dictionary sae --feature 7,12   # where they fire, and what they say
  gpt2 features \"To be, or not to\" --dictionary sae --target \" be\" --against \" the\"
  gpt2 features \"To be, or not to\" --dictionary sae --attention 1.3/5:1   # why a head attends there
  gpt2 features --texts prompts.txt --dictionary sae --json   # many texts, one a line
  gpt2 record notes.txt --points blocks.1.hook_resid_pre --out activations
  gpt2 features --store activations --dictionary sae --feature 7,12   # where they fire most in a corpus
  gpt2 features --store activations --dictionary sae --pages features   # a page for each; open features/index.html
  gpt2 features --store activations --dictionary sae --neuronpedia upload --neuronpedia-id gpt2-small/2-mine   # for its API")]
pub(crate) struct FeaturesArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptsArgs,
    /// Instead of a prompt, read values that gpt2 record wrote: how often features fire, and where most
    #[arg(long, value_name = "DIR", conflicts_with_all = NOT_OVER_A_STORE)]
    pub(crate) store: Option<PathBuf>,
    /// How many features to show for each token or of a store, or how many effects, pairs, places or related features
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
    /// With --store: tell of every feature, or of each of --feature, how large its activations are, which features are like it, and
    /// which heads read it
    #[arg(long)]
    pub(crate) details: bool,
    /// With --store: write a folder with a page for each feature, or for each of --feature: all of --details, its places and its
    /// tokens; index.html searches them
    #[arg(long, value_name = "DIR", help_heading = "Files")]
    pub(crate) pages: Option<PathBuf>,
    /// With --store: write every feature that fires, or each of --feature, into a new folder, as requests that upload them to
    /// Neuronpedia (its form of August 2026; nobody has tried an upload)
    #[arg(long, value_name = "DIR", requires = "neuronpedia_id", help_heading = "Files")]
    pub(crate) neuronpedia: Option<PathBuf>,
    /// The model's and the source's name on Neuronpedia, as in gpt2-small/6-res-jb
    #[arg(long, value_name = "MODEL/SOURCE", requires = "neuronpedia", help_heading = "Files", value_parser = NeuronpediaId::from_str)]
    pub(crate) neuronpedia_id: Option<NeuronpediaId>,
    /// Read published explanations of features, JSON as Neuronpedia exports them, and show them: files with commas between
    #[arg(long, value_name = "FILE", value_delimiter = ',', help_heading = "Files")]
    pub(crate) explanations: Vec<PathBuf>,
    /// Write all activations as `features` (tokens, features), and what is read and rebuilt, to a .safetensors file
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(crate) export: Option<PathBuf>,
    /// Let --export or --pages replace existing files
    #[arg(long, requires = "written", help_heading = "Files")]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) study: StudyArgs,
}

/// The options about a run of the model, which `--store` refuses.
const NOT_OVER_A_STORE: [&str; 20] = [
    "prompt",
    "file",
    "ids",
    "texts",
    "field",
    "target",
    "against",
    "attention",
    "export",
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

impl FeaturesArgs {
    /// The name of the dictionary, which is refused before a model is fetched and read.
    pub(super) fn dictionary(&self) -> anyhow::Result<&str> {
        let source = self.study.interventions.dictionary.as_ref().context("features needs --dictionary")?;
        self.study.model.hub.options().find_dictionary(source, &TERMINAL)?;
        Ok(source)
    }

    /// The options of the study of a text.
    pub(super) fn options(&self, source: &str) -> Options {
        Options {
            dictionary: Some(source.to_owned()),
            top_k: self.top_k.into(),
            feature: self.feature.clone(),
            target: self.target.as_deref().map(Content::from),
            against: self.against.as_deref().map(Content::from),
            attention: self.attention,
            explanations: self.explanations.clone(),
            ..Options::default()
        }
    }

    fn upload(&self) -> Option<Upload> {
        let (folder, id) = self.neuronpedia.clone().zip(self.neuronpedia_id.clone())?;
        Some(Upload { folder, id })
    }

    /// The options of the study of a store.
    pub(super) fn store_options(&self, store: &Path, source: &str) -> StoreOptions {
        StoreOptions {
            store: store.to_path_buf(),
            dictionary: Some(source.to_owned()),
            top_k: self.top_k.into(),
            feature: self.feature.clone(),
            details: self.details,
            pages: self.pages.clone(),
            neuronpedia: self.upload(),
            explanations: self.explanations.clone(),
            overwrite: self.overwrite,
        }
    }
}
