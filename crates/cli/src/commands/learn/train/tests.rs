//! A run only resumes with the settings that it had.

use super::*;
use candle_core::Device;
use clap::{Args, FromArgMatches};
use gpt2_train::{Dataset, TrainOptions};

/// The parsed arguments of `gpt2 train` with `options`.
fn train_args(options: &[&str]) -> anyhow::Result<TrainArgs> {
    let args = [&["train", "--text", "text", "--out", "out"], options].concat();
    let matches = TrainArgs::augment_args(clap::Command::new("train")).try_get_matches_from(args)?;
    Ok(TrainArgs::from_arg_matches(&matches)?)
}

/// The trainer's options of these flags, for a model with this config.
fn options(flags: &[&str], config: &Config, data: &Dataset) -> anyhow::Result<TrainOptions> {
    let args = train_args(flags)?;
    args.options().for_trainer(args.model.as_deref(), config, data, args.run.seed, Spelling::Flags)
}

/// A run of a tiny model over a text of `tokens` tokens.
fn trainer(flags: &[&str], n_embd: usize, tokens: usize) -> anyhow::Result<Trainer> {
    let config = Config { vocab_size: 1, n_positions: 16, n_embd, n_layer: 1, n_head: 1, ..Config::gpt2() };
    let data = Dataset::split(vec![0; tokens], 0.5)?;
    let options = options(flags, &config, &data)?;
    Ok(Trainer::new(&config, data, options, &Device::Cpu)?)
}

#[test]
fn every_setting_that_changed_is_refused_by_its_name() -> anyhow::Result<()> {
    let out = tempfile::tempdir()?;
    let state = out.path().join(files::STATE);
    trainer(&[], 4, 40)?.save_state(&state)?;
    trainer(&[], 4, 40)?.resume(&state)?;
    let mut others = vec![("config", trainer(&[], 6, 40)?), ("data", trainer(&[], 4, 44)?)];
    for (name, flags) in [
        ("window", &["--window", "15"][..]),
        ("model", &["--model", "gpt2"]),
        ("recompute", &["--recompute"]),
        ("batch", &["--batch", "3"]),
        ("accumulate", &["--accumulate", "3"]),
        ("steps", &["--steps", "3"]),
        ("lr", &["--lr", "0.3"]),
        ("optimizer", &["--optimizer", "muon"]),
        ("schedule", &["--schedule", "linear"]),
        ("steps", &["--epochs", "7.5"]),
        ("warmup", &["--warmup", "3"]),
        ("weight_decay", &["--weight-decay", "0.3"]),
        ("clip", &["--clip", "0.3"]),
        ("eval_every", &["--eval-every", "3"]),
        ("seed", &["--seed", "3"]),
    ] {
        others.push((name, trainer(flags, 4, 40)?));
    }
    others.retain_mut(|(name, other)| {
        let refused = other.resume(&state).err().map(worded);
        !refused.is_some_and(|e| e.to_string().starts_with(&format!("--resume: {name} was ")))
    });
    let accepted: Vec<_> = others.into_iter().map(|(name, _)| name).collect();
    assert!(accepted.is_empty(), "not refused by their names: {accepted:?}");
    Ok(())
}
