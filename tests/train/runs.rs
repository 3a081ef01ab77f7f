//! A run as a whole: what it refuses, what it reports, the steps that it takes, and the files that it writes.

use crate::common::{Result, test_device};
use candle_core::{D, DType, Device, Tensor};
use candle_nn::VarMap;
use gpt2_model::linear::BlockFormat;
use gpt2_model::lora::LoraOptions;
use gpt2_model::training::{Training, TrainingBatch, add_gradients};
use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, LmHead, init};
use gpt2_parallel::Alone;
use gpt2_train::{
    AdamW, AdamWParams, Dataset, Document, LearningRate, METRICS_HEADER, Metrics, MetricsFormat, Schedule,
    StepReport, TrainError, TrainOptions, Trainer, TrainingEvent, Validation,
};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

fn config() -> Config {
    Config {
        vocab_size: 9,
        n_positions: 8,
        n_embd: 32,
        n_layer: 1,
        n_head: 2,
        initializer_range: 0.3,
        attn_pdrop: 0.0,
        resid_pdrop: 0.0,
        embd_pdrop: 0.0,
        ..Config::gpt2()
    }
}

fn data() -> gpt2_train::Result<Dataset> {
    Dataset::split((0..200).map(|i| i * i % 9).collect(), 0.3)
}

fn options(steps: u32) -> TrainOptions {
    let mut options = TrainOptions::new(steps);
    (options.batch, options.eval_every, options.lr, options.warmup) = (2, 2, 0.02, 2);
    options
}

fn frozen(seed: u64) -> Result<Gpt2LMHeadModel> {
    Ok(Gpt2LMHeadModel::load(init::seeded(seed, DType::F32, &test_device()), &config())?)
}

fn begun(steps: u32) -> gpt2_train::Result<Trainer> {
    Trainer::new(&config(), data()?, options(steps), &test_device())
}

fn bits(x: &Tensor) -> Result<Vec<u32>> {
    Ok(x.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
}

/// Whether the run reached its last step, and what it reported until `stop`: each step, and whether it is a validation.
fn heard(trainer: &mut Trainer, stop: Option<(u64, bool)>) -> Result<(bool, Vec<(u64, bool)>)> {
    let mut events = vec![];
    let is_over = trainer.run(|_, event| {
        let event = match event {
            TrainingEvent::Stepped(report) => (report.step, false),
            TrainingEvent::Validated(report, _) => (report.step, true),
            _ => return Err(TrainError::other("another event")),
        };
        events.push(event);
        Ok(if stop == Some(event) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok((is_over, events))
}

#[test]
fn a_run_reports_every_step_and_stops_where_it_is_told() -> Result {
    let all = [1, 2, 3, 4, 5].into_iter().flat_map(|step| {
        // Every second step is validated, and the last.
        [(step, false)].into_iter().chain((step != 1 && step != 3).then_some((step, true)))
    });
    let all: Vec<(u64, bool)> = all.collect();
    assert_eq!(heard(&mut begun(5)?, None)?, (true, all.clone()));
    for (at, stop) in all.iter().enumerate() {
        let mut trainer = begun(5)?;
        let (is_over, events) = heard(&mut trainer, Some(*stop))?;
        assert_eq!((is_over, &events[..]), (stop.0 == 5, &all[..=at]), "{stop:?}");
        // A run that was stopped before a validation goes on with the next step.
        let rest: Vec<_> = all.iter().copied().filter(|event| event.0 > stop.0).collect();
        assert_eq!(heard(&mut trainer, None)?, (true, rest), "{stop:?}");
        assert_eq!(trainer.history().training().len(), 5);
    }
    Ok(())
}

/// A text of one token, of which every batch is the same: its steps are those of a loop around the optimizer.
#[test]
fn a_run_takes_the_steps_of_the_optimizer_at_the_rates_of_the_schedule() -> Result {
    let mut last = vec![];
    for clip in [0.0, 1e-3, 1e9] {
        let mut options = options(5);
        (options.window, options.accumulate, options.clip, options.seed) = (Some(4), 2, clip, 3);
        let data = Dataset::split(vec![3; 60], 0.2)?;
        let mut trainer = Trainer::from_model(&frozen(7)?, data, options)?;
        let mut reports: Vec<StepReport> = vec![];
        trainer.run(|_, event| {
            if let TrainingEvent::Stepped(report) = event {
                reports.push(report);
            }
            Ok(ControlFlow::Continue(()))
        })?;

        let vb = init::seeded_variables(7, &VarMap::new(), DType::F32, &test_device());
        let model = Gpt2LMHeadModel::load(vb, &config())?;
        let variables = model.named_variables()?;
        let params = AdamWParams {
            beta2: 0.99,
            weight_decay: 0.1,
            max_grad_norm: (clip > 0.0).then_some(clip),
            ..AdamWParams::default()
        };
        let mut optimizer = AdamW::new(variables.clone(), params)?;
        let schedule = LearningRate::new(Schedule::Cosine, 0.02, 2, 5);
        let threes = Tensor::full(3u32, (2, 4), &test_device())?;
        for (step, report) in reports.iter().enumerate() {
            let mut gradients = None;
            let mut mean = 0.0;
            for batch in 0..2 {
                let training = Some(Training { seed: 3, step: 2 * step as u64 + batch });
                let args = ForwardArgs { training, ..Default::default() };
                let loss = model.loss(&TrainingBatch::new(threes.clone(), threes.clone()), args)?;
                mean += loss.to_scalar::<f32>()? / 2.0;
                let more = loss.backward()?;
                gradients = Some(match gradients {
                    Some(mut sum) => {
                        add_gradients(&mut sum, more, &variables)?;
                        sum
                    }
                    None => more,
                });
            }
            let rate = schedule.rate(step);
            let norm = optimizer.step(&gradients.ok_or("two batches")?, rate, 0.5)?;
            assert_eq!(report.grad_norm.to_bits(), norm.to_bits(), "clip {clip}, step {step}");
            assert_eq!((report.lr.to_bits(), report.loss.to_bits()), (rate.to_bits(), mean.to_bits()));
        }
        let mut all = vec![];
        for ((name, var), (same, trained)) in variables.iter().zip(trainer.model().named_variables()?) {
            assert_eq!((name, bits(var)?), (&same, bits(&trained)?), "clip {clip}");
            all.extend(bits(&trained)?);
        }
        assert_eq!(reports.len(), 5);
        last.push(all);
    }
    assert!(last[0] == last[2] && last[0] != last[1], "0 does not clip, and 1e-3 does");
    Ok(())
}

#[test]
fn a_run_begins_with_sinusoids_or_with_the_weights_of_the_model() -> Result {
    let new = begun(1)?;
    let model = frozen(7)?;
    let positions = init::sinusoids(&config(), DType::F32, &test_device())?;
    assert_eq!(bits(&new.model().transformer.wpe)?, bits(&positions)?);
    let mut tuned = Trainer::from_model(&model, data()?, options(2))?;
    let before = model.fingerprint()?;
    assert_eq!(tuned.model().fingerprint()?, before);
    heard(&mut tuned, None)?;
    assert!(tuned.model().fingerprint()? != before && model.fingerprint()? == before);
    assert!(tuned.trained_adapter().is_none());
    assert_eq!((tuned.window(), tuned.data(), tuned.steps()), (8, &data()?, 2));
    Ok(())
}

/// A head of its own makes the model untied, whatever the config says, and the state says what the config said.
#[test]
fn a_state_holds_the_config_as_it_was_given() -> Result {
    let mut model = frozen(7)?;
    model.lm_head = LmHead::new((model.transformer.wte.weight()? * 2.0)?)?;
    let mut options = options(1);
    options.dropout = Some(0.25);
    let trainer = Trainer::from_model(&model, data()?, options)?;
    assert!(model.config().tie_word_embeddings && !trainer.model().is_tied());
    let settings = serde_json::to_value(trainer.settings())?;
    assert_eq!(settings["config"]["tie_word_embeddings"], true);
    for rate in ["attn_pdrop", "resid_pdrop", "embd_pdrop"] {
        assert_eq!(settings["config"][rate], 0.25, "{rate}");
    }
    assert_eq!(settings["window"], 8);
    Ok(())
}

fn documents() -> gpt2_train::Result<Vec<Document>> {
    let of = |(i, len, from): (u32, u32, usize)| {
        Document::new((0..len).map(|k| (i * 5 + k * k + k / 2) % 9).collect(), from)
    };
    [(1, 5, 2), (2, 3, 1), (3, 9, 4), (4, 2, 1), (5, 6, 5), (6, 6, 2), (7, 4, 1), (8, 9, 7)]
        .map(of)
        .into_iter()
        .collect()
}

/// Each token of a completion counts once, whatever batch its document is in.
#[test]
fn the_validation_loss_of_documents_is_the_mean_over_what_is_learned() -> Result {
    let all = documents()?;
    for batch in [1, 2, 3, 8] {
        let mut options = options(2);
        options.batch = batch;
        let mut trainer =
            Trainer::new(&config(), Dataset::from_documents(all.clone(), 0.5)?, options, &test_device())?;
        let mut losses = vec![];
        for document in &all[4..] {
            let ids = document.ids();
            let input = trainer.model().ids(&ids[..ids.len() - 1])?;
            let logits = trainer.model().forward(&input, ForwardArgs::default())?.logits.squeeze(0)?;
            let logs = candle_nn::ops::log_softmax(&logits, D::Minus1)?.to_vec2::<f32>()?;
            let first = ids.len() - document.learned().len();
            losses.extend((first..ids.len()).map(|i| -f64::from(logs[i - 1][ids[i] as usize])));
        }
        assert_eq!(losses.len(), 1 + 4 + 3 + 2);
        let mean = losses.iter().sum::<f64>() / losses.len() as f64;
        let loss = trainer.validation_loss()?;
        assert!((loss - mean).abs() < 1e-5, "{batch}: {loss}, not {mean}");
        assert!(heard(&mut trainer, None)?.0);
    }
    Ok(())
}

#[test]
fn what_no_run_can_be_made_of_is_refused_with_the_reason() -> Result {
    let refused = |made: gpt2_train::Result<Trainer>, part: &str| {
        let error = made.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    };
    let with = |change: fn(&mut TrainOptions)| {
        let mut options = options(1);
        change(&mut options);
        options
    };
    let model = frozen(7)?;
    let from = |data, options| Trainer::from_model(&model, data, options);
    let in_documents = || Dataset::from_documents(documents()?, 0.5);
    refused(from(in_documents()?, with(|o| o.repeat_fraction = 0.5)), "repeat_fraction is 0.5, expected 0");
    assert!(from(in_documents()?, options(1)).is_ok());
    assert!(from(data()?, with(|o| o.repeat_fraction = 0.5)).is_ok());
    refused(from(data()?, with(|o| o.window = Some(9))), "the window is 9 tokens, expected 1 to");
    refused(from(data()?, with(|o| o.window = Some(0))), "the window is 0 tokens");
    let beyond = Dataset::split((0..200).map(|i| i % 10).collect(), 0.3)?;
    refused(from(beyond, options(1)), "gives token 9, and the model has 9");
    let quantized = model.clone().quantize(BlockFormat::Q8_0)?;
    refused(Trainer::from_model(&quantized, data()?, options(1)), "wte.weight is quantized");

    let lora = LoraOptions::new(2);
    let adapter = |model: &Gpt2LMHeadModel, options| Trainer::adapter(model, &lora, data()?, options);
    assert!(adapter(&model, options(1)).is_ok());
    let half = Gpt2LMHeadModel::load(init::seeded(7, DType::BF16, &test_device()), &config())?;
    refused(adapter(&half, options(1)), "a frozen model in f32");
    refused(adapter(&model, with(|o| o.steps = 0)), "steps is 0");
    refused(adapter(&model, with(|o| o.window = Some(9))), "the window is 9 tokens");
    let mut stepped = begun(1)?;
    heard(&mut stepped, None)?;
    refused(stepped.in_group(Arc::new(Alone)), "join the group before the first step");
    Ok(())
}

type Tensors = HashMap<String, Tensor>;

/// Changes a state, and returns a trainer's answer to it.
fn changed(path: &Path, change: impl FnOnce(&mut Tensors)) -> Result<gpt2_train::Result<()>> {
    let mut tensors = candle_core::safetensors::load(path, &Device::Cpu)?;
    change(&mut tensors);
    let other = path.with_extension("changed");
    candle_core::safetensors::save(&tensors, &other)?;
    Ok(begun(4)?.resume(&other))
}

#[test]
fn a_state_that_is_damaged_or_of_another_run_is_refused_by_its_part() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    let mut trainer = begun(4)?;
    heard(&mut trainer, Some((3, false)))?;
    trainer.save_state(&path)?;
    changed(&path, |_| ())??;
    let nowhere = begun(4)?.resume(&folder.path().join("nowhere"));
    assert!(matches!(nowhere, Err(TrainError::Io { .. })), "{nowhere:?}");
    let is_folder = begun(4)?.resume(folder.path());
    assert!(matches!(is_folder, Err(TrainError::Io { .. })), "{is_folder:?}");
    let text = folder.path().join("text");
    std::fs::write(&text, "a text")?;
    let error = begun(4)?.resume(&text).expect_err("a text");
    assert!(matches!(error, TrainError::NotAState { .. }), "{error}");

    let parts = ["settings", "steps", "p.wte.weight", "m.ln_f.bias", "v.ln_f.bias", "history.training"];
    for name in parts.into_iter().chain(["history.validation", "history.validation_steps"]) {
        let error = changed(&path, |tensors| drop(tensors.remove(name)))?.expect_err(name);
        assert!(matches!(error, TrainError::DamagedState { .. }), "{error}");
        assert!(error.to_string().ends_with(&format!("it lacks {name}")), "{error}");
    }
    let zeros = |len: usize, dtype| Tensor::zeros(len, dtype, &Device::Cpu);
    for (name, value, part) in [
        ("m.ln_f.bias", zeros(31, DType::F32)?, "m.ln_f.bias is [31] F32, expected [32] F32"),
        ("v.ln_f.bias", zeros(32, DType::F64)?, "v.ln_f.bias is [32] F64, expected [32] F32"),
        ("steps", zeros(2, DType::U32)?, "its number of steps is damaged"),
        ("steps", Tensor::new(&[2u32], &Device::Cpu)?, "its losses are damaged: 3 of 2 steps"),
        ("history.validation", zeros(2, DType::F64)?, "its losses are damaged"),
    ] {
        let error = changed(&path, |tensors| drop(tensors.insert(name.into(), value)))?.expect_err(part);
        assert!(error.to_string().contains(part), "{error}");
    }
    Ok(())
}

#[test]
fn a_setting_that_an_older_state_does_not_name_is_the_default() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    begun(4)?.save_state(&path)?;
    let with = |change: fn(&mut serde_json::Map<String, serde_json::Value>)| {
        changed(&path, |tensors| {
            let text = tensors["settings"].to_vec1::<u8>().expect("bytes");
            let mut settings = serde_json::from_slice(&text).expect("an object");
            change(&mut settings);
            let text = serde_json::to_vec(&settings).expect("an object");
            tensors.insert("settings".into(), Tensor::new(text, &Device::Cpu).expect("bytes"));
        })
    };
    with(|settings| {
        for name in ["repeat_fraction", "lora", "optimizer", "schedule", "muon_lr", "train_dtype"] {
            assert!(settings.remove(name).is_some(), "{name}");
        }
    })??;
    let error = with(|settings| drop(settings.remove("recompute")))?.expect_err("it was none").to_string();
    assert!(error.starts_with("recompute was null and is false"), "{error}");
    let error = with(|settings| drop(settings.insert("lr".into(), 0.5.into())))?.expect_err("another rate");
    assert!(error.to_string().starts_with("lr was 0.5 and is 0.02;"), "{error}");
    Ok(())
}

#[test]
fn an_adapter_resumes_on_its_own_model_alone() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    let of = |model: &Gpt2LMHeadModel| Trainer::adapter(model, &LoraOptions::new(2), data()?, options(4));
    let model = frozen(7)?;
    let other = frozen(8)?;
    of(&model)?.save_state(&path)?;
    of(&model)?.resume(&path)?;
    let error = of(&other)?.resume(&path).expect_err("another model").to_string();
    assert!(error.starts_with("frozen_model_fingerprint was "), "{error}");
    Ok(())
}

/// The lines of a run of four steps whose second and fourth are validated.
#[test]
fn metrics_have_a_line_a_step_and_go_on_after_those_that_are_done() -> Result {
    let mut steps: Vec<(StepReport, Option<Validation>)> = vec![];
    begun(4)?.run(|_, event| {
        match event {
            TrainingEvent::Stepped(report) => steps.push((report, None)),
            TrainingEvent::Validated(_, validation) => {
                if let Some(last) = steps.last_mut() {
                    last.1 = Some(validation);
                }
            }
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let line = |format, i: usize| {
        let (StepReport { step, loss, lr, grad_norm, .. }, validation) = steps[i];
        let validation = validation.map(|validation| validation.loss.to_string());
        if format == MetricsFormat::Csv {
            return format!("{step},{loss},{},{lr},{grad_norm}", validation.unwrap_or_default());
        }
        let validation = validation.unwrap_or_else(|| "null".into());
        let fields = [
            ("step", step.to_string()),
            ("loss", loss.to_string()),
            ("val_loss", validation),
            ("lr", lr.to_string()),
            ("grad_norm", grad_norm.to_string()),
        ];
        let fields = fields.map(|(name, value)| format!("\"{name}\":{value}"));
        format!("{{{}}}", fields.join(","))
    };
    let folder = tempfile::tempdir()?;
    for (name, format, header) in
        [("a.csv", MetricsFormat::Csv, Some(METRICS_HEADER)), ("a.jsonl", MetricsFormat::JsonLines, None)]
    {
        let path = folder.path().join(name);
        assert_eq!(MetricsFormat::from_path(&path), Some(format));
        let lines = |count: usize| -> Vec<String> {
            header.map(str::to_owned).into_iter().chain((0..count).map(|i| line(format, i))).collect()
        };
        let read = || -> Result<Vec<String>> {
            Ok(std::fs::read_to_string(&path)?.lines().map(str::to_owned).collect())
        };
        let add = |metrics: &mut Metrics, range: std::ops::Range<usize>| -> Result {
            for (report, validation) in &steps[range] {
                metrics.add(*report, *validation)?;
            }
            Ok(())
        };
        let mut metrics = Metrics::open(&path, format, 0)?;
        assert!(!path.exists(), "before the first line");
        add(&mut metrics, 0..4)?;
        assert_eq!(read()?, lines(4), "{name}");
        // After two steps: the lines of the others stay until the next one, and then go.
        let mut metrics = Metrics::open(&path, format, 2)?;
        assert_eq!(read()?, lines(4), "{name}");
        add(&mut metrics, 2..3)?;
        assert_eq!(read()?, lines(3), "{name}");
        add(&mut metrics, 3..4)?;
        assert_eq!(read()?, lines(4), "{name}");
        // A new run replaces what is there, whatever it is; one that goes on must read it.
        std::fs::write(&path, [0xff, 0xfe, b'\n'])?;
        let error = Metrics::open(&path, format, 1).expect_err("no text");
        assert!(matches!(error, TrainError::Metrics { .. }), "{error}");
        add(&mut Metrics::open(&path, format, 0)?, 0..1)?;
        assert_eq!(read()?, lines(1), "{name}");
        std::fs::remove_file(&path)?;
        add(&mut Metrics::open(&path, format, 1)?, 1..2)?;
        assert_eq!(read()?.last(), Some(&line(format, 1)), "{name}");
    }
    assert_eq!(MetricsFormat::from_path(Path::new("a.txt")), None);
    Ok(())
}

/// The speed is that of all batches of a step.
#[test]
fn tokens_per_second_count_every_batch_of_a_step() -> Result {
    let mut options = options(4);
    options.accumulate = 3;
    let mut trainer = Trainer::new(&config(), data()?, options, &test_device())?;
    let begun = std::time::Instant::now();
    trainer.run(|_, event| {
        if let TrainingEvent::Stepped(step) = event {
            // Two rows of 8 tokens, three times; the step took no longer than all until here.
            let least = 48.0 / begun.elapsed().as_secs_f64();
            assert!(step.tokens_per_s >= least, "{} for {least}", step.tokens_per_s);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(())
}

#[test]
fn the_estimate_counts_weights_and_logits() -> Result {
    let bytes = |vocab_size| -> Result<u64> {
        let config = Config { vocab_size, ..config() };
        Ok(Trainer::new(&config, data()?, options(100), &test_device())?.estimate()?.bytes)
    };
    // A weight has a gradient and two moments; the logits of 16 positions exist at a time, and their copy for a product.
    let more = 1000 * (4 * 32 + 2 * 16) * size_of::<f32>() as u64;
    assert_eq!(bytes(1009)? - bytes(9)?, more);
    Ok(())
}
