//! Weights as JSON for other programs: a line a query, or the squares that visualisers in Python take.

use crate::triangle::lower_triangle;
use candle_core::{DType, Device, Result, Tensor};
use serde::Serialize;
use std::io::Write;

/// A line of [`write_json_lines`].
#[derive(Debug, Serialize)]
struct Line<'a> {
    layer: usize,
    head: usize,
    /// The position of the query among the keys.
    position: usize,
    token: &'a str,
    /// Of the keys 0 to `position`; `null` for a NaN.
    weights: &'a [f32],
}

/// Writes a layer as JSON lines, one for each head and query: `layer`, `head`, `position`, `token` and the `weights`
/// of the keys 0 to that position. Many small writes: give it a buffered writer.
///
/// # Shapes
/// `weights` (H, T, S), `heads` the indices of these H heads in the model, `tokens` the S keys
///
/// # Errors
/// When `heads` or `tokens` are not as many as `weights` holds, or `out` cannot be written.
pub fn write_json_lines(
    out: &mut impl Write,
    tokens: &[String],
    layer: usize,
    heads: &[usize],
    weights: &Tensor,
) -> Result<()> {
    let (h, t, s) = weights.dims3()?;
    if heads.len() != h || tokens.len() != s {
        candle_core::bail!(
            "JSON lines of layer {layer}: weights have shape {:?}, with {} heads and {} tokens named",
            weights.dims(),
            heads.len(),
            tokens.len()
        )
    }
    for (i, &head) in heads.iter().enumerate() {
        let rows = lower_triangle::<f32>(&weights.get(i)?, "JSON lines")?;
        for (weights, position) in rows.iter().zip(s - t..) {
            let line = Line { layer, head, position, token: &tokens[position], weights };
            serde_json::to_writer(&mut *out, &line).map_err(std::io::Error::from)?;
            out.write_all(b"\n")?;
        }
    }
    Ok(())
}

/// Writes one JSON object with `tokens` and `attention`: the whole squares of weights with their zeros, by layer, head,
/// query and key. Many small writes: give it a buffered writer.
///
/// With `data` the object in Python, BertViz's `head_view` and `model_view` take
/// `[torch.tensor([layer]) for layer in data["attention"]]` and `data["tokens"]`, and CircuitsVis'
/// `attention_patterns` takes `data["tokens"]` and `numpy.array(data["attention"][layer])`.
///
/// # Shapes
/// each of `layers` (H, T, T), for the same T `tokens`
///
/// # Errors
/// When a layer is of another shape, and when `out` cannot be written.
pub fn write_square_json(
    out: &mut impl Write,
    tokens: &[String],
    layers: impl IntoIterator<Item = Result<Tensor>>,
) -> Result<()> {
    let json = |e: serde_json::Error| std::io::Error::from(e);
    out.write_all(b"{\"tokens\":")?;
    serde_json::to_writer(&mut *out, tokens).map_err(json)?;
    out.write_all(b",\"attention\":[")?;
    for (i, weights) in layers.into_iter().enumerate() {
        let weights = weights?;
        let (_, t, s) = weights.dims3()?;
        if (t, s) != (tokens.len(), tokens.len()) {
            candle_core::bail!("square JSON: weights {:?} for {} tokens", weights.dims(), tokens.len())
        }
        if i > 0 {
            out.write_all(b",")?;
        }
        let rows = weights.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.to_vec3::<f32>()?;
        serde_json::to_writer(&mut *out, &rows).map_err(json)?;
    }
    out.write_all(b"]}\n")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn weights() -> Result<Tensor> {
        Tensor::new(&[[[1f32, 0.], [0.25, 0.75]], [[1., 0.], [0.5, 0.5]]], &Device::Cpu)
    }

    fn tokens() -> [String; 2] {
        ["\"a\n".into(), " b".into()]
    }

    #[test]
    fn a_line_holds_what_a_query_sees() -> Result<()> {
        let mut out = vec![];
        write_json_lines(&mut out, &tokens(), 3, &[0, 7], &weights()?)?;
        let lines: Vec<Value> =
            out.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(
            lines[0],
            json!({ "layer": 3, "head": 0, "position": 0, "token": "\"a\n", "weights": [1.0] })
        );
        assert_eq!(
            lines[3],
            json!({ "layer": 3, "head": 7, "position": 1, "token": " b", "weights": [0.5, 0.5] })
        );
        // The last query alone keeps its position.
        out.clear();
        write_json_lines(&mut out, &tokens(), 3, &[0, 7], &weights()?.narrow(1, 1, 1)?)?;
        let first: Value =
            serde_json::from_slice(out.split(|b| *b == b'\n').next().unwrap_or_default()).unwrap();
        assert_eq!(first["position"], 1);
        assert!(write_json_lines(&mut out, &tokens(), 3, &[0], &weights()?).is_err());
        assert!(write_json_lines(&mut out, &tokens()[..1], 3, &[0, 7], &weights()?).is_err());
        Ok(())
    }

    #[test]
    fn squares_are_whole() -> Result<()> {
        let mut out = vec![];
        write_square_json(&mut out, &tokens(), [weights(), weights()])?;
        let value: Value = serde_json::from_slice(&out).unwrap();
        let layer = json!([[[1.0, 0.0], [0.25, 0.75]], [[1.0, 0.0], [0.5, 0.5]]]);
        assert_eq!(value, json!({ "tokens": tokens(), "attention": [layer, layer] }));
        assert!(write_square_json(&mut out, &tokens()[..1], [weights()]).is_err());
        Ok(())
    }
}
