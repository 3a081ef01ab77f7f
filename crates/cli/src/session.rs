//! A model that is ready to run, from the options that every subcommand has.

use crate::args::ModelArgs;
use candle_core::{Device, Tensor};
use gpt2_loader::{Checkpoint, EmbeddedFiles, Files, LoadError, Source, Tokenizer};
use gpt2_model::Gpt2LMHeadModel;
use std::cell::OnceCell;
use std::path::Path;

/// The demo model of `models/tiny-shakespeare`.
pub(crate) const DEMO: EmbeddedFiles = EmbeddedFiles {
    name: "tiny-shakespeare (built in)",
    config: include_bytes!("../../../models/tiny-shakespeare/config.json"),
    weights: include_bytes!("../../../models/tiny-shakespeare/model.safetensors"),
    tokenizer: include_bytes!("../../../models/tiny-shakespeare/tokenizer.json"),
};

/// A loaded model and what belongs to it.
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) model: Gpt2LMHeadModel,
    pub(crate) device: Device,
    files: Files,
    tokenizer: OnceCell<Tokenizer>,
}

/// The files of the model in `dir`, or of the demo model, with a line that says so.
pub(crate) fn files(dir: Option<&Path>) -> Result<Files, LoadError> {
    let Some(dir) = dir else {
        crate::output::note(
            "model: tiny-shakespeare, the built-in demo; for GPT-2 small, give --model DIR with its \
             config.json and model.safetensors (huggingface.co/openai-community/gpt2)",
        );
        return Source::Embedded(DEMO).open();
    };
    Source::directory(dir).open()
}

impl ModelArgs {
    /// [`files`] of `--model`.
    pub(crate) fn files(&self) -> Result<Files, LoadError> {
        files(self.model.as_deref())
    }

    /// Loads the model onto the device.
    pub(crate) fn session(&self) -> anyhow::Result<Session> {
        let device = self.run.device.open()?;
        let files = self.files()?;
        let checkpoint = Checkpoint::open(&files)?;
        let model = checkpoint.load_model(self.dtype.into(), &device)?;
        Ok(Session { name: checkpoint.name().to_string(), model, device, files, tokenizer: OnceCell::new() })
    }
}

impl Session {
    /// The tokenizer, opened when it is first needed: ids need none.
    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, LoadError> {
        if let Some(tokenizer) = self.tokenizer.get() {
            return Ok(tokenizer);
        }
        let tokenizer = Tokenizer::open(&self.files, self.model.config().vocab_size)?;
        Ok(self.tokenizer.get_or_init(|| tokenizer))
    }

    /// A label for each id: its text, or its number where there is no tokenizer.
    pub(crate) fn labels(&self, ids: &[u32]) -> Vec<String> {
        match self.tokenizer() {
            Ok(tokenizer) => tokenizer.tokens(ids),
            Err(_) => ids.iter().map(u32::to_string).collect(),
        }
    }

    /// The ids as a batch of one row, (1, T).
    pub(crate) fn input_ids(&self, ids: &[u32]) -> anyhow::Result<Tensor> {
        Ok(Tensor::new(ids, &self.device)?.unsqueeze(0)?)
    }
}
