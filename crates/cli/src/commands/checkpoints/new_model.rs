//! The options of a command that writes a model's folder.

use crate::output::written_files::Outputs;
use crate::values::one_of;
use candle_core::DType;
use gpt2_engine::open::DTYPES;
use gpt2_engine::studies::checkpoints::NewModel;
use gpt2_engine::{ReadFiles, Spelling};
use std::path::PathBuf;

/// The folder to write a model to.
#[derive(Debug, clap::Args)]
pub(crate) struct NewModelArgs {
    /// Folder for config.json, model.safetensors and, if there is a tokenizer, tokenizer.json
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Precision of the saved weights
    #[arg(long, value_name = "DTYPE", default_value = "f32", value_parser = one_of(DTYPES))]
    pub(crate) save_dtype: DType,
    /// Replace a model that is already in --out
    #[arg(long)]
    pub(crate) overwrite: bool,
}

impl NewModelArgs {
    /// The engine's options.
    pub(crate) fn options(&self) -> NewModel {
        NewModel { out: self.out.clone(), save_dtype: self.save_dtype, overwrite: self.overwrite }
    }

    /// The files that will be written. Refuses a folder that `inputs` are in, and one that holds a model or an adapter.
    pub(crate) fn outputs(&self, inputs: &ReadFiles) -> anyhow::Result<Outputs> {
        let new = self.options();
        new.refuse_adapter(Spelling::Flags)?;
        // Before what --overwrite allows to replace: it never allows this.
        self.spare(inputs)?;
        let mut outputs = Outputs::new(true);
        new.files(Spelling::Flags)?.iter().for_each(|path| outputs.add("--out", path));
        Ok(outputs)
    }

    /// Refuses a folder that `inputs` are in.
    pub(crate) fn spare(&self, inputs: &ReadFiles) -> anyhow::Result<()> {
        inputs.spare_folder(&format!("--out {}", self.out.display()), &self.out)
    }
}
