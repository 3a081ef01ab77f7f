//! Everything that a run shows and saves while it trains: the bar, the notes, the best model, the state, the metrics.

use super::args::TrainArgs;
use super::files;
use super::wording::{unsaved, worded};
use crate::output::terminal::TERMINAL;
use crate::output::{is_quiet, note};
use crate::process::signals::Stop;
use gpt2_engine::interventions::Applied;
use gpt2_engine::studies::learn::train::{Samples, bits_per_byte, bytes_per_token};
use gpt2_engine::{Observer, Spelling};
use gpt2_loader::{AdapterConfig, SaveOptions, Tokenizer, save_adapter};
use gpt2_train::{Metrics, StepReport, Trainer, TrainingEvent, Validation};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// The trainer's callback.
pub(super) struct Progress<'a> {
    args: &'a TrainArgs,
    tokenizer: Option<&'a Tokenizer>,
    /// Shows a loss in bits per byte.
    pub(super) bytes: BytesOfTokens,
    samples: Samples<'a>,
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
    /// The time of the last picture, and whether one could not be drawn.
    drawn: Option<Instant>,
    undrawn: bool,
}

/// The name of the steps that are counted.
const STEPS: &str = "steps";

/// Validations that follow sooner get no picture of their own.
const BETWEEN_PICTURES: Duration = Duration::from_secs(2);

/// The bytes of text that a token has, if there is a tokenizer.
pub(super) struct BytesOfTokens(Option<f64>);

impl BytesOfTokens {
    /// A loss in bits per byte: `, 1.85 bits per byte`, or nothing.
    pub(super) fn of(&self, loss: f64) -> String {
        self.0.map_or_else(String::new, |bytes| format!(", {:.3} bits per byte", bits_per_byte(loss, bytes)))
    }
}

impl<'a> Progress<'a> {
    pub(super) fn new(
        args: &'a TrainArgs,
        tokenizer: Option<&'a Tokenizer>,
        trainer: &Trainer,
    ) -> anyhow::Result<Self> {
        let done = trainer.steps();
        let steps = trainer.settings().options().steps;
        let n_positions = trainer.model().config().n_positions;
        let seed = args.run.seed;
        let samples =
            Samples::new(&args.options(), tokenizer, trainer.data(), n_positions, seed, Spelling::Flags)?;
        let writes = trainer.group().rank() == 0;
        let stop = Stop::listen();
        TERMINAL.works();
        TERMINAL.step(STEPS, done, Some(steps.into()))?;
        let metrics = match args.metrics.as_ref().filter(|_| writes) {
            Some(path) => Some(Metrics::open(path, files::metrics_format(path)?, done).map_err(worded)?),
            None => None,
        };
        let changes = args.interventions.options().for_training(trainer.model().config(), Spelling::Flags)?;
        Ok(Self {
            args,
            tokenizer,
            bytes: BytesOfTokens(bytes_per_token(tokenizer, trainer.data())),
            samples,
            metrics,
            stop,
            writes,
            val_loss: None,
            changes,
            replaces: !args.resume,
            drawn: None,
            undrawn: false,
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
                let all = trainer.settings().options().steps;
                let validation = self.val_loss.map_or_else(String::new, |v| format!(", validation {v:.3}"));
                TERMINAL.figures(&format!("loss {loss:.3}{validation}, {tokens_per_s:.0} tokens/s"));
                TERMINAL.step(STEPS, done, Some(all.into()))?;
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
        let bits = self.bytes.of(measured);
        let texts = if self.writes && !is_quiet() { self.samples.write(trainer)? } else { vec![] };
        note(&format!(
            "step {done}: loss {loss:.4}, validation {measured:.4}{bits}{under} ({verdict}), {tokens_per_s:.0} tokens/s"
        ));
        for line in texts.iter().flat_map(|text| text.lines()) {
            note(&format!("    | {line}"));
        }
        if self.writes && self.drawn.is_none_or(|drawn| drawn.elapsed() > BETWEEN_PICTURES) {
            self.draw(trainer);
        }
        Ok(())
    }

    /// Draws the losses. A picture that fails ends no run; that is noted once.
    pub(super) fn draw(&mut self, trainer: &Trainer) {
        if let Err(e) = files::draw(self.args, trainer)
            && !std::mem::replace(&mut self.undrawn, true)
        {
            note(&format!("the loss curve could not be drawn: {e:#}"));
        }
        self.drawn = Some(Instant::now());
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
        let is_last = step.step == u64::from(trainer.settings().options().steps);
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
        TERMINAL.clear();
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
        gpt2_loader::save(out, model, self.tokenizer, options)
            .map_err(|error| unsaved(error, "try a lower --lr"))
    }
}
