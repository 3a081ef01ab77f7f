//! Attention as files: safetensors for programs that compute, JSON for programs that draw.

use crate::summary::{HeadSummary, summarize};
use crate::triangle::lower_triangle;
use candle_core::{DType, Device, Error, Result, Tensor};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::Path;

/// Writes named tensors and text metadata to a safetensors file at `path`, which the caller may rename
/// once it is whole.
///
/// The tensors keep their dtype and may lie on any device, with any strides.
///
/// # Shapes
/// each tensor of any shape, stored as it is
///
/// # Errors
/// When two tensors or two metadata entries bear one name, a tensor has a dtype that Candle cannot copy
/// out, or `path` cannot be written (with its path).
pub fn write_safetensors(
    path: &Path,
    tensors: &[(&str, &Tensor)],
    metadata: &[(&str, String)],
) -> Result<()> {
    refuse_twice("tensor", tensors.iter().map(|(name, _)| *name))?;
    refuse_twice("metadata entry", metadata.iter().map(|(key, _)| *key))?;
    // Candle's copy to bytes panics where it fails, so what can fail comes before it.
    let tensors: Vec<(&str, Tensor)> =
        tensors.iter().map(|(name, tensor)| Ok((*name, on_cpu(name, tensor)?))).collect::<Result<_>>()?;
    let metadata: HashMap<String, String> =
        metadata.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    safetensors::serialize_to_file(tensors, Some(metadata), path).map_err(|e| Error::from(e).with_path(path))
}

fn refuse_twice<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            candle_core::bail!("write_safetensors: two {what}s are called {name:?}")
        }
    }
    Ok(())
}

fn on_cpu(name: &str, tensor: &Tensor) -> Result<Tensor> {
    match tensor.dtype() {
        dtype @ (DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0) => {
            candle_core::bail!(
                "write_safetensors: tensor {name:?} has dtype {dtype:?}, which Candle cannot copy out"
            )
        }
        _ => tensor.to_device(&Device::Cpu)?.contiguous(),
    }
}

/// The attention of a text, for JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AttentionJson {
    /// The tokens that can be looked at, S of them, as they are in the text.
    pub tokens: Vec<String>,
    /// The chosen layers.
    pub layers: Vec<LayerJson>,
}

/// One layer of [`AttentionJson`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerJson {
    /// The index of the layer, from 0.
    pub layer: usize,
    /// The chosen heads.
    pub heads: Vec<HeadJson>,
}

/// One head of [`LayerJson`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeadJson {
    /// The index of the head, from 0.
    pub head: usize,
    /// The head in five numbers, and `uniform`: what `on_self`, `on_previous` and `on_first` would each be
    /// if attention were uniform. All are means over the queries that see at least two keys, or over the
    /// only token of a text.
    pub summary: HeadSummary,
    /// A row a query, without the keys that it cannot see: row i holds `S - T + i + 1` weights. A NaN
    /// becomes `null`. The field is left out where the weights are not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<Vec<Vec<f32>>>,
}

impl LayerJson {
    /// The summaries of a layer's heads and, where `with_weights`, the weights themselves.
    ///
    /// # Shapes
    /// `weights` (H, T, S), `heads` the indices of these H heads in the model
    ///
    /// # Errors
    /// When `heads` are not as many as `weights` holds, and as for [`summarize`].
    pub fn new(layer: usize, heads: &[usize], weights: &Tensor, with_weights: bool) -> Result<Self> {
        let summaries = summarize(weights)?;
        if summaries.len() != heads.len() {
            candle_core::bail!(
                "attention of layer {layer}: weights have shape {:?}, with {} heads named",
                weights.dims(),
                heads.len()
            )
        }
        let head = |(i, (&head, summary))| -> Result<HeadJson> {
            let rows = |i| lower_triangle(&weights.get(i)?, "attention");
            Ok(HeadJson { head, summary, weights: with_weights.then(|| rows(i)).transpose()? })
        };
        let heads = heads.iter().zip(summaries).enumerate().map(head).collect::<Result<_>>()?;
        Ok(Self { layer, heads })
    }
}

impl AttentionJson {
    /// Writes compact JSON and a newline. Many small writes: give it a buffered writer.
    ///
    /// # Errors
    /// When `out` cannot be written to.
    pub fn write(&self, mut out: impl io::Write) -> io::Result<()> {
        serde_json::to_writer(&mut out, self)?;
        out.write_all(b"\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::fs;
    use std::path::PathBuf;

    /// A folder of this test's own, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Result<Self> {
            let path = std::env::temp_dir().join(format!("gpt2-view-{name}-{}", std::process::id()));
            fs::create_dir_all(&path)?;
            Ok(Self(path))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn safetensors_come_back_with_their_metadata() -> Result<()> {
        let folder = Folder::new("round-trip")?;
        let path = folder.0.join("attention.safetensors");
        let f32s = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &Device::Cpu)?;
        let (strided, halves) = (f32s.t()?, f32s.to_dtype(DType::F16)?);
        let metadata = [("prompt", "a \"b\"\n".to_owned()), ("model", "gpt2".to_owned())];
        // The second time writes over the first.
        for _ in 0..2 {
            let tensors = [("h.0.attn", &f32s), ("strided", &strided), ("halves", &halves)];
            write_safetensors(&path, &tensors, &metadata)?;
        }
        let back = candle_core::safetensors::load(&path, &Device::Cpu)?;
        assert_eq!(back.len(), 3);
        assert_eq!(back["h.0.attn"].to_vec2::<f32>()?, f32s.to_vec2::<f32>()?);
        assert_eq!(back["strided"].to_vec2::<f32>()?, [[1., 4.], [2., 5.], [3., 6.]]);
        assert_eq!(back["halves"].dtype(), DType::F16);

        let (_, header) = safetensors::SafeTensors::read_metadata(&fs::read(&path)?)?;
        let found = header.metadata().clone().unwrap_or_default();
        assert_eq!(found, metadata.map(|(k, v)| (k.to_owned(), v)).into());
        Ok(())
    }

    #[test]
    fn safetensors_refuse_two_of_a_name_and_name_the_path() -> Result<()> {
        let folder = Folder::new("refusals")?;
        let x = Tensor::zeros(1, DType::F32, &Device::Cpu)?;
        let path = folder.0.join("x.safetensors");
        let err = write_safetensors(&path, &[("x", &x), ("x", &x)], &[]).expect_err("twice").to_string();
        assert!(err.contains("two tensors") && err.contains("\"x\""), "{err}");
        assert!(write_safetensors(&path, &[], &[("k", String::new()), ("k", String::new())]).is_err());
        assert!(!path.exists());

        let missing = folder.0.join("missing").join("x.safetensors");
        let err = write_safetensors(&missing, &[("x", &x)], &[]).expect_err("no folder").to_string();
        assert!(err.contains("missing"), "{err}");
        let err = write_safetensors(&folder.0, &[("x", &x)], &[]).expect_err("a folder").to_string();
        assert!(err.contains("refusals"), "{err}");
        Ok(())
    }

    #[test]
    fn json_holds_the_lower_triangle() -> Result<()> {
        let weights = Tensor::new(&[[[0.5f32, 0.5, 9.], [0.25, f32::NAN, 0.5]]], &Device::Cpu)?; // (1, 2, 3)
        let layer = LayerJson::new(3, &[7], &weights, true)?;
        let tokens = vec!["a".to_owned(), " b".to_owned(), "\n".to_owned()];
        let mut text = Vec::new();
        AttentionJson { tokens, layers: vec![layer] }.write(&mut text)?;
        assert_eq!(text.last(), Some(&b'\n'));
        let value: Value = serde_json::from_slice(&text).map_err(Error::wrap)?;
        assert_eq!(value["tokens"], json!(["a", " b", "\n"]));
        let head = &value["layers"][0]["heads"][0];
        assert_eq!((&value["layers"][0]["layer"], &head["head"]), (&json!(3), &json!(7)));
        assert_eq!(head["weights"], json!([[0.5, 0.5], [0.25, null, 0.5]]));
        // Both queries have a token before: (0.5 + NaN) / 2 is no number, (0.5 + 0.25) / 2 is.
        assert_eq!(
            (&head["summary"]["on_previous"], &head["summary"]["on_first"]),
            (&json!(null), &json!(0.375))
        );
        // One query sees two keys, the other three: (1/2 + 1/3) / 2.
        let uniform = head["summary"]["uniform"].as_f64().unwrap_or(f64::NAN);
        assert!((uniform - 5.0 / 12.0).abs() < 1e-6, "{uniform}");
        Ok(())
    }

    #[test]
    fn json_without_weights_has_no_such_field() -> Result<()> {
        let weights = Tensor::ones((2, 1, 1), DType::F32, &Device::Cpu)?;
        let layer =
            serde_json::to_value(LayerJson::new(0, &[0, 5], &weights, false)?).map_err(Error::wrap)?;
        assert_eq!(layer["heads"][1]["head"], json!(5));
        assert_eq!(layer["heads"][1].get("weights"), None);
        let err = LayerJson::new(0, &[0], &weights, false).expect_err("one name for two").to_string();
        assert!(err.contains("[2, 1, 1]") && err.contains("1 heads"), "{err}");
        Ok(())
    }
}
