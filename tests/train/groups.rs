//! A run gives the same bytes on any number of ranks.

use crate::common::{Result, test_device};
use crate::threads::on_threads;
use candle_core::DType;
use gpt2_model::{Config, Gpt2LMHeadModel, init};
use gpt2_parallel::Group;
use gpt2_train::{Dataset, Optimizer, TrainDType, TrainError, TrainOptions, Trainer, TrainingEvent};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Everything that a run leaves behind.
#[derive(Debug, Clone, PartialEq)]
struct Outcome {
    /// The bits of each weight, by name.
    weights: Vec<(String, Vec<u32>)>,
    losses: Vec<u32>,
    validation: Vec<(u64, u64)>,
    norms: Vec<u64>,
}

fn config() -> Config {
    Config {
        // Its embedding is longer than the chunks at which shares are cut.
        vocab_size: 2000,
        n_positions: 8,
        n_embd: 16,
        n_layer: 2,
        n_head: 2,
        attn_pdrop: 0.1,
        resid_pdrop: 0.1,
        embd_pdrop: 0.1,
        ..Config::gpt2()
    }
}

/// Its matrices are longer than those chunks, so that shares end within them.
fn config_of(optimizer: Optimizer) -> Config {
    match optimizer {
        Optimizer::AdamW => config(),
        Optimizer::Muon => Config { vocab_size: 40, n_embd: 128, ..config() },
    }
}

fn data(tokens: u32) -> gpt2_train::Result<Dataset> {
    Dataset::split((0..tokens).map(|i| (i * i + i / 3) % 32).collect(), 0.3)
}

fn options(accumulate: u16, recompute: bool) -> TrainOptions {
    options_of(Optimizer::AdamW, accumulate, recompute)
}

fn options_of(optimizer: Optimizer, accumulate: u16, recompute: bool) -> TrainOptions {
    let mut options = TrainOptions::new(4);
    (options.batch, options.accumulate, options.recompute) = (2, accumulate, recompute);
    options.optimizer = optimizer;
    (options.lr, options.warmup, options.eval_every, options.clip) = (1e-2, 1, 2, 0.5);
    options
}

/// Steps with `trainer` until `stop`, where it saves its state.
fn ran(mut trainer: Trainer, stop: Option<(u64, &Path)>) -> gpt2_train::Result<Outcome> {
    let mut norms = vec![];
    trainer.run(|trainer, event| {
        if let TrainingEvent::Stepped(step) = event {
            norms.push(step.grad_norm.to_bits());
            if let Some((last, state)) = stop
                && step.step == last
            {
                trainer.save_state(state)?;
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let variables = trainer.model().named_variables()?;
    let weights = variables.into_iter().map(|(name, var)| Ok((name, bits(var.flatten_all()?.to_vec1()?))));
    let history = trainer.history();
    Ok(Outcome {
        weights: weights.collect::<candle_core::Result<_>>()?,
        losses: bits(history.training().to_vec()),
        validation: history.validation().iter().map(|(step, loss)| (*step, loss.to_bits())).collect(),
        norms,
    })
}

fn trainer(options: &TrainOptions) -> gpt2_train::Result<Trainer> {
    Trainer::new(&config_of(options.optimizer), data(150)?, options.clone(), &test_device())
}

#[test]
fn any_number_of_ranks_gives_the_bytes_of_one_process() -> Result {
    // 5 batches a step are shared out unevenly among 2, 3 and 4 ranks; 6 ranks are more than there are batches.
    let mut runs = vec![
        options_of(Optimizer::AdamW, 5, false),
        options_of(Optimizer::AdamW, 5, true),
        options_of(Optimizer::Muon, 5, false),
    ];
    if test_device().is_cpu() && candle_fused::Isa::current().has_bf16_products() {
        let mut rounded = options_of(Optimizer::AdamW, 5, false);
        rounded.train_dtype = TrainDType::Bf16;
        runs.push(rounded);
    }
    for options in runs {
        let alone = ran(trainer(&options)?, None)?;
        assert!(alone.losses.len() == 4 && alone.validation.len() == 2);
        for ranks in [1, 2, 3, 4, 6] {
            for outcome in on_threads(ranks, |group| ran(trainer(&options)?.in_group(group)?, None)) {
                assert!(outcome? == alone, "{ranks} ranks, {options:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() -> Result {
    for optimizer in [Optimizer::AdamW, Optimizer::Muon] {
        goes_on_with_another_number_of_ranks(optimizer)?;
    }
    Ok(())
}

fn goes_on_with_another_number_of_ranks(optimizer: Optimizer) -> Result {
    let options = options_of(optimizer, 3, false);
    let whole = ran(trainer(&options)?, None)?;
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    ran(trainer(&options)?, Some((3, &path("1"))))?;
    for (before, after) in [(1, 3), (2, 1), (3, 2), (4, 4)] {
        let state = path(&before.to_string());
        for stopped in on_threads(before, |group| ran(trainer(&options)?.in_group(group)?, Some((3, &state))))
        {
            assert_eq!(stopped?.losses, whole.losses[..3]);
        }
        assert!(std::fs::read(&state)? == std::fs::read(path("1"))?, "the state of {before} ranks");
        for outcome in on_threads(after, |group| {
            let mut trainer = trainer(&options)?.in_group(group)?;
            trainer.resume(&state)?;
            ran(trainer, None)
        }) {
            let outcome = outcome?;
            assert!(outcome.weights == whole.weights, "from {before} ranks to {after}");
            assert!(outcome.losses == whole.losses && outcome.validation == whole.validation);
        }
    }
    Ok(())
}

/// The ranks exchange such a model in two stretches.
#[test]
fn a_model_larger_than_one_exchange_gives_the_bytes_of_one_process() -> Result {
    let config = Config { vocab_size: 420_000, n_layer: 1, ..config() };
    let mut options = options(3, false);
    (options.steps, options.eval_every) = (2, 2);
    let begun = || Trainer::new(&config, data(150)?, options.clone(), &test_device());
    let whole = ran(begun()?, None)?;
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    for stopped in on_threads(3, |group| ran(begun()?.in_group(group)?, Some((1, &state)))) {
        assert_eq!(stopped?.norms, whole.norms[..1]);
    }
    for outcome in on_threads(2, |group| {
        let mut trainer = begun()?.in_group(group)?;
        trainer.resume(&state)?;
        ran(trainer, None)
    }) {
        let outcome = outcome?;
        assert!(outcome.weights == whole.weights && outcome.losses == whole.losses);
        assert_eq!(outcome.norms, whole.norms[1..]);
    }
    Ok(())
}

/// Every rank hears which rank differs, and in what.
#[test]
fn a_rank_with_another_run_is_named() -> Result {
    type Other = fn(TrainOptions) -> gpt2_train::Result<Trainer>;
    let others: [(&str, Other); 4] = [
        ("lr than rank 0: 0.02, not 0.01", |mut options| {
            options.lr = 0.02;
            trainer(&options)
        }),
        ("training text (by its fingerprint) than rank 0: ", |options| {
            Trainer::new(&config(), data(151)?, options, &test_device())
        }),
        ("config.n_head than rank 0: 4, not 2", |options| {
            let config = Config { n_head: 4, ..config() };
            Trainer::new(&config, data(150)?, options, &test_device())
        }),
        ("set of weights (by its fingerprint) than rank 0: ", |options| {
            let model = Gpt2LMHeadModel::load(init::seeded(9, DType::F32, &test_device()), &config())?;
            Trainer::from_model(&model, data(150)?, options)
        }),
    ];
    for (difference, other) in others {
        let join = |group: Arc<dyn Group>| {
            let options = options(2, false);
            let trainer = if group.rank() == 1 { other(options)? } else { trainer(&options)? };
            trainer.in_group(group)
        };
        for refused in on_threads(3, join) {
            let error = refused.err().ok_or("rank 1 differs")?.to_string();
            assert!(error.starts_with(&format!("rank 1 has another {difference}")), "{error}");
        }
    }
    Ok(())
}

/// A loss that one rank finds not finite ends the run on all.
#[test]
fn a_loss_that_is_not_finite_stops_every_rank() {
    let mut options = options(3, false);
    (options.lr, options.clip, options.warmup) = (1e30, 0.0, 0);
    for outcome in on_threads(3, |group| ran(trainer(&options)?.in_group(group)?, None)) {
        let stopped = matches!(outcome, Err(TrainError::Loss { .. } | TrainError::Step { .. }));
        assert!(stopped || matches!(outcome, Err(TrainError::ValidationLoss { .. })), "{outcome:?}");
    }
}
