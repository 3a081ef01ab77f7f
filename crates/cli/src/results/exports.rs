//! `--export`: the tensors of one text, or of many, each under the number of its line, in a safetensors file.

use crate::output::written_files::Outputs;
use anyhow::bail;
use candle_core::Tensor;
use gpt2_engine::studies::{PointName, Points};
use gpt2_engine::texts::Prompt;
use gpt2_engine::{Opened, RunProvenance};
use gpt2_files::{TensorSpool, atomic};
use gpt2_view::without_folders;
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
// A group, because clap forgets a required argument that conflicts with a given one.
#[command(group = clap::ArgGroup::new("exported").arg("export"))]
pub(crate) struct PointArgs {
    /// Add a hook's value to what --export holds: blocks.1.attn.hook_z, or blocks.* for every layer (all names: gpt2
    /// inspect --points)
    #[arg(long, value_name = "POINT", value_delimiter = ',', requires = "exported")]
    pub(crate) export_point: Vec<PointName>,
}

impl PointArgs {
    /// The points in this model, once each.
    pub(crate) fn of(&self, opened: &Opened) -> anyhow::Result<Points> {
        Points::new("--export-point", &self.export_point, opened.model.config().n_layer)
    }
}

pub(crate) struct ExportFile {
    path: PathBuf,
    /// Keeps the tensors on disk, so that memory does not grow with the number of texts.
    spool: TensorSpool,
    /// The facts about each of many texts, as JSON.
    texts: Vec<String>,
}

/// A text among many.
#[derive(Serialize)]
struct TextFacts<'a> {
    line: u64,
    ids: &'a [u32],
    tokens: &'a [String],
}

/// Adds the file to those of the run; its name has to say what it holds.
pub(crate) fn add_to(outputs: &mut Outputs, path: &Path) -> anyhow::Result<()> {
    if path.extension().is_none_or(|end| end != "safetensors") {
        bail!("--export {}: expected a name that ends in .safetensors", path.display());
    }
    outputs.add("--export", path);
    Ok(())
}

impl ExportFile {
    pub(crate) fn new(path: &Path) -> anyhow::Result<Self> {
        let target = atomic::check(path)?;
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
        let spool = TensorSpool::new(folder.unwrap_or(Path::new(".")))?;
        Ok(Self { path: path.to_path_buf(), spool, texts: vec![] })
    }

    /// Adds the tensors of the only text, or of the one in this line, as `LINE/NAME`.
    pub(crate) fn add(
        &mut self,
        line: Option<u64>,
        prompt: &Prompt,
        tensors: &[(String, Tensor)],
    ) -> anyhow::Result<()> {
        for (name, tensor) in tensors {
            match line {
                Some(line) => self.spool.add(&format!("{line}/{name}"), tensor)?,
                None => self.spool.add(name, tensor)?,
            }
        }
        if let Some(line) = line {
            let facts = TextFacts { line, ids: &prompt.ids, tokens: &prompt.tokens };
            self.texts.push(serde_json::to_string(&facts)?);
        }
        Ok(())
    }

    /// Writes the file under a temporary name; `only` is the prompt if there are not many.
    pub(crate) fn stage(
        self,
        made_by: &RunProvenance,
        only: Option<&Prompt>,
        more: &[(&'static str, String)],
        outputs: &mut Outputs,
    ) -> anyhow::Result<()> {
        let mut metadata = made_by.metadata()?;
        metadata.push(("model", without_folders(&made_by.model)));
        metadata.extend_from_slice(more);
        match only {
            Some(Prompt { ids, tokens, .. }) => metadata
                .extend([("ids", serde_json::to_string(ids)?), ("tokens", serde_json::to_string(tokens)?)]),
            None => metadata.push(("texts", format!("[{}]", self.texts.join(",")))),
        }
        outputs.stage(&self.path, |temporary| self.spool.write(temporary, &metadata))
    }
}
