//! The steps of a training run, and what it saves.

use super::options::{Options, Report, SPARSITIES, TrainingRun};
use super::values::TrainingValues;
use crate::words::{count, name_of};
use anyhow::{Context, bail};
use gpt2_loader::{NewDictionary, save_dictionary};
use gpt2_model::Config;
use gpt2_train::{DictionaryOptions, DictionaryStep, DictionaryTrainer, TrainError};
use serde_json::json;
use std::sync::Arc;

/// Default features per input dimension.
const FEATURES_OF_ONE: usize = 8;
/// Steps over which the last figures are averaged.
const LAST: usize = 20;

/// A training run that has begun.
pub struct FeatureTraining<'a> {
    options: &'a Options,
    run: TrainingRun<'a>,
    values: TrainingValues<'a>,
    trainer: DictionaryTrainer,
    /// The facts that the steps depend on, besides the trainer's own settings.
    given: serde_json::Value,
    /// The numbers of a value, and the number of features.
    d: usize,
    features: usize,
    /// The steps that were done before, and all.
    done: usize,
    steps: usize,
}

impl<'a> FeatureTraining<'a> {
    /// Checks the options against the values, and chooses the first weights.
    ///
    /// # Errors
    /// When the values are no vectors, too few or not finite, or other processes would train otherwise.
    pub fn begin(
        options: &'a Options,
        values: TrainingValues<'a>,
        run: TrainingRun<'a>,
    ) -> anyhow::Result<Self> {
        let written = values.writes()?.map(|written| ("writes", written));
        for (option, (name, point)) in std::iter::once(("point", values.point()?)).chain(written) {
            if point.width(&Config::gpt2()).is_none() {
                let option = run.spelling.option(option);
                bail!(
                    "{option} {name}: is no vector for each token, as a dictionary needs; take another point"
                );
            }
        }
        let steps = steps_of(options, values.tokens(), &run)?;
        let sample = values.sample(options, run.seed)?;
        let d = if written.is_some() { values.width()? } else { sample.dim(1)? };
        let reads = written.map(|_| d);
        let features = options.features.map_or(FEATURES_OF_ONE * d, |features| features as usize);
        let mut of_trainer = trainer_options(options, features, steps, run.seed);
        of_trainer.reads = reads;
        let trainer = DictionaryTrainer::new(&sample, of_trainer);
        let trainer = trainer.map_err(|error| values.blamed(error.into()))?;
        let given = agreed(options, &values)?;
        let trainer = trainer.in_group(Arc::clone(run.group), &given)?;
        Ok(Self { options, run, values, trainer, given, d, features, done: 0, steps })
    }

    /// Goes on where a stopped run was, if the options ask for it.
    ///
    /// # Errors
    /// When its state is damaged, or of another run.
    pub fn resume(mut self) -> anyhow::Result<Self> {
        if self.options.resume {
            let spelling = self.run.spelling;
            let resumed = self.trainer.resume(&self.options.state(), &self.given);
            self.done = resumed.map_err(|error| match error {
                TrainError::Setting { name, before, now } => anyhow::anyhow!(
                    "{}: {name} was {before} and is {now}; give what the run began with, or start anew with {}",
                    spelling.option("resume"),
                    spelling.switch("overwrite")
                ),
                other => other.into(),
            })?;
            self.run.observer.note(&format!("going on after step {}", self.done));
        }
        Ok(self)
    }

    /// Takes the steps, and saves the dictionary; of a run that was asked to stop, also its state.
    ///
    /// # Errors
    /// When the loss is not finite, a file cannot be read or written, or another process fails. What was learned before is saved.
    pub fn run(mut self) -> anyhow::Result<Report> {
        let mut found = vec![];
        let mut heard = Ok(());
        let trained = self.train(&mut found, &mut heard);
        let steps = self.steps;
        let ended = self.done + found.len();
        let leads = self.run.group.rank() == 0;
        // After a failed exchange, a process may have some of the new weights and not the others.
        let is_saved = !found.is_empty()
            && !trained
                .as_ref()
                .is_err_and(|error| matches!(error.downcast_ref(), Some(TrainError::Group(_))));
        if leads && is_saved {
            self.save(ended)?;
        }
        let answers = is_saved && !trained.as_ref().is_err_and(anyhow::Error::is::<gpt2_parallel::Error>);
        // One process alone may have been asked, and all save the state together.
        let asked = answers && self.run.group.any(self.run.observer.is_asked_to_stop())?;
        let goes_on = trained.is_ok() || asked;
        let state = self.options.state();
        // Beside the dictionary, so that the run can go on; a finished one needs none.
        if is_saved && goes_on && ended < steps {
            self.trainer.save_state(&state, &self.given)?;
        } else if leads && trained.is_ok() {
            let _ = std::fs::remove_file(&state);
        }
        if answers {
            self.run.group.any(false)?; // until it is written
        }
        let trained = trained.and_then(|()| Ok(heard?));
        if is_saved {
            trained.with_context(|| {
                format!("stopped after {ended} of {steps} steps; what was learned before is saved")
            })?;
        } else {
            trained?;
        }
        self.report(ended, &found)
    }

    /// Takes steps until the last one, or until someone asks to stop; `heard` gets this process's reason.
    fn train(
        &mut self,
        found: &mut Vec<DictionaryStep>,
        heard: &mut candle_core::Result<()>,
    ) -> anyhow::Result<()> {
        let Self { options, run, values, trainer, done, steps, .. } = self;
        let done = *done;
        let steps = *steps;
        let observer = run.observer;
        let all = steps as u64;
        let rank = trainer.group().rank();
        let ranks = trainer.group().size();
        let mine = move |place| place % ranks == rank;
        observer.step("steps", done as u64, Some(all))?;
        for batches in values.steps(options, run.seed, steps, mine).skip(done) {
            // All processes leave together, before anything has changed.
            if trainer.group().any(batches.is_err())? {
                batches?;
                bail!("another process could not read or compute its values");
            }
            let step = trainer.step(&batches?).map_err(|error| values.blamed(error.into()))?;
            observer.figures(&format!("explains {:.3}, L0 {:.1}", 1.0 - step.unexplained, step.l0));
            found.push(step);
            *heard = observer.step("steps", (done + found.len()) as u64, Some(all));
            let stops = heard.is_err() || observer.is_asked_to_stop();
            if trainer.group().any(stops)? {
                break;
            }
        }
        Ok(())
    }

    fn save(&self, ended: usize) -> anyhow::Result<()> {
        let Self { options, run, values, trainer, features, .. } = self;
        let (_, point) = values.point()?;
        let (tensors, selection) = trainer.dictionary()?;
        let Options { sparsity, k, epochs, batch, accumulate, lr, silent_after, .. } = options;
        let from = if matches!(values, TrainingValues::Recorded { .. }) { "store" } else { "text" };
        let facts = values.facts();
        let made_by = json!({
            "gpt2": env!("CARGO_PKG_VERSION"),
            from: facts,
            "training": {
                "sparsity": name_of(SPARSITIES, sparsity), "features": features, "k": k, "epochs": epochs, "batch": batch,
                "accumulate": accumulate, "lr": lr, "silent_after": silent_after, "seed": run.seed, "steps": ended,
            },
        });
        let about = NewDictionary {
            hook: point,
            hook_out: values.writes()?.map(|(_, point)| point),
            model_name: facts["provenance"]["model"].as_str().map(str::to_owned),
            prepend_bos: facts["bos"].as_bool().unwrap_or(false),
            context_size: facts["window"].as_u64(),
            made_by,
        };
        Ok(save_dictionary(&options.out, &tensors, &selection, &about)?)
    }

    fn report(&self, ended: usize, found: &[DictionaryStep]) -> anyhow::Result<Report> {
        let last = &found[found.len().saturating_sub(LAST)..];
        let mean =
            |of: fn(&DictionaryStep) -> f64| last.iter().map(of).sum::<f64>() / last.len().max(1) as f64;
        Ok(Report {
            out: self.options.out.clone(),
            point: self.values.point()?.0.to_owned(),
            writes: self.values.writes()?.map(|(name, _)| name.to_owned()),
            d: self.d,
            features: self.features,
            steps: ended,
            tokens: ended * self.options.tokens_of_step(),
            explained_variance: 1.0 - mean(|step| step.unexplained),
            l0: mean(|step| step.l0),
            silent: last.last().map_or(0, |step| step.silent),
            planned: self.steps,
        })
    }
}

/// The number of steps over all epochs. Error for fewer tokens than a step takes.
fn steps_of(options: &Options, tokens: usize, run: &TrainingRun) -> anyhow::Result<usize> {
    let rows = options.tokens_of_step();
    let steps = tokens / rows * options.epochs as usize;
    if steps == 0 {
        bail!(
            "{}: {} has {}, and a step takes {rows}; take smaller or fewer batches ({}), or more text",
            run.spelling.given("batch", options.batch),
            options.source.display(),
            count(tokens, "token"),
            run.spelling.option("accumulate")
        );
    }
    Ok(steps)
}

fn trainer_options(options: &Options, features: usize, steps: usize, seed: u64) -> DictionaryOptions {
    let mut of_trainer = DictionaryOptions::new(features, options.k as usize, steps);
    of_trainer.sparsity = options.sparsity;
    of_trainer.lr = options.lr;
    of_trainer.seed = seed;
    of_trainer.silent_after = options.silent_after as usize;
    of_trainer
}

/// The facts that must agree between processes: what the values of the steps depend on. Paths and GPUs may differ.
fn agreed(options: &Options, values: &TrainingValues) -> anyhow::Result<serde_json::Value> {
    let mut facts = values.facts().clone();
    if let Some(facts) = facts.as_object_mut() {
        facts.remove("provenance");
    }
    let Options { epochs, batch, accumulate, .. } = options;
    let mut agreed = json!({
        "point": values.point()?.0, "epochs": epochs, "batch": batch, "accumulate": accumulate, "values": facts,
    });
    if let Some((name, _)) = values.writes()? {
        agreed["writes"] = json!(name);
    }
    Ok(agreed)
}
