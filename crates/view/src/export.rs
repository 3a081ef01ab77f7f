//! The attention of a text as JSON, for programs that draw it.

use crate::summary::{HeadSummary, summarize};
use crate::triangle::lower_triangle;
use candle_core::{Result, Tensor};
use serde::Serialize;
use serde_json::Value;
use std::io;

/// The attention of a text, for JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AttentionJson {
    /// How it was made: the facts of a [`Provenance`](crate::Provenance). A null value leaves the field out.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub provenance: Value,
    /// The S tokens that queries can attend to, as they are in the text.
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
    /// The head in five numbers, and `uniform`: the value that `on_self`, `on_previous` and `on_first` would
    /// each have if attention were uniform. All are means over the queries that see at least two keys, or
    /// over the only token of a text.
    pub summary: HeadSummary,
    /// One row per query, without the keys that it cannot see: row i holds `S - T + i + 1` weights. A NaN
    /// becomes `null`. The field is left out if nobody asks for the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<Vec<Vec<f32>>>,
}

impl LayerJson {
    /// The summaries of a layer's heads and, if `with_weights`, the weights themselves.
    ///
    /// # Shapes
    /// `weights` (H, T, S), `heads` the indices of these H heads in the model
    ///
    /// # Errors
    /// When the number of `heads` differs from that in `weights`, and when [`summarize`] fails.
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
    /// Writes compact JSON and a newline. It makes many small writes, so give it a buffered writer.
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
    use candle_core::{DType, Device, Error};
    use serde_json::json;

    #[test]
    fn json_holds_the_lower_triangle() -> Result<()> {
        let weights = Tensor::new(&[[[0.5f32, 0.5, 9.], [0.25, f32::NAN, 0.5]]], &Device::Cpu)?; // (1, 2, 3)
        let layer = LayerJson::new(3, &[7], &weights, true)?;
        let tokens = vec!["a".to_owned(), " b".to_owned(), "\n".to_owned()];
        let mut text = Vec::new();
        AttentionJson { provenance: json!({ "model": "m" }), tokens, layers: vec![layer] }
            .write(&mut text)?;
        assert!(
            text.starts_with(b"{\"provenance\":{\"model\":\"m\"},\"tokens\":"),
            "what made it comes first"
        );
        assert_eq!(text.last(), Some(&b'\n'));
        let value: Value = serde_json::from_slice(&text).map_err(Error::wrap)?;
        assert_eq!(value["tokens"], json!(["a", " b", "\n"]));
        let head = &value["layers"][0]["heads"][0];
        assert_eq!((&value["layers"][0]["layer"], &head["head"]), (&json!(3), &json!(7)));
        assert_eq!(head["weights"], json!([[0.5, 0.5], [0.25, null, 0.5]]));
        // Both queries have a previous token: (0.5 + NaN) / 2 is NaN, (0.5 + 0.25) / 2 is not.
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

        let unknown = AttentionJson { provenance: Value::Null, tokens: vec![], layers: vec![] };
        assert_eq!(
            serde_json::to_value(unknown).map_err(Error::wrap)?,
            json!({ "tokens": [], "layers": [] })
        );
        Ok(())
    }
}
