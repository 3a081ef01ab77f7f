//! The options of a command that looks into a model while it runs.

use crate::interventions::args::InterventionArgs;
use crate::model::args::{FiniteArgs, FirstTokenArg, ModelArgs};
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use gpt2_engine::interventions::Prepared;
use gpt2_engine::studies::{Outcome, Run, Study, check_interventions};
use gpt2_engine::{Opened, ReadFiles, Spelling};

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
    pub(crate) first_token: FirstTokenArg,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

impl StudyArgs {
    /// Refuses interventions that have no meaning in a study, before anything is fetched for it.
    pub(crate) fn check<S: Study>(&self) -> anyhow::Result<()> {
        check_interventions::<S>(&self.interventions.options(), Spelling::Flags)
    }

    /// Like [`ModelArgs::open_for`], with the files of the interventions among the inputs.
    pub(crate) fn open_for(&self, mut inputs: ReadFiles, outputs: &Outputs) -> anyhow::Result<Opened> {
        self.interventions.inputs(&mut inputs);
        self.first_token.of(self.model.open_for(inputs, outputs)?)
    }

    /// Runs a study, after [`StudyArgs::check`].
    pub(crate) fn outcome<S: Study>(
        &self,
        opened: &Opened,
        study: &S,
        wants_tensors: bool,
    ) -> anyhow::Result<Outcome<S::Report>> {
        let options = self.interventions.options();
        study.run(&self.run(&Prepared::new(options, opened, &TERMINAL)?, wants_tensors))
    }

    /// The settings of a study's run: interventions, seed, progress.
    pub(crate) fn run<'a>(&self, interventions: &'a Prepared<'a>, wants_tensors: bool) -> Run<'a> {
        Run {
            seed: self.model.run.seed,
            allow_nonfinite: self.finite.allow_nonfinite,
            wants_tensors,
            ..Run::new(interventions, &TERMINAL)
        }
    }
}
