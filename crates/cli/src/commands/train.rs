//! `gpt2 train`: a small GPT-2 from a text file.

use crate::args::TrainArgs;
use crate::output::note;
use anyhow::{Context, bail};
use candle_core::{DType, Device, Tensor};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, VarMap};
use gpt2_loader::{SaveOptions, Tokenizer};
use gpt2_model::config::TokenIds;
use gpt2_model::training::{CosineSchedule, cross_entropy, decay_groups};
use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, init};
use indicatif::{ProgressBar, ProgressStyle};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) fn run(args: &TrainArgs) -> anyhow::Result<ExitCode> {
    let device = args.run.device.open()?;
    let text = std::fs::read_to_string(&args.text)
        .with_context(|| format!("cannot read the text from {}", args.text.display()))?;
    let held = ["config.json", "model.safetensors"].into_iter().find(|name| args.out.join(name).exists());
    if let Some(name) = held.filter(|_| !args.overwrite) {
        bail!(
            "{}: there is a {name} already; choose another --out, or replace it with --overwrite",
            args.out.display()
        );
    }
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;

    let tokenizer = Tokenizer::train(&text, args.vocab_size as usize)?;
    let config = config(args, &tokenizer)?;
    let data = Data::split(tokenizer.encode(&text)?, args.val_fraction, args.n_positions)?;
    note(&format!(
        "{} tokens to learn, {} for validation, vocabulary {}, {} parameters",
        data.train.len(),
        data.val.len(),
        config.vocab_size,
        config.parameter_count()
    ));
    let mut trainer = Trainer::new(args, &config, device)?;
    let saved = trainer.run(&data, |model| {
        let options = SaveOptions { dtype: Some(args.save_dtype.into()), buffers: false };
        Ok(gpt2_loader::save(&args.out, model, Some(&tokenizer), options)?)
    })?;
    note(&format!(
        "validation loss {:.4} nats a token at step {} (a unigram model: {:.4}); saved in {}",
        saved.loss,
        saved.step,
        data.unigram_loss(config.vocab_size),
        args.out.display()
    ));
    Ok(ExitCode::SUCCESS)
}

fn config(args: &TrainArgs, tokenizer: &Tokenizer) -> anyhow::Result<Config> {
    let end = tokenizer.end_of_text();
    let config = Config {
        vocab_size: tokenizer.vocab_size(),
        n_positions: args.n_positions,
        n_embd: args.n_embd,
        n_layer: args.n_layer,
        n_head: args.n_head,
        // A narrow model with GPT-2's 0.02 begins with scores near 0 and takes long to leave uniform
        // attention: keep the scale that its weights give at GPT-2 small's width.
        initializer_range: 0.02 * (768.0 / args.n_embd as f64).sqrt(),
        // This trainer applies no dropout.
        resid_pdrop: 0.0,
        embd_pdrop: 0.0,
        attn_pdrop: 0.0,
        bos_token_id: end,
        eos_token_id: end.map(TokenIds::One),
        ..Config::gpt2()
    };
    config.validate()?;
    Ok(config)
}

/// The text as ids, its end held back.
struct Data {
    train: Vec<u32>,
    val: Vec<u32>,
}

impl Data {
    fn split(mut ids: Vec<u32>, val_fraction: f64, n_positions: usize) -> anyhow::Result<Self> {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a part of a length
        let train_len = ids.len() - (ids.len() as f64 * val_fraction) as usize;
        let val = ids.split_off(train_len);
        if ids.len() <= n_positions || val.len() <= n_positions {
            bail!(
                "the text is too short: {} tokens to learn and {} for validation, but each part needs more than \
                 --n-positions {n_positions}",
                ids.len(),
                val.len()
            );
        }
        Ok(Self { train: ids, val })
    }

    /// The validation loss of a model that knows only how often each token occurs in the training part
    /// (add-one smoothing): what context has to beat.
    fn unigram_loss(&self, vocab_size: usize) -> f64 {
        let mut counts = vec![1u64; vocab_size];
        for &id in &self.train {
            counts[id as usize] += 1;
        }
        let total = (self.train.len() + vocab_size) as f64;
        let nats = |id: &u32| -(counts[*id as usize] as f64 / total).ln();
        self.val.iter().map(nats).sum::<f64>() / self.val.len() as f64
    }
}

/// Inputs and the tokens that follow each, from windows that begin at `starts`: two tensors (B, T).
fn batch(ids: &[u32], starts: &[usize], t: usize, device: &Device) -> candle_core::Result<(Tensor, Tensor)> {
    let rows = |shift: usize| {
        let flat: Vec<u32> = starts.iter().flat_map(|s| &ids[s + shift..s + shift + t]).copied().collect();
        Tensor::from_vec(flat, (starts.len(), t), device)
    };
    Ok((rows(0)?, rows(1)?))
}

/// The best weights so far.
#[derive(Clone, Copy)]
struct Best {
    loss: f64,
    step: usize,
}

struct Trainer<'a> {
    args: &'a TrainArgs,
    model: Gpt2LMHeadModel,
    optimisers: [AdamW; 2],
    schedule: CosineSchedule,
    rng: ChaCha8Rng,
    batch: usize,
    steps: usize,
    device: Device,
}

impl<'a> Trainer<'a> {
    fn new(args: &'a TrainArgs, config: &Config, device: Device) -> anyhow::Result<Self> {
        let mut variables = VarMap::new();
        let vb = init::seeded_variables(args.run.seed, &variables, DType::F32, &device);
        let model = Gpt2LMHeadModel::load(vb, config)?;
        variables.set_one("wpe.weight", init::sinusoids(config, DType::F32, &device)?)?;
        let (decayed, plain) = decay_groups(&variables)?;
        let params = ParamsAdamW { lr: args.lr, beta2: 0.99, weight_decay: 0.0, ..ParamsAdamW::default() };
        let decaying = ParamsAdamW { weight_decay: args.weight_decay, ..params.clone() };
        Ok(Self {
            args,
            model,
            optimisers: [AdamW::new(decayed, decaying)?, AdamW::new(plain, params)?],
            schedule: CosineSchedule {
                peak: args.lr,
                floor: args.lr / 10.0,
                warmup: args.warmup as usize,
                total: args.steps as usize,
            },
            rng: ChaCha8Rng::seed_from_u64(args.run.seed),
            batch: args.batch.into(),
            steps: args.steps as usize,
            device,
        })
    }

    /// Trains until the last step or Ctrl-C, and hands every model that is the best so far to `save`.
    fn run(
        &mut self,
        data: &Data,
        mut save: impl FnMut(&Gpt2LMHeadModel) -> anyhow::Result<()>,
    ) -> anyhow::Result<Best> {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        // A second Ctrl-C, while the first is being served, ends the process at once.
        ctrlc::set_handler(move || {
            if flag.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
        })?;
        let bar = progress_bar(self.steps)?;
        let tokens_a_step = self.batch * self.args.n_positions;
        let mut best: Option<Best> = None;
        let mut val_loss = f64::NAN;
        for step in 0..self.steps {
            let loss = self.step(data, step)?;
            bar.inc(1);
            let speed = bar.per_sec() * tokens_a_step as f64;
            bar.set_message(format!("loss {loss:.3}, validation {val_loss:.3}, {speed:.0} tokens/s"));
            let stopped = stop.load(Ordering::SeqCst);
            let done = step + 1;
            if !(stopped || done % (self.args.eval_every as usize) == 0 || done == self.steps) {
                continue;
            }
            val_loss = self.validate(data)?;
            if !val_loss.is_finite() {
                bail!("the validation loss became {val_loss} after step {done}: try a lower --lr");
            }
            let better = best.is_none_or(|b| val_loss < b.loss);
            if better {
                save(&self.model)?;
                best = Some(Best { loss: val_loss, step: done });
            }
            let verdict = if better { "saved" } else { "not the best, not saved" };
            bar.suspend(|| {
                note(&format!(
                    "step {done}: loss {loss:.4}, validation {val_loss:.4} ({verdict}), {speed:.0} tokens/s"
                ));
            });
            if stopped {
                bar.suspend(|| note("stopped by Ctrl-C"));
                break;
            }
        }
        bar.finish_and_clear();
        best.context("no step was validated")
    }

    fn step(&mut self, data: &Data, step: usize) -> anyhow::Result<f32> {
        let t = self.args.n_positions;
        let starts: Vec<usize> =
            (0..self.batch).map(|_| self.rng.random_range(0..data.train.len() - t)).collect();
        let (inputs, targets) = batch(&data.train, &starts, t, &self.device)?;
        let loss = cross_entropy(&self.model.forward(&inputs, ForwardArgs::default())?.logits, &targets)?;
        let value = loss.to_scalar::<f32>()?;
        if !value.is_finite() {
            bail!("the loss became {value} at step {step}: try a lower --lr");
        }
        let gradients = loss.backward()?;
        for optimiser in &mut self.optimisers {
            optimiser.set_learning_rate(self.schedule.rate(step));
            optimiser.step(&gradients)?;
        }
        Ok(value)
    }

    /// The mean loss over the validation part, in windows side by side; what is shorter than one at its
    /// end is left out.
    fn validate(&self, data: &Data) -> anyhow::Result<f64> {
        let t = self.args.n_positions;
        let starts: Vec<usize> = (0..data.val.len() - t).step_by(t).collect();
        let mut sum = 0.0;
        for rows in starts.chunks(self.batch) {
            let (inputs, targets) = batch(&data.val, rows, t, &self.device)?;
            // The loss holds the graph back to every variable until it is dropped here.
            let logits = self.model.forward(&inputs, ForwardArgs::default())?.logits.detach();
            sum += f64::from(cross_entropy(&logits, &targets)?.to_scalar::<f32>()?) * rows.len() as f64;
        }
        Ok(sum / starts.len() as f64)
    }
}

fn progress_bar(steps: usize) -> anyhow::Result<ProgressBar> {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {eta} left")?;
    Ok(ProgressBar::new(steps as u64).with_style(style))
}
