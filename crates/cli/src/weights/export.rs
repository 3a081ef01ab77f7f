//! Writes weights to a file, whose extension selects the format.

use super::subject::Subject;
use crate::outputs::Outputs;
use anyhow::bail;
use candle_core::{DType, Tensor};
use gpt2_view::{write_json_lines, write_provenance_line, write_safetensors, write_square_json};
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
    layers: Vec<Tensor>,
    lines: Vec<u8>,
}

impl Export {
    pub(crate) fn new(subject: &Subject, path: &Path, provenance: bool) -> anyhow::Result<Self> {
        let (format, mut lines) = (Format::of(path)?, vec![]);
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

    pub(crate) fn finish(
        self,
        subject: &Subject,
        attention_outputs: &[Tensor],
        path: &Path,
        outputs: &mut Outputs,
    ) -> anyhow::Result<()> {
        let Self { format, provenance, layers, lines } = self;
        let stacked = || Tensor::stack(&layers, 0); // (layers, heads, T, T)
        match format {
            Format::Safetensors => safetensors(subject, attention_outputs, &stacked()?, path, outputs),
            Format::Npy => {
                let weights = stacked()?;
                outputs.stage(path, |temporary| weights.write_npy(temporary))?;
                if provenance {
                    let json = serde_json::to_string_pretty(&subject.made_by)? + "\n";
                    outputs.stage_bytes(&beside(path), json.as_bytes())?;
                }
                Ok(())
            }
            Format::JsonLines => outputs.stage_bytes(path, &lines),
            Format::SquareJson => {
                let (tokens, made_by) = (subject.tokens, subject.made_by.for_files()?);
                outputs.stage(path, |temporary| {
                    let mut out = std::io::BufWriter::new(std::fs::File::create(temporary)?);
                    let weights = layers.into_iter().map(Ok);
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
    attention_outputs: &[Tensor],
    weights: &Tensor,
    path: &Path,
    outputs: &mut Outputs,
) -> anyhow::Result<()> {
    let mut tensors = vec![("attentions", weights)];
    let of_layers = subject.layers.iter().filter_map(|&layer| attention_outputs.get(layer));
    let of_layers = of_layers.map(|output| output.squeeze(0)).collect::<Result<Vec<_>, _>>()?;
    let stacked =
        if of_layers.is_empty() { None } else { Some(Tensor::stack(&of_layers, 0)?.to_dtype(DType::F32)?) }; // (layers, T, C)
    if let Some(stacked) = &stacked {
        subject.check_finite([stacked])?;
        tensors.push(("attention_outputs", stacked));
    }
    let mut metadata = subject.made_by.metadata()?;
    metadata.extend([
        ("model", subject.session.name.clone()),
        ("ids", serde_json::to_string(&subject.ids)?),
        ("tokens", serde_json::to_string(subject.tokens)?),
        ("layers", serde_json::to_string(subject.layers)?),
        ("heads", serde_json::to_string(subject.heads)?),
    ]);
    outputs.stage(path, |temporary| write_safetensors(temporary, &tensors, &metadata))
}
