//! `gpt2 train`: trains a new GPT-2 on a text file, or fine-tunes an existing one.

mod args;
mod files;
mod progress;
#[cfg(test)]
mod tests;
mod wording;

pub(crate) use args::TrainArgs;

use crate::model::args::files as model_files;
use crate::model::hub;
use crate::output::terminal::TERMINAL;
use crate::output::{self, is_quiet, note};
use crate::process::parallel;
use anyhow::{anyhow, bail};
use candle_core::{DType, Device};
use gpt2_engine::open::{checkpoint, explain_not_finite, open_tokenizer, quantized};
use gpt2_engine::studies::learn::train::{Options, Start, TrainingData};
use gpt2_engine::texts::{Content, folder_text, read_file, read_ids};
use gpt2_engine::{DEMO_NAME, Spelling};
use gpt2_files::folder::OwnFolder;
use gpt2_loader::{Checkpoint, Files, LoadError, Tokenizer, check_savable};
use gpt2_model::{Config, Gpt2LMHeadModel};
use gpt2_parallel::Group;
use gpt2_train::{TrainError, Trainer};
use gpt2_view::visible_text;
use indicatif::{HumanBytes, HumanDuration};
use progress::{BytesOfTokens, Progress};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use wording::{unsaved, worded};

/// The longest text in bytes. Tokenizing it takes about a hundred times as much memory.
const LONGEST_TEXT: u64 = 1 << 28;

pub(crate) fn run(args: &TrainArgs) -> anyhow::Result<ExitCode> {
    parallel::run(&args.parallel, args.hub.timeout, |group| train(args, group))
}

fn train(args: &TrainArgs, group: &Arc<dyn Group>) -> anyhow::Result<ExitCode> {
    // Rank 0 alone writes.
    let writes = group.rank() == 0;
    let cpu_only = args.lora.quantize.map(|_| "quantize");
    let device = args.run.open_with(cpu_only.as_slice())?;
    let lessons = lessons(args)?;
    let validation =
        args.val_text.as_deref().map(|path| one_text(args, "the validation text", path)).transpose()?;
    if args.model.is_none() {
        hub::no_revision(&args.hub, "a new model")?;
    }
    if writes {
        files::check(args, None)?;
    }
    let model = args.model.as_ref().map(|model| model_files(Some(model), &args.hub)).transpose()?;
    if writes {
        files::check(args, model.as_ref())?;
    }

    let options = args.options();
    let (config, tokenizer, checkpoint) = begin(args, &options, &lessons, model.as_ref())?;
    let tokenizer = tokenizer.as_ref();
    let data =
        lessons.dataset(validation.as_ref(), tokenizer, args.val_fraction, &TERMINAL).map_err(reworded)?;
    let of_trainer = options
        .for_trainer(args.model.as_deref(), &config, &data, args.run.seed, Spelling::Flags)
        .map_err(reworded)?;
    let window = of_trainer.window_for(config.n_positions).map_err(worded)?;
    data.check(window, config.vocab_size).map_err(worded)?;
    // The trainer has weights of its own, so that those that were loaded are let go.
    let trainer = {
        let base = match &checkpoint {
            Some(checkpoint) if args.lora.rank.is_some() => Some(base(args, checkpoint, &device)?),
            Some(checkpoint) => Some(checkpoint.load_model(DType::F32, &device)?),
            None => None,
        };
        let start = base.as_ref().map_or(Start::New(&config, &device), Start::Model);
        options.trainer(start, data, of_trainer)
    };
    let mut trainer = trainer.and_then(|trainer| trainer.in_group(Arc::clone(group))).map_err(worded)?;
    // From here on, every rank has all that it needs: one that fails before ends the others at once, and must leave no folder.
    let _folder = writes.then(|| OwnFolder::make(&args.out)).transpose()?;
    note_sizes(&trainer, config.vocab_size)?;
    if args.resume {
        trainer.resume(&args.out.join(files::STATE)).map_err(worded)?;
        note(&format!("going on after step {}", trainer.steps()));
    }
    if trainer.trained_adapter().is_none() {
        let damaged = "the weights are damaged, and cannot be saved; fetch them again";
        check_savable(trainer.model(), args.save_dtype).map_err(|error| unsaved(error, damaged))?;
    }
    let mut progress = Progress::new(args, tokenizer, &trainer)?;
    if writes && !is_quiet() {
        note_estimate(&trainer);
    }
    let ran = trainer.run(|trainer, event| progress.hear(trainer, event).map_err(TrainError::other));
    let finished = ran.map_err(|error| match &error {
        // If the model to fine-tune is broken, its first pass shows it.
        TrainError::Loss { step: 0, inputs, .. } if args.model.is_some() => {
            anyhow!("{}", explain_not_finite(trainer.model(), inputs, None, Spelling::Flags))
        }
        _ => worded(error),
    })?;
    TERMINAL.clear();
    if !writes {
        return Ok(ExitCode::SUCCESS);
    }
    progress.draw(&trainer);
    if finished {
        // A finished run cannot resume, so it needs no state.
        let _ = std::fs::remove_file(args.out.join(files::STATE));
    }
    print(args, &trainer, config.vocab_size, &progress.bytes)?;
    note(&format!("next: {}", next(args, &lessons)));
    Ok(if finished { ExitCode::SUCCESS } else { ExitCode::from(progress.stop.code()) })
}

/// An error that may be one of training, in this command's words.
fn reworded(error: anyhow::Error) -> anyhow::Error {
    error.downcast::<TrainError>().map_or_else(|other| other, worded)
}

/// Notes the sizes of the data and of the model.
fn note_sizes(trainer: &Trainer, vocab_size: usize) -> anyhow::Result<()> {
    note(&format!(
        "{} tokens to learn, {} for validation, vocabulary {}, {} parameters{}",
        trainer.data().train().len(),
        trainer.data().validation().len(),
        vocab_size,
        trainer.model().config().parameter_count()?,
        trainer.trained_adapter().map_or_else(String::new, |(adapter, _)| {
            format!(", frozen; {} of the adapter learn", adapter.parameter_count())
        })
    ));
    Ok(())
}

/// Notes about what the run will take. A broken model shows in its first step, which says more.
fn note_estimate(trainer: &Trainer) {
    let Ok(estimate) = trainer.estimate() else { return };
    let options = trainer.settings().options();
    let of_step = usize::from(options.batch) * usize::from(options.accumulate) * trainer.window();
    let steps = options.steps;
    let epochs = of_step as f64 * f64::from(steps) / trainer.data().positions(trainer.window()) as f64;
    let time = match estimate.seconds {
        ..1.0 => "less than a second".to_owned(),
        seconds => format!("about {}", HumanDuration(Duration::from_secs_f64(seconds))),
    };
    let memory = HumanBytes(estimate.bytes);
    note(&format!(
        "{steps} steps of {of_step} tokens, {epochs:.1} epochs: {time} here, and about {memory} of memory"
    ));
}

/// The command that tries what was trained, with a prompt like the data.
fn next(args: &TrainArgs, lessons: &TrainingData) -> String {
    let out = args.out.display().to_string();
    let out = if out == DEMO_NAME { format!("./{out}") } else { out };
    let quoted = output::for_shell;
    let beginning = lessons.beginning();
    let prompt = match (&args.sample_prompt, &beginning) {
        (Some(text), _) | (None, Content::Text(text)) => quoted(text),
        (None, Content::Ids(ids)) => {
            format!("--ids {}", ids.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
        }
    };
    match &args.model {
        Some(model) if args.lora.rank.is_some() => {
            format!("gpt2 generate {prompt} --model {} --adapter {}", quoted(model), quoted(&out))
        }
        _ => format!("gpt2 generate {prompt} --model {}", quoted(&out)),
    }
}

/// Prints which step's weights are in `--out`, and how good they are.
fn print(
    args: &TrainArgs,
    trainer: &Trainer,
    vocab_size: usize,
    bytes: &BytesOfTokens,
) -> anyhow::Result<()> {
    let out = visible_text(&args.out.display().to_string());
    let history = trainer.history();
    let loss = |step: u64| {
        let loss = usize::try_from(step).ok().and_then(|step| history.training().get(step.checked_sub(1)?));
        loss.map_or_else(String::new, |loss| format!("loss {loss:.4}, "))
    };
    let Some(best) = history.best() else {
        let (step, option) =
            (trainer.steps(), if args.lora.rank.is_some() { "--adapter" } else { "--model" });
        let named = if option == "--model" && out == DEMO_NAME { "./demo" } else { &out };
        writeln!(
            output::stdout(),
            "step {step}: {}no validation yet; the weights after this step are saved in {out}, for {option} {named}",
            loss(step)
        )?;
        return Ok(());
    };
    writeln!(
        output::stdout(),
        "step {}: {}validation loss {:.4} nats per token (a unigram model: {:.4}){}; saved in {out}",
        best.step,
        loss(best.step),
        best.loss,
        trainer.data().unigram_loss(vocab_size),
        bytes.of(best.loss)
    )?;
    Ok(())
}

/// The data to learn.
fn lessons(args: &TrainArgs) -> anyhow::Result<TrainingData> {
    let Some(path) = &args.jsonl else { return one_text(args, "the text", args.source().1) };
    let text = read_file("the text", path, LONGEST_TEXT, &TERMINAL)?;
    TrainingData::of_json_lines(&text, path, Spelling::Flags)
}

/// A text, the texts of a folder, or ids with `--ids`.
fn one_text(args: &TrainArgs, what: &str, path: &Path) -> anyhow::Result<TrainingData> {
    Ok(if args.ids.is_none() && path.is_dir() {
        TrainingData::Text(folder_text(path, LONGEST_TEXT, Spelling::Flags, &TERMINAL)?)
    } else if args.ids.is_some() {
        TrainingData::Ids(read_ids(path, LONGEST_TEXT, &TERMINAL)?)
    } else {
        TrainingData::Text(read_file(what, path, LONGEST_TEXT, &TERMINAL)?)
    })
}

/// The model that an adapter is trained on, which may be quantized.
fn base(args: &TrainArgs, checkpoint: &Checkpoint, device: &Device) -> anyhow::Result<Gpt2LMHeadModel> {
    match quantized("--quantize", args.lora.quantize, Some(checkpoint), device, Spelling::Flags)? {
        Some(format) => Ok(checkpoint.load_quantized(format)?),
        None => Ok(checkpoint.load_model(DType::F32, device)?),
    }
}

/// The model's config and tokenizer, and the checkpoint that the run starts from, if any.
fn begin(
    args: &TrainArgs,
    options: &Options,
    lessons: &TrainingData,
    files: Option<&Files>,
) -> anyhow::Result<(Config, Option<Tokenizer>, Option<Checkpoint>)> {
    if let Some(files) = files {
        let checkpoint = checkpoint(files, &TERMINAL)?.with_implementation(args.implementation);
        if let Some(format) = checkpoint.formats().first().filter(|_| args.lora.rank.is_none()) {
            bail!(
                "{}: is quantized ({format}) and cannot be trained; start from the original, or train an adapter \
                 with --lora",
                checkpoint.name()
            );
        }
        let config = checkpoint.config().clone();
        let tokenizer = match open_tokenizer(files, config.vocab_size, &TERMINAL) {
            Err(LoadError::NoTokenizer { .. }) if !lessons.is_text() => None,
            found => Some(found?),
        };
        if let Some(tokenizer) = tokenizer.as_ref().filter(|_| args.lora.rank.is_none()) {
            // One that cannot be saved is refused now, not after hours.
            tokenizer.to_json()?;
        }
        return Ok((config, tokenizer, Some(checkpoint)));
    }
    // A resumed run has its tokenizer beside its model.
    let saved = args.out.join("tokenizer.json");
    let tokenizer = if !lessons.is_text() {
        None
    } else if args.resume && saved.exists() {
        Some(Tokenizer::from_file(&saved)?)
    } else {
        Some(Tokenizer::train(&lessons.words(), options.vocab_size)?)
    };
    Ok((options.config(tokenizer.as_ref(), args.implementation)?, tokenizer, None))
}
