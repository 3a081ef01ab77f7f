//! Writes weights to a file, whose extension selects the format.

use crate::output::written_files::Outputs;
use anyhow::bail;
use candle_core::Tensor;
use gpt2_engine::studies::interpret::attention::{Look, Subject};
use gpt2_view::{write_any_safetensors, write_json_lines, write_provenance_line, write_square_json};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Safetensors,
    Npy,
    JsonLines,
    SquareJson,
}

impl Format {
    pub(crate) fn of(path: &Path) -> anyhow::Result<Self> {
        match path.extension().and_then(|e| e.to_str()) {
            Some("safetensors") => Ok(Self::Safetensors),
            Some("npy") => Ok(Self::Npy),
            Some("jsonl") => Ok(Self::JsonLines),
            Some("json") => Ok(Self::SquareJson),
            _ => bail!(
                "--export {}: expected a name that ends in .safetensors, .npy, .jsonl or .json",
                path.display()
            ),
        }
    }
}

pub(crate) struct Export {
    format: Format,
    /// Whether to write what made an .npy file beside it.
    provenance: bool,
    /// A layer's weights: (heads, T, T) f32.
    pub(crate) layers: Vec<Tensor>,
    lines: Vec<u8>,
}

impl Export {
    pub(crate) fn new(subject: &Subject, path: &Path, provenance: bool) -> anyhow::Result<Self> {
        let format = Format::of(path)?;
        let mut lines = vec![];
        if format == Format::JsonLines {
            write_provenance_line(&mut lines, &subject.made_by.for_files()?)?;
        }
        Ok(Self { format, provenance, layers: vec![], lines })
    }

    pub(crate) fn layer(&mut self, subject: &Subject, layer: usize, weights: &Tensor) -> anyhow::Result<()> {
        if self.format == Format::JsonLines {
            write_json_lines(&mut self.lines, subject.tokens, layer, subject.heads, weights)?;
        } else {
            self.layers.push(weights.clone());
        }
        Ok(())
    }

    /// Writes the file under a temporary name; `look` is the run that the weights come from, if more of it goes into the file.
    pub(crate) fn finish(
        self,
        subject: &Subject,
        look: Option<&Look>,
        path: &Path,
        outputs: &mut Outputs,
    ) -> anyhow::Result<()> {
        match self.format {
            Format::Safetensors => {
                let tensors = match look {
                    Some(look) => look.tensors(subject, &self.layers)?,
                    None => vec![("attentions".to_owned(), Tensor::stack(&self.layers, 0)?)],
                };
                safetensors(subject, &tensors, path, outputs)
            }
            Format::Npy => {
                let weights = Tensor::stack(&self.layers, 0)?; // (layers, heads, T, T)
                outputs.stage(path, |temporary| weights.write_npy(temporary))?;
                if self.provenance {
                    let json = serde_json::to_string_pretty(&subject.made_by.shared())? + "\n";
                    outputs.stage_bytes(&beside(path), json.as_bytes())?;
                }
                Ok(())
            }
            Format::JsonLines => outputs.stage_bytes(path, &self.lines),
            Format::SquareJson => {
                let tokens = subject.tokens;
                let made_by = subject.made_by.for_files()?;
                outputs.stage(path, |temporary| {
                    let mut out = std::io::BufWriter::new(std::fs::File::create(temporary)?);
                    let weights = self.layers.into_iter().map(Ok);
                    write_square_json(&mut out, tokens, subject.layers, subject.heads, weights, &made_by)?;
                    std::io::Write::flush(&mut out).map_err(candle_core::Error::from)
                })
            }
        }
    }
}

/// The file in which `--provenance` records what made an .npy file: FILE.json.
pub(crate) fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".json");
    name.into()
}

fn safetensors(
    subject: &Subject,
    tensors: &[(String, Tensor)],
    path: &Path,
    outputs: &mut Outputs,
) -> anyhow::Result<()> {
    let mut metadata = subject.made_by.metadata()?;
    metadata.extend([
        ("model", subject.opened.title()),
        ("ids", serde_json::to_string(&subject.ids)?),
        ("tokens", serde_json::to_string(subject.tokens)?),
        ("layers", serde_json::to_string(subject.layers)?),
        ("heads", serde_json::to_string(subject.heads)?),
    ]);
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    // All numbers are checked by now, and the scores of hidden keys are -inf.
    outputs.stage(path, |temporary| write_any_safetensors(temporary, &tensors, &metadata))
}
