//! The options that change heads, attention and the residual stream while the model runs.

use anyhow::{anyhow, bail};
use gpt2_engine::ReadFiles;
use gpt2_engine::interventions::{
    At, CircuitChoice, DictionaryChoice, FeatureOption, InterventionOptions, MeanTexts, OnHeads, Steer,
};
use gpt2_engine::studies::takers;
use gpt2_engine::texts::Content;
use gpt2_model::hooks::{Activity, Intervention, ParseError, Place};
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Interventions")]
#[command(group = clap::ArgGroup::new("other_run").args(["patch", "circuit"]).multiple(true))]
#[command(group = clap::ArgGroup::new("takes_means").args(["mean_ablate", "circuit"]).multiple(true))]
#[command(group = clap::ArgGroup::new("changed_features").args(["ablate_feature", "scale_feature", "set_feature"]).multiple(true))]
pub(crate) struct InterventionArgs {
    /// Set the outputs of heads to 0: LAYER.HEAD, counted from 0, as in 0.3; '0.*' is the whole layer. All
    /// interventions are repeatable
    #[arg(long, value_name = "L.H", value_delimiter = ',', value_parser = on_heads("ablate"))]
    pub(crate) ablate: Vec<OnHeads>,
    /// Set the outputs of heads to their mean over the prompt, or over the texts of --mean-of
    #[arg(long, value_name = "L.H", value_delimiter = ',', value_parser = on_heads("mean-ablate"))]
    pub(crate) mean_ablate: Vec<OnHeads>,
    /// Take the means of --mean-ablate and --circuit over these texts, one a line. If all are as long as the prompt, each
    /// position of --mean-ablate has a mean of its own (Wang et al.)
    #[arg(long, value_name = "FILE", requires = "takes_means")]
    pub(crate) mean_of: Option<PathBuf>,
    /// Multiply the outputs of heads by a factor
    #[arg(long, value_name = "L.H=FACTOR", value_delimiter = ',', value_parser = on_heads("scale"))]
    pub(crate) scale: Vec<OnHeads>,
    /// Divide the scores of heads by a temperature before softmax. Below 1 sharpens attention
    #[arg(long, value_name = "L.H=T", value_delimiter = ',', value_parser = on_heads("attention-temperature"))]
    pub(crate) attention_temperature: Vec<OnHeads>,
    /// Stop position QUERY from attending to position KEY, as in 7:4. 3/7:4 acts in layer 3 alone, 3.2/7:4 in head 2
    /// of it
    #[arg(long, value_name = "[L[.H]/]QUERY:KEY", value_delimiter = ',', value_parser = kind("block"))]
    pub(crate) block: Vec<Intervention>,
    /// Replace a part with its value in a run over --from-prompt. L.H is a head's output, L the residual stream
    /// before block L, L.attn and L.mlp what the block's attention and MLP add. @POS replaces one position, else all
    /// are. A head's other changes come first
    #[arg(long, value_name = "PLACE[@POS]", value_delimiter = ',', requires = "from_prompt", value_parser = At::<Place>::from_str)]
    pub(crate) patch: Vec<At<Place>>,
    /// The prompt for --patch and --circuit. It needs as many tokens as the prompt, unless each --patch names a position
    #[arg(long, value_name = "TEXT", requires = "other_run")]
    pub(crate) from_prompt: Option<String>,
    /// Add a vector to the residual stream before block L (steering). FILE.npy holds n_embd numbers
    #[arg(long, value_name = "L[@POS]=FILE.npy[*SCALE]", value_parser = Steer::from_str)]
    pub(crate) add: Vec<Steer>,
    /// Run only the edges of a circuit that gpt2 discover wrote. What other edges carry is the value of a run over
    /// --from-prompt, the mean over the texts of --mean-of, or nothing
    #[arg(long, value_name = "FILE")]
    pub(crate) circuit: Option<PathBuf>,
    /// A sparse autoencoder for --ablate-feature, --scale-feature and --set-feature: a folder as SAELens or gpt2 train-features
    /// writes it, owner/name/FOLDER on the Hub, or demo, the demo model's, which is built in
    #[arg(
        long,
        value_name = "DIR|NAME",
        requires = "changed_features",
        help_heading = "Interventions on features"
    )]
    pub(crate) dictionary: Option<String>,
    /// Take what features of --dictionary add out of the value that it reads: N, counted from 0; N@POS at one position
    #[arg(long, value_name = "N[@POS]", value_delimiter = ',', help_heading = "Interventions on features", requires = "dictionary", value_parser = At::<u32>::from_str)]
    pub(crate) ablate_feature: Vec<At<u32>>,
    /// Multiply the activations of features by a factor
    #[arg(long, value_name = "N[@POS]=FACTOR", value_delimiter = ',', help_heading = "Interventions on features", requires = "dictionary", value_parser = feature_number)]
    pub(crate) scale_feature: Vec<(At<u32>, f64)>,
    /// Give features an activation, whether they fire or not
    #[arg(long, value_name = "N[@POS]=NUMBER", value_delimiter = ',', help_heading = "Interventions on features", requires = "dictionary", value_parser = feature_number)]
    pub(crate) set_feature: Vec<(At<u32>, f64)>,
}

/// `12=0.5`, `12@3=0.5`
fn feature_number(s: &str) -> Result<(At<u32>, f64), String> {
    let parsed = s.split_once('=').and_then(|(feature, number)| {
        let number = number.trim().parse().ok().filter(|x: &f64| x.is_finite())?;
        Some((feature.parse().ok()?, number))
    });
    parsed.ok_or_else(|| "expected N=NUMBER or N@POS=NUMBER, such as 12=0.5".to_owned())
}

/// Parses what comes after the kind of an intervention.
fn kind(kind: &'static str) -> impl Fn(&str) -> Result<Intervention, ParseError> + Clone {
    move |s| format!("{kind} {s}").parse()
}

/// Parses the value of an option on a head, or on all heads of a layer: `L.*`.
pub(crate) fn on_heads(option: &'static str) -> impl Fn(&str) -> Result<OnHeads, String> + Clone {
    move |s| {
        OnHeads::parse(option, s).map_err(|error| {
            let value = if matches!(option, "scale" | "attention-temperature") { "=0.5" } else { "" };
            format!("{error}; several: 5.0{value},5.1{value}; all heads of a layer: '5.*{value}'")
        })
    }
}

impl InterventionArgs {
    /// The engine's options.
    pub(crate) fn options(&self) -> InterventionOptions {
        let lists = [&self.ablate, &self.mean_ablate, &self.scale, &self.attention_temperature];
        InterventionOptions {
            heads: lists.into_iter().flatten().cloned().collect(),
            block: self.block.clone(),
            patch: self.patch.clone(),
            from_prompt: self.from_prompt.as_deref().map(Content::from),
            mean_of: self.mean_of.clone().map(MeanTexts::File),
            add: self.add.clone(),
            circuit: self.circuit.clone().map(CircuitChoice::File),
            dictionary: self.dictionary.clone().map(DictionaryChoice::Named),
            features: self.features(),
        }
    }

    /// The changed features, and what their activations become.
    pub(crate) fn features(&self) -> Vec<FeatureOption> {
        let option = |at: &At<u32>, to: Activity| FeatureOption { at: *at, to };
        let ablated = self.ablate_feature.iter().map(|at| option(at, Activity::Times(0.0)));
        let scaled = self.scale_feature.iter().map(|(at, factor)| option(at, Activity::Times(*factor)));
        let set = self.set_feature.iter().map(|(at, to)| option(at, Activity::Set(*to)));
        ablated.chain(scaled).chain(set).collect()
    }

    /// Adds the files that the options name.
    pub(crate) fn inputs(&self, inputs: &mut ReadFiles) {
        for (option, path) in self.options().files() {
            let what = match option {
                "add" => "a vector of --add",
                "mean-of" => "the texts of --mean-of",
                "circuit" => "the circuit",
                _ => "a file of --dictionary",
            };
            inputs.file(what, path);
        }
    }

    /// Refuses `--circuit` in a command that changes or shows the residual stream: within a circuit, no part reads that
    /// stream as a whole.
    pub(crate) fn no_circuit(&self, what: &str) -> anyhow::Result<()> {
        match self.circuit {
            Some(_) => bail!("--circuit: is not for {what}; it works in {}", takers("circuit")),
            None => Ok(()),
        }
    }
}

/// Error for an output that holds one run, under `--compare`.
pub(crate) fn holds_one_run(option: &str) -> anyhow::Error {
    anyhow!(
        "{option}: would hold the changed run alone beside --compare; write it without --compare, once with the interventions and \
         once without"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_every_head_of_a_layer() {
        let parsed = |what, s: &str| {
            let all = on_heads(what)(s).map(|given| given.each(3))?;
            Ok::<_, String>(all.iter().map(Intervention::to_string).collect::<Vec<_>>())
        };
        assert_eq!(parsed("ablate", "1.2"), Ok(vec!["ablate 1.2".into()]));
        assert_eq!(
            parsed("mean-ablate", "1.*").map(|all| all.join(",")),
            Ok("mean-ablate 1.0,mean-ablate 1.1,mean-ablate 1.2".into())
        );
        assert_eq!(
            parsed("scale", "1.*=-2").map(|all| all.join(",")),
            Ok("scale 1.0=-2,scale 1.1=-2,scale 1.2=-2".into())
        );
        assert_eq!(parsed("attention-temperature", "0.*=2").map(|all| all.len()), Ok(3));
        for (what, s, says) in [
            (
                "ablate",
                "1",
                "expected LAYER.HEAD, such as 5.1; several: 5.0,5.1; all heads of a layer: '5.*'",
            ),
            ("ablate", "*.1", "LAYER.HEAD"),
            ("ablate", "*", "LAYER.HEAD"),
            ("scale", "1.*", "'5.*=0.5'"),
        ] {
            assert!(parsed(what, s).is_err_and(|error| error.contains(says)), "{what} {s}");
        }
    }
}
