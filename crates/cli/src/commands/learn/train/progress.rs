//! Everything that a run shows and saves while it trains: the bar, the notes, the best model, the state, the metrics.

use super::args::{TrainArgs, unsaved, worded};
use super::files;
use crate::output::progress::bar;
use crate::output::{is_quiet, note};
use crate::process::signals::Stop;
use gpt2_engine::Spelling;
use gpt2_engine::interventions::Applied;
use gpt2_loader::{AdapterConfig, SaveOptions, Tokenizer, save_adapter};
use gpt2_train::{Metrics, StepReport, Trainer, TrainingEvent, Validation};
use indicatif::ProgressBar;
use std::ops::ControlFlow;

/// The trainer's callback.
pub(super) struct Progress<'a> {
    args: &'a TrainArgs,
    tokenizer: &'a Tokenizer,
    pub(super) bar: ProgressBar,
    metrics: Option<Metrics>,
    pub(super) stop: Stop,
    /// Whether this rank writes the run's files.
    writes: bool,
    /// The last validation's loss.
    val_loss: Option<f64>,
    /// The interventions under which each validation is measured once more.
    changes: Applied,
    /// Whether the files of the earlier run that --overwrite replaces are still there.
    replaces: bool,
}

impl<'a> Progress<'a> {
    pub(super) fn new(
        args: &'a TrainArgs,
        tokenizer: &'a Tokenizer,
        trainer: &Trainer,
    ) -> anyhow::Result<Self> {
        let done = trainer.steps();
        let writes = trainer.group().rank() == 0;
        let stop = Stop::listen();
        let bar = bar(Some(args.steps.into()), "{bar:30} {pos}/{len} {msg}, {eta} left").with_position(done);
        bar.reset_eta();
        let metrics = match args.metrics.as_ref().filter(|_| writes) {
            Some(path) => Some(Metrics::open(path, files::metrics_format(path)?, done).map_err(worded)?),
            None => None,
        };
        let changes = args.interventions.options().for_training(trainer.model().config(), Spelling::Flags)?;
        Ok(Self {
            args,
            tokenizer,
            bar,
            metrics,
            stop,
            writes,
            val_loss: None,
            changes,
            replaces: !args.resume,
        })
    }

    /// Shows the event, saves the best model and the state, and stops the run after Ctrl-C.
    pub(super) fn hear(
        &mut self,
        trainer: &Trainer,
        event: TrainingEvent,
    ) -> anyhow::Result<ControlFlow<()>> {
        match event {
            TrainingEvent::Stepped(step) => {
                let StepReport { step: done, loss, tokens_per_s, .. } = step;
                self.bar.set_position(done);
                let validation = self.val_loss.map_or_else(String::new, |v| format!(", validation {v:.3}"));
                self.bar.set_message(format!("loss {loss:.3}{validation}, {tokens_per_s:.0} tokens/s"));
                if step.validates { Ok(ControlFlow::Continue(())) } else { self.end(trainer, step, None) }
            }
            TrainingEvent::Validated(step, validation) => {
                self.validated(trainer, step, validation)?;
                self.end(trainer, step, Some(validation))
            }
            _ => Ok(ControlFlow::Continue(())),
        }
    }

    fn validated(
        &mut self,
        trainer: &Trainer,
        step: StepReport,
        validation: Validation,
    ) -> anyhow::Result<()> {
        self.val_loss = Some(validation.loss);
        let verdict = if validation.is_best {
            self.save(trainer)?;
            "saved"
        } else {
            "not the best, not saved"
        };
        let StepReport { step: done, loss, tokens_per_s, .. } = step;
        let measured = validation.loss;
        let under = if self.changes.list.is_empty() || is_quiet() {
            String::new()
        } else {
            let loss = trainer.validation_loss_under(&self.changes.list).map_err(worded)?;
            format!(", {loss:.4} under {}", self.changes.texts.join(", "))
        };
        self.bar.suspend(|| {
            note(&format!(
                "step {done}: loss {loss:.4}, validation {measured:.4}{under} ({verdict}), {tokens_per_s:.0} tokens/s"
            ));
        });
        Ok(())
    }

    fn end(
        &mut self,
        trainer: &Trainer,
        step: StepReport,
        validation: Option<Validation>,
    ) -> anyhow::Result<ControlFlow<()>> {
        if let Some(metrics) = &mut self.metrics {
            metrics.add(step, validation).map_err(worded)?;
        }
        // All ranks stop after the same step.
        let stopped = trainer.group().any(self.stop.is_asked())?;
        let is_last = step.step == u64::from(self.args.steps);
        // The model first: with it, the files of an earlier run go.
        if stopped && !is_last && trainer.history().best().is_none() {
            self.save(trainer)?;
        }
        if (validation.is_some() || stopped) && !is_last {
            trainer.save_state(&self.args.out.join(files::STATE)).map_err(worded)?;
        }
        if !stopped || is_last {
            return Ok(ControlFlow::Continue(()));
        }
        self.bar.finish_and_clear();
        let done = step.step;
        note(&format!("stopped after step {done}; run the same command with --resume to continue"));
        Ok(ControlFlow::Break(()))
    }

    fn save(&mut self, trainer: &Trainer) -> anyhow::Result<()> {
        if !self.writes {
            return Ok(());
        }
        let out = &self.args.out;
        // Keep the files of the earlier run that --overwrite replaces until this run has something to show.
        if std::mem::take(&mut self.replaces) {
            // The config of an adapter first: new weights beside it would have another scaling.
            for name in [files::FILES_OF_ADAPTER[0], files::STATE, files::PICTURE] {
                let file = out.join(name);
                if file.exists() {
                    std::fs::remove_file(file)?;
                }
            }
        }
        let model = trainer.model();
        if let Some((adapter, lora)) = trainer.trained_adapter() {
            let conv1d = !model.config().is_bigcode();
            let config = AdapterConfig::new(lora, self.args.model.clone(), conv1d)
                .with_revision(self.args.hub.revision.clone());
            return Ok(save_adapter(out, adapter, &config, model.config())?);
        }
        let options = SaveOptions::default().with_dtype(self.args.save_dtype);
        gpt2_loader::save(out, model, Some(self.tokenizer), options)
            .map_err(|error| unsaved(error, "try a lower --lr"))
    }
}
