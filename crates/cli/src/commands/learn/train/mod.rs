//! `gpt2 train`: trains a new GPT-2 on a text file, or fine-tunes an existing one.

mod args;
mod files;
mod jsonl;
mod progress;
#[cfg(test)]
mod tests;

pub(crate) use args::TrainArgs;

use crate::model::args::files as model_files;
use crate::model::hub;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::NewFolder;
use crate::output::{self, note};
use crate::process::parallel;
use anyhow::{anyhow, bail};
use args::{unsaved, worded};
use candle_core::{DType, Device};
use gpt2_engine::open::{checkpoint, explain_not_finite, open_tokenizer, quantized};
use gpt2_engine::texts::{NewModel, documents, encode, noted, read_file};
use gpt2_engine::{DEMO_NAME, Spelling};
use gpt2_loader::{Checkpoint, Files, Tokenizer, check_savable};
use gpt2_model::{Config, Gpt2LMHeadModel};
use gpt2_parallel::Group;
use gpt2_train::{Dataset, TrainError, TrainOptions, Trainer};
use gpt2_view::visible_text;
use progress::Progress;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

/// The longest text in bytes. Tokenizing it takes about a hundred times as much memory.
const LONGEST_TEXT: u64 = 1 << 28;

pub(crate) fn run(args: &TrainArgs) -> anyhow::Result<ExitCode> {
    parallel::run(&args.parallel, args.hub.timeout, |group| train(args, group))
}

fn train(args: &TrainArgs, group: &Arc<dyn Group>) -> anyhow::Result<ExitCode> {
    // Rank 0 alone writes.
    let writes = group.rank() == 0;
    let device = args.run.open()?;
    let (_, source) = args.source();
    let text = read_file("the text", source, LONGEST_TEXT, &TERMINAL)?;
    let examples = args.jsonl.as_ref().map(|path| jsonl::examples(&text, path)).transpose()?;
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

    // A new tokenizer learns what is in the examples, not how their file spells it.
    let words = examples.as_ref().map(|examples| jsonl::joined(examples));
    let (config, tokenizer, checkpoint) = begin(args, words.as_ref().unwrap_or(&text), model.as_ref())?;
    let options = options(args);
    let window = options.window_for(config.n_positions).map_err(worded)?;
    let data = dataset(args, &text, examples.as_deref(), &tokenizer)?;
    data.check(window, config.vocab_size).map_err(worded)?;
    let trainer = match (checkpoint, args.lora.options()) {
        (Some(checkpoint), Some(lora)) => {
            Trainer::adapter(&base(args, &checkpoint, &device)?, &lora, data, options)
        }
        (Some(checkpoint), None) => {
            Trainer::from_model(&checkpoint.load_model(DType::F32, &device)?, data, options)
        }
        (None, _) => Trainer::new(&config, data, options, &device),
    };
    let mut trainer = trainer.and_then(|trainer| trainer.in_group(Arc::clone(group))).map_err(worded)?;
    // From here on, every rank has all that it needs: one that fails before ends the others at once, and must leave no folder.
    let _folder = writes.then(|| NewFolder::make(&args.out)).transpose()?;
    note_sizes(&trainer, config.vocab_size)?;
    if args.resume {
        trainer.resume(&args.out.join(files::STATE)).map_err(worded)?;
        note(&format!("going on after step {}", trainer.steps()));
    }
    if trainer.trained_adapter().is_none() {
        let damaged = "the weights are damaged, and cannot be saved; fetch them again";
        check_savable(trainer.model(), args.save_dtype).map_err(|error| unsaved(error, damaged))?;
    }
    let mut progress = Progress::new(args, &tokenizer, &trainer)?;
    let ran = trainer.run(|trainer, event| progress.hear(trainer, event).map_err(TrainError::other));
    let finished = ran.map_err(|error| match &error {
        // If the model to fine-tune is broken, its first pass shows it.
        TrainError::Loss { step: 0, inputs, .. } if args.model.is_some() => {
            anyhow!("{}", explain_not_finite(trainer.model(), inputs, None, Spelling::Flags))
        }
        _ => worded(error),
    })?;
    progress.bar.finish_and_clear();
    if !writes {
        return Ok(ExitCode::SUCCESS);
    }
    if let Err(e) = files::draw(args, &trainer, &device) {
        note(&format!("the loss curve could not be drawn: {e:#}"));
    }
    if finished {
        // A finished run cannot resume, so it needs no state.
        let _ = std::fs::remove_file(args.out.join(files::STATE));
    }
    print(args, &trainer, config.vocab_size)?;
    Ok(if finished { ExitCode::SUCCESS } else { ExitCode::from(progress.stop.code()) })
}

/// The examples or else the text, as tokens to learn and to validate on.
fn dataset(
    args: &TrainArgs,
    text: &str,
    examples: Option<&[gpt2_engine::texts::Example]>,
    tokenizer: &Tokenizer,
) -> anyhow::Result<Dataset> {
    let data = match examples {
        Some(examples) => Dataset::from_documents(
            documents(examples, tokenizer, &mut |text| note(&text))?,
            args.val_fraction,
        ),
        None => {
            Dataset::split(noted(encode(tokenizer, text, "the training text")?, &TERMINAL), args.val_fraction)
        }
    };
    data.map_err(worded)
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

/// Prints which step's weights are in `--out`, and how good they are.
fn print(args: &TrainArgs, trainer: &Trainer, vocab_size: usize) -> anyhow::Result<()> {
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
        "step {}: {}validation loss {:.4} nats per token (a unigram model: {:.4}); saved in {out}",
        best.step,
        loss(best.step),
        best.loss,
        trainer.data().unigram_loss(vocab_size)
    )?;
    Ok(())
}

/// The model that an adapter is trained on, which may be quantized.
fn base(args: &TrainArgs, checkpoint: &Checkpoint, device: &Device) -> anyhow::Result<Gpt2LMHeadModel> {
    match quantized("--quantize", args.lora.quantize, Some(checkpoint), device, Spelling::Flags)? {
        Some(format) => Ok(checkpoint.load_quantized(format)?),
        None => Ok(checkpoint.load_model(DType::F32, device)?),
    }
}

fn options(args: &TrainArgs) -> TrainOptions {
    let mut options = TrainOptions::new(args.steps);
    options.batch = args.batch;
    options.accumulate = args.accumulate;
    options.window = args.window;
    options.lr = args.lr;
    options.warmup = args.warmup;
    options.weight_decay = args.weight_decay;
    options.clip = args.clip;
    options.dropout = args.dropout;
    options.repeat_fraction = args.repeat_fraction;
    options.recompute = args.recompute;
    options.eval_every = args.eval_every;
    options.seed = args.run.seed;
    options.model.clone_from(&args.model);
    options
}

/// The model's config and tokenizer, and the checkpoint that the run starts from, if any.
fn begin(
    args: &TrainArgs,
    text: &str,
    files: Option<&Files>,
) -> anyhow::Result<(Config, Tokenizer, Option<Checkpoint>)> {
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
        let tokenizer = open_tokenizer(files, config.vocab_size, &TERMINAL)?;
        if args.lora.rank.is_none() {
            // One that cannot be saved is refused now, not after hours.
            tokenizer.to_json()?;
        }
        return Ok((config, tokenizer, Some(checkpoint)));
    }
    // A resumed run has its tokenizer beside its model.
    let saved = args.out.join("tokenizer.json");
    let tokenizer = if args.resume && saved.exists() {
        Tokenizer::from_file(&saved)?
    } else {
        Tokenizer::train(text, args.vocab_size as usize)?
    };
    let (n_positions, n_embd, n_layer, n_head) = (args.n_positions, args.n_embd, args.n_layer, args.n_head);
    let size = NewModel { n_positions, n_embd, n_layer, n_head };
    Ok((size.config(&tokenizer, args.implementation)?, tokenizer, None))
}
