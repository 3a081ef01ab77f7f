//! `gpt2 attention --export`: writes the weights to a file, whose extension selects the format.

use super::scene::Scene;
use crate::outputs::Outputs;
use anyhow::bail;
use candle_core::{DType, Tensor};
use gpt2_model::ModelOutput;
use gpt2_view::{FileKind, write_json_lines, write_provenance_line, write_safetensors, write_square_json};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Safetensors,
    Npy,
    JsonLines,
    SquareJson,
}

impl Format {
    pub(super) fn kind(self) -> FileKind {
        match self {
            Self::Safetensors => FileKind::Safetensors,
            Self::Npy => FileKind::Npy,
            Self::JsonLines => FileKind::JsonLines,
            Self::SquareJson => FileKind::SquareJson,
        }
    }

    /// The format given by a file's extension.
    pub(super) fn of(path: &Path) -> anyhow::Result<Self> {
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

pub(super) struct Export {
    format: Format,
    /// A layer's weights: (heads, T, T) f32.
    layers: Vec<Tensor>,
    lines: Vec<u8>,
}

impl Export {
    pub(super) fn new(scene: &Scene, path: &Path) -> anyhow::Result<Self> {
        let (format, mut lines) = (Format::of(path)?, vec![]);
        if format == Format::JsonLines {
            write_provenance_line(&mut lines, &scene.made_by.for_files()?)?;
        }
        Ok(Self { format, layers: vec![], lines })
    }

    /// Takes one layer's weights (heads, T, T).
    pub(super) fn layer(&mut self, scene: &Scene, layer: usize, weights: &Tensor) -> anyhow::Result<()> {
        if self.format == Format::JsonLines {
            write_json_lines(&mut self.lines, &scene.prompt.tokens, layer, &scene.heads, weights)?;
        } else {
            self.layers.push(weights.clone());
        }
        Ok(())
    }

    pub(super) fn finish(
        self,
        scene: &Scene,
        output: &ModelOutput,
        path: &Path,
        outputs: &mut Outputs,
    ) -> anyhow::Result<()> {
        let Self { format, layers, lines } = self;
        let stacked = || Tensor::stack(&layers, 0); // (layers, heads, T, T)
        match format {
            Format::Safetensors => safetensors(scene, output, &stacked()?, path, outputs),
            Format::Npy => {
                let weights = stacked()?;
                outputs.stage(path, |temporary| weights.write_npy(temporary))?;
                if scene.args.provenance {
                    let json = serde_json::to_string_pretty(&scene.made_by)? + "\n";
                    outputs.stage_bytes(&beside(path), json.as_bytes())?;
                }
                Ok(())
            }
            Format::JsonLines => outputs.stage_bytes(path, &lines),
            Format::SquareJson => {
                let (tokens, made_by) = (&scene.prompt.tokens, scene.made_by.for_files()?);
                outputs.stage(path, |temporary| {
                    let mut out = std::io::BufWriter::new(std::fs::File::create(temporary)?);
                    let weights = layers.into_iter().map(Ok);
                    write_square_json(&mut out, tokens, &scene.layers, &scene.heads, weights, &made_by)?;
                    std::io::Write::flush(&mut out).map_err(candle_core::Error::from)
                })
            }
        }
    }
}

/// The file in which `--provenance` records what made an .npy file: FILE.json.
pub(super) fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".json");
    name.into()
}

fn safetensors(
    scene: &Scene,
    output: &ModelOutput,
    weights: &Tensor,
    path: &Path,
    outputs: &mut Outputs,
) -> anyhow::Result<()> {
    let of_layers = scene.layers.iter().map(|&layer| output.attention_outputs[layer].squeeze(0));
    let of_layers = Tensor::stack(&of_layers.collect::<Result<Vec<_>, _>>()?, 0)?.to_dtype(DType::F32)?; // (layers, T, C)
    scene.check_finite([&of_layers])?;
    let tensors = [("attentions", weights), ("attention_outputs", &of_layers)];
    let mut metadata = scene.made_by.metadata()?;
    metadata.extend([
        ("model", scene.session.name.clone()),
        ("ids", serde_json::to_string(&scene.prompt.ids)?),
        ("tokens", serde_json::to_string(&scene.prompt.tokens)?),
        ("layers", serde_json::to_string(&scene.layers)?),
        ("heads", serde_json::to_string(&scene.heads)?),
    ]);
    outputs.stage(path, |temporary| write_safetensors(temporary, &tensors, &metadata))
}
