//! Fine-tunes a pretrained model on your own text and saves it.

use crate::Result;
use candle_core::{DType, Device};
use gpt2_loader::{Checkpoint, EmbeddedFiles, SaveOptions, Source, Tokenizer};
use gpt2_train::{Dataset, TrainOptions, Trainer, TrainingEvent};
use std::ops::ControlFlow;

const TEXT: &str = "The quality of mercy is not strained. It droppeth as the gentle rain from heaven. ";

/// The pretrained model: here in memory, elsewhere `Source::directory(..)`.
fn source() -> Source {
    Source::Embedded(EmbeddedFiles {
        name: "the demo model",
        config: gpt2_demo::CONFIG,
        weights: gpt2_demo::WEIGHTS,
        weights_sha256: gpt2_demo::WEIGHTS_SHA256,
        tokenizer: gpt2_demo::TOKENIZER,
    })
}

pub fn run() -> Result {
    let out = std::env::temp_dir().join(format!("fine-tuned-{}", std::process::id()));
    let mut losses = vec![];

    let files = source().open()?;
    let checkpoint = Checkpoint::open(&files)?;
    let tokenizer = Tokenizer::open(&files, checkpoint.config().vocab_size)?;
    let data = Dataset::split(tokenizer.encode(&TEXT.repeat(8))?, 0.2)?;
    let mut options = TrainOptions::new(6);
    (options.window, options.batch, options.warmup, options.eval_every) = (Some(16), 2, 1, 3);
    let mut trainer = Trainer::from_model(&checkpoint.load_model(DType::F32, &Device::Cpu)?, data, options)?;
    trainer.run(|_, event| {
        losses.extend(if let TrainingEvent::Validated(_, v) = event { Some(v.loss) } else { None });
        Ok(ControlFlow::Continue(()))
    })?;
    gpt2_loader::save(&out, trainer.model(), Some(&tokenizer), SaveOptions::default())?;

    assert!(losses.len() == 2 && losses[1] < losses[0], "{losses:?}");
    let again = Checkpoint::open(&Source::directory(&out).open()?)?.load_model(DType::F32, &Device::Cpu);
    std::fs::remove_dir_all(&out)?;
    assert_eq!(again?.config().n_layer, trainer.model().config().n_layer);
    println!("fine-tuned: {:.3} nats a token after 3 steps, {:.3} after 6", losses[0], losses[1]);
    Ok(())
}
