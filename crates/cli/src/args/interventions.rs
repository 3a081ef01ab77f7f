//! Changes to heads and attention on the command line.

use gpt2_model::Config;
use gpt2_model::hooks::{Intervention, Interventions, ParseError};

/// Options that change heads and attention while the model runs.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Interventions")]
pub(crate) struct InterventionArgs {
    /// Heads whose output becomes 0: LAYER.HEAD, counted from 0 (repeatable)
    #[arg(long, value_name = "L.H", value_delimiter = ',', value_parser = ablate)]
    ablate: Vec<Intervention>,
    /// Heads whose output becomes its mean over the prompt (repeatable)
    #[arg(long, value_name = "L.H", value_delimiter = ',', value_parser = mean_ablate)]
    mean_ablate: Vec<Intervention>,
    /// Heads whose output is multiplied by a factor (repeatable)
    #[arg(long, value_name = "L.H=FACTOR", value_delimiter = ',', value_parser = scale)]
    scale: Vec<Intervention>,
    /// Stop position QUERY from attending to KEY, both counted from 0: in all layers, or in one layer or head only,
    /// as in 3/7:4 and 3.2/7:4 (repeatable)
    #[arg(long, value_name = "[L[.H]/]QUERY:KEY", value_delimiter = ',', value_parser = block)]
    block: Vec<Intervention>,
}

impl InterventionArgs {
    /// The interventions, checked against the model; a mean is taken over the prompt.
    pub(crate) fn build(&self, config: &Config) -> anyhow::Result<Interventions> {
        let all = [&self.ablate, &self.mean_ablate, &self.scale, &self.block];
        Ok(Interventions::new(all.into_iter().flatten().cloned(), config)?)
    }
}

fn ablate(s: &str) -> Result<Intervention, ParseError> {
    format!("ablate {s}").parse()
}

fn mean_ablate(s: &str) -> Result<Intervention, ParseError> {
    format!("mean-ablate {s}").parse()
}

fn scale(s: &str) -> Result<Intervention, ParseError> {
    format!("scale {s}").parse()
}

fn block(s: &str) -> Result<Intervention, ParseError> {
    format!("block {s}").parse()
}
