//! The options of a command that looks into a model while it runs.

use crate::interventions::args::InterventionArgs;
use crate::model::args::FiniteArgs;
use crate::model::args::ModelArgs;
use crate::output::read_files::ReadFiles;
use crate::output::written_files::Outputs;
use gpt2_engine::Opened;

/// Options of every command that looks into a model while it runs.
#[derive(Debug, clap::Args)]
pub(crate) struct StudyArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) interventions: InterventionArgs,
    #[command(flatten)]
    pub(crate) finite: FiniteArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

impl StudyArgs {
    /// Like [`ModelArgs::open_for`], with the files of the interventions among the inputs.
    pub(crate) fn open_for(&self, mut inputs: ReadFiles, outputs: &Outputs) -> anyhow::Result<Opened> {
        self.interventions.inputs(&mut inputs);
        self.model.open_for(inputs, outputs)
    }
}
