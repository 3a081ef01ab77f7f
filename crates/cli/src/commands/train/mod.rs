//! `gpt2 train`: a GPT-2 from scratch, or an existing one trained further, on a text file.

mod data;
mod files;
mod history;
mod metrics;
mod state;
#[cfg(test)]
mod tests;

use crate::args::TrainArgs;
use crate::finite;
use crate::new_folder::NewFolder;
use crate::output::note;
use crate::prompt::{encode, read_limited};
use crate::session;
use anyhow::{Context, bail};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use data::{Data, batch};
use gpt2_loader::{Checkpoint, Files, SaveOptions, Tokenizer};
use gpt2_model::config::TokenIds;
use gpt2_model::training::{AdamW, AdamWParams, CosineSchedule, Training, add_gradients};
use gpt2_model::{Config, Gpt2LMHeadModel, init};
use history::History;
use indicatif::{ProgressBar, ProgressStyle};
use metrics::{Metrics, Row};
use state::Settings;
use std::cell::Cell;
use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};

/// A text of this many bytes is some 300 million tokens.
const LONGEST_TEXT: u64 = 1 << 30;

pub(crate) fn run(args: &TrainArgs) -> anyhow::Result<ExitCode> {
    let device = args.run.device.open()?;
    let text = std::fs::File::open(&args.text).and_then(|file| read_limited(file, LONGEST_TEXT));
    let text = text.with_context(|| format!("cannot read the text from {}", args.text.display()))?;
    files::check_out(args)?;
    let _folder = NewFolder::make(&args.out)?;
    files::check(args, None)?;
    let model = args.model.as_ref().map(|model| session::files(Some(model), &args.hub)).transpose()?;
    files::check(args, model.as_ref())?;

    let (config, tokenizer, checkpoint) = begin(args, &text, model.as_ref())?;
    let window = args.window.unwrap_or(config.n_positions);
    if window == 0 || window > config.n_positions {
        bail!("--window is {window}, expected 1 to the model's n_positions = {}", config.n_positions);
    }
    let data = Data::split(
        encode(&tokenizer, &text, "the training text")?,
        args.val_fraction,
        window,
        config.vocab_size,
    )?;
    let mut trainer = Trainer::new(args, &config, window, checkpoint.as_ref(), device)?;
    note(&format!(
        "{} tokens to learn, {} for validation, vocabulary {}, {} parameters",
        data.train.len(),
        data.val.len(),
        config.vocab_size,
        trainer.model.config().parameter_count()
    ));
    let settings = Settings::new(args, &config, window, data.fingerprint());
    if args.resume {
        trainer.history = state::restore(&args.out, &settings, &trainer.variables, &mut trainer.optimiser)?;
        note(&format!("going on after step {}", trainer.optimiser.steps()));
    }
    let replaces = Cell::new(!args.resume);
    let save = |model: &Gpt2LMHeadModel| {
        // Of the run that --overwrite replaces: they are kept until this one has something to show.
        if replaces.take() {
            for file in [state::path(&args.out), args.out.join("loss.png")] {
                if file.exists() {
                    std::fs::remove_file(file)?;
                }
            }
        }
        let options = SaveOptions::default().dtype(DType::from(args.save_dtype));
        Ok(gpt2_loader::save(&args.out, model, Some(&tokenizer), options)?)
    };
    let finished = trainer.run(&data, &settings, save)?;
    if let Err(e) = trainer.history.draw(&args.out, &settings.made_by(&trainer.device)) {
        note(&format!("the loss curve could not be drawn: {e:#}"));
    }
    let Some(best) = trainer.history.best() else { return Ok(ExitCode::SUCCESS) };
    note(&format!(
        "validation loss {:.4} nats a token at step {} (a unigram model: {:.4}); saved in {}",
        best.loss,
        best.step,
        data.unigram_loss(config.vocab_size),
        args.out.display()
    ));
    if finished {
        // Nothing is left to go on with.
        let _ = std::fs::remove_file(state::path(&args.out));
    }
    Ok(ExitCode::SUCCESS)
}

/// The model's config and tokenizer, and the checkpoint that it begins with where there is one.
fn begin(
    args: &TrainArgs,
    text: &str,
    files: Option<&Files>,
) -> anyhow::Result<(Config, Tokenizer, Option<Checkpoint>)> {
    if let Some(files) = files {
        let checkpoint = Checkpoint::open(files)?;
        let mut config = checkpoint.config().clone();
        if let Some(rate) = args.dropout {
            (config.attn_pdrop, config.resid_pdrop, config.embd_pdrop) = (rate, rate, rate);
        }
        let tokenizer = Tokenizer::open(files, config.vocab_size)?;
        return Ok((config, tokenizer, Some(checkpoint)));
    }
    // A run that goes on has its tokenizer beside its model.
    let saved = args.out.join("tokenizer.json");
    let tokenizer = if args.resume && saved.exists() {
        Tokenizer::from_file(&saved)?
    } else {
        Tokenizer::train(text, args.vocab_size as usize)?
    };
    Ok((config(args, &tokenizer)?, tokenizer, None))
}

fn config(args: &TrainArgs, tokenizer: &Tokenizer) -> anyhow::Result<Config> {
    let end = tokenizer.end_of_text();
    let rate = args.dropout.unwrap_or(0.0);
    let config = Config {
        vocab_size: tokenizer.vocab_size(),
        n_positions: args.n_positions,
        n_embd: args.n_embd,
        n_layer: args.n_layer,
        n_head: args.n_head,
        // A narrow model with GPT-2's 0.02 begins with scores near 0 and takes long to leave uniform
        // attention: keep the scale that its weights give at GPT-2 small's width.
        initializer_range: 0.02 * (768.0 / args.n_embd as f64).sqrt(),
        resid_pdrop: rate,
        embd_pdrop: rate,
        attn_pdrop: rate,
        bos_token_id: end,
        eos_token_id: end.map(TokenIds::One),
        ..Config::gpt2()
    };
    config.validate()?;
    Ok(config)
}

/// The variables by their names.
fn held(variables: &VarMap) -> anyhow::Result<MutexGuard<'_, HashMap<String, Var>>> {
    variables.data().lock().map_err(|_| anyhow::anyhow!("a thread panicked while it held the variables"))
}

struct Trainer<'a> {
    args: &'a TrainArgs,
    variables: VarMap,
    model: Gpt2LMHeadModel,
    optimiser: AdamW,
    schedule: CosineSchedule,
    history: History,
    window: usize,
    device: Device,
}

impl<'a> Trainer<'a> {
    fn new(
        args: &'a TrainArgs,
        config: &Config,
        window: usize,
        checkpoint: Option<&Checkpoint>,
        device: Device,
    ) -> anyhow::Result<Self> {
        let loaded = checkpoint.map(|c| c.load_model(DType::F32, &device)).transpose()?;
        // A head that differs from the embedding is learnt apart, whatever the checkpoint's config says.
        let tied = config.tie_word_embeddings && loaded.as_ref().is_none_or(Gpt2LMHeadModel::is_tied);
        let config = Config { tie_word_embeddings: tied, ..config.clone() };
        let mut variables = VarMap::new();
        let vb = init::seeded_variables(args.run.seed, &variables, DType::F32, &device);
        let model = Gpt2LMHeadModel::load(vb, &config)?;
        match loaded {
            Some(loaded) => {
                for (name, tensor) in loaded.named_parameters() {
                    variables.set_one(&name, tensor)?;
                }
            }
            None => variables.set_one("wpe.weight", init::sinusoids(&config, DType::F32, &device)?)?,
        }
        let params = AdamWParams {
            beta2: 0.99,
            weight_decay: args.weight_decay,
            max_grad_norm: Some(args.clip).filter(|clip| *clip > 0.0),
            ..AdamWParams::default()
        };
        Ok(Self {
            args,
            model,
            optimiser: AdamW::new(&variables, params)?,
            variables,
            schedule: CosineSchedule {
                peak: args.lr,
                floor: args.lr / 10.0,
                warmup: args.warmup as usize,
                total: args.steps as usize,
            },
            history: History::default(),
            window,
            device,
        })
    }

    /// Trains until the last step or Ctrl-C; hands every model that is the best so far to `save`, and keeps
    /// what a stopped run goes on with. Whether the last step was reached.
    fn run(
        &mut self,
        data: &Data,
        settings: &Settings,
        save: impl Fn(&Gpt2LMHeadModel) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        let stop = stop_flag()?;
        let steps = u64::from(self.args.steps);
        let bar = progress_bar(steps, self.optimiser.steps())?;
        let open = |path: &std::path::PathBuf| Metrics::open(path, self.optimiser.steps());
        let mut metrics = self.args.metrics.as_ref().map(open).transpose()?;
        let tokens_a_step = usize::from(self.args.batch) * usize::from(self.args.accumulate) * self.window;
        let mut val_loss = None;
        while self.optimiser.steps() < steps {
            let begun = std::time::Instant::now();
            let (loss, lr, grad_norm) = self.step(data)?;
            let tokens_per_s = tokens_a_step as f64 / begun.elapsed().as_secs_f64();
            self.history.add_step(loss);
            let done = self.optimiser.steps();
            bar.set_position(done);
            let validation = val_loss.map_or_else(String::new, |v: f64| format!(", validation {v:.3}"));
            bar.set_message(format!("loss {loss:.3}{validation}, {tokens_per_s:.0} tokens/s"));
            let evaluates = done.is_multiple_of(u64::from(self.args.eval_every)) || done == steps;
            if evaluates {
                let measured = self.validate(data)?;
                val_loss = Some(measured);
                let verdict = self.keep(measured, &save)?;
                bar.suspend(|| {
                    note(&format!(
                        "step {done}: loss {loss:.4}, validation {measured:.4} ({verdict}), {tokens_per_s:.0} tokens/s"
                    ));
                });
            }
            if let Some(metrics) = &mut metrics {
                let val_loss = val_loss.filter(|_| evaluates);
                metrics.add(Row { step: done, loss, val_loss, lr, grad_norm, tokens_per_s })?;
            }
            let stopped = stop.load(Ordering::SeqCst);
            if (evaluates || stopped) && done < steps {
                state::save(&self.args.out, settings, &self.variables, &self.optimiser, &self.history)?;
            }
            if stopped && done < steps {
                if self.history.best().is_none() {
                    save(&self.model)?;
                }
                bar.finish_and_clear();
                note(&format!("stopped by Ctrl-C after step {done}; the same command with --resume goes on"));
                return Ok(false);
            }
        }
        bar.finish_and_clear();
        Ok(true)
    }

    /// Saves the model where it is the best so far; says whether it was.
    fn keep(
        &mut self,
        loss: f64,
        save: impl Fn(&Gpt2LMHeadModel) -> anyhow::Result<()>,
    ) -> anyhow::Result<&'static str> {
        let step = self.optimiser.steps();
        if !loss.is_finite() {
            bail!("the validation loss became {loss} after step {step}: try a lower --lr");
        }
        if !self.history.add_validation(step, loss) {
            return Ok("not the best, not saved");
        }
        save(&self.model)?;
        Ok("saved")
    }

    /// One step of the optimiser: its loss, learning rate and norm of gradients.
    fn step(&mut self, data: &Data) -> anyhow::Result<(f32, f64, f64)> {
        let (step, batches) = (self.optimiser.steps(), u64::from(self.args.accumulate));
        let mut mean = 0.0;
        let mut sum = None;
        for number in step * batches..(step + 1) * batches {
            let starts = data.starts(self.args.run.seed, number, self.args.batch.into(), self.window);
            let (inputs, targets) = batch(&data.train, &starts, self.window, &self.device)?;
            let training = Some(Training { seed: self.args.run.seed, step: number });
            let (loss, gradients) = self.gradients(&inputs, &targets, training)?;
            mean += loss / batches as f32;
            if !mean.is_finite() && step == 0 && self.args.model.is_some() {
                bail!("{}", finite::explain(&self.model, &inputs, None));
            }
            if !mean.is_finite() {
                bail!("the loss became {mean} at step {step}: try a lower --lr");
            }
            match &mut sum {
                None => sum = Some(gradients),
                Some(sum) => add_gradients(sum, gradients, &self.variables)?,
            }
        }
        let gradients = sum.context("--accumulate: no batch")?;
        let lr = self.schedule.rate(usize::try_from(step)?);
        let stepped = self.optimiser.step(&gradients, lr, 1.0 / batches as f64);
        let grad_norm = stepped.with_context(|| format!("step {step} failed: try a lower --lr"))?;
        Ok((mean, lr, grad_norm))
    }

    fn gradients(
        &self,
        inputs: &Tensor,
        targets: &Tensor,
        training: Option<Training>,
    ) -> candle_core::Result<(f32, GradStore)> {
        if self.args.recompute {
            return self.model.recomputed_gradients(inputs, targets, training, &self.variables);
        }
        let loss = self.model.loss(inputs, targets, training)?;
        Ok((loss.to_scalar()?, loss.backward()?))
    }

    /// The mean loss over the validation part, in windows side by side; what is shorter than one at its
    /// end is left out.
    fn validate(&self, data: &Data) -> anyhow::Result<f64> {
        let t = self.window;
        // The same weights as constants: no operation is kept for a backward pass.
        let held = held(&self.variables)?;
        let weights = held.iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())).collect();
        drop(held);
        let vb = VarBuilder::from_tensors(weights, DType::F32, &self.device);
        let model = Gpt2LMHeadModel::load(vb, self.model.config())?;
        let starts: Vec<usize> = (0..data.val.len() - t).step_by(t).collect();
        let mut sum = 0.0;
        for rows in starts.chunks(self.args.batch.into()) {
            let (inputs, targets) = batch(&data.val, rows, t, &self.device)?;
            let loss = model.loss(&inputs, &targets, None)?;
            sum += f64::from(loss.to_scalar::<f32>()?) * rows.len() as f64;
        }
        Ok(sum / starts.len() as f64)
    }
}

/// Set by Ctrl-C; a second one, while the first is being served, ends the process at once.
fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    })?;
    Ok(stop)
}

fn progress_bar(steps: u64, done: u64) -> anyhow::Result<ProgressBar> {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {eta} left")?;
    if crate::output::is_quiet() {
        return Ok(ProgressBar::hidden());
    }
    let bar = ProgressBar::new(steps).with_style(style).with_position(done);
    bar.reset_eta();
    Ok(bar)
}
