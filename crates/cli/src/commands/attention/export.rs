//! `gpt2 attention --export`: the weights as a file, in the format of its name.

use super::Scene;
use crate::output::{self, note};
use anyhow::bail;
use candle_core::{DType, Tensor};
use gpt2_model::ModelOutput;
use gpt2_view::{Provenance, write_json_lines, write_square_json};
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Safetensors,
    Npy,
    JsonLines,
    SquareJson,
}

impl Format {
    /// The format of a file's name.
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
    /// A layer: (heads, T, T) f32.
    layers: Vec<Tensor>,
    lines: Vec<u8>,
}

impl Export {
    pub(super) fn new(path: &Path) -> anyhow::Result<Self> {
        Ok(Self { format: Format::of(path)?, layers: vec![], lines: vec![] })
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

    pub(super) fn finish(self, scene: &Scene, output: &ModelOutput, path: &Path) -> anyhow::Result<()> {
        let Self { format, layers, lines } = self;
        let stacked = || Tensor::stack(&layers, 0); // (layers, heads, T, T)
        match format {
            Format::Safetensors => return safetensors(scene, output, &stacked()?, path),
            Format::Npy => {
                let weights = stacked()?;
                gpt2_loader::atomic::write(path, |temporary| weights.write_npy(temporary))?;
            }
            Format::JsonLines => gpt2_loader::atomic::write_bytes(path, &lines)?,
            Format::SquareJson => gpt2_loader::atomic::write(path, |temporary| {
                let mut out = std::io::BufWriter::new(std::fs::File::create(temporary)?);
                let (tokens, made) = (&scene.prompt.tokens, Provenance::default());
                let weights = layers.into_iter().map(Ok);
                write_square_json(&mut out, tokens, &scene.layers, &scene.heads, weights, &made)?;
                std::io::Write::flush(&mut out).map_err(candle_core::Error::from)
            })?,
        }
        note(&format!("wrote {}", path.display()));
        Ok(())
    }
}

fn safetensors(scene: &Scene, output: &ModelOutput, weights: &Tensor, path: &Path) -> anyhow::Result<()> {
    let outputs = scene.layers.iter().map(|&layer| output.attention_outputs[layer].squeeze(0));
    let outputs = Tensor::stack(&outputs.collect::<Result<Vec<_>, _>>()?, 0)?.to_dtype(DType::F32)?; // (layers, T, C)
    output::export(
        path,
        &[("attentions", weights), ("attention_outputs", &outputs)],
        &[
            ("model", scene.session.name.clone()),
            ("ids", serde_json::to_string(&scene.prompt.ids)?),
            ("tokens", serde_json::to_string(&scene.prompt.tokens)?),
            ("layers", serde_json::to_string(&scene.layers)?),
            ("heads", serde_json::to_string(&scene.heads)?),
        ],
    )
}
