//! Attention as JSON for other programs: a summary of it, one line per query, or the square matrices that Python
//! visualizers take.

use crate::first_look::Link;
use crate::focus::Focus;
use crate::provenance::Provenance;
use crate::rows::lower_triangle;
use crate::summary::{HeadSummary, summarize};
use candle_core::{DType, Device, Result, Tensor};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, Write};

/// The attention of a text, for JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AttentionJson {
    /// The record of how it was made: the facts of a [`Provenance`](crate::Provenance). A null value leaves the field out.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub provenance: Value,
    /// The S tokens that queries can attend to, as they are in the text.
    pub tokens: Vec<String>,
    /// The run's results.
    #[serde(flatten)]
    pub run: RunJson,
    /// The results of a run without interventions, if the two are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plain: Option<RunJson>,
}

/// One run of [`AttentionJson`]. Fields of which nothing is known are left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RunJson {
    /// The most probable next tokens, most probable first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<LikelyJson>,
    /// The strongest links between tokens, at most one of each head: see [`FirstLook::links`](crate::FirstLook::links).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub links: Option<Vec<Link>>,
    /// The chosen layers.
    pub layers: Vec<LayerJson>,
}

/// A next token of [`RunJson`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LikelyJson {
    /// Its id.
    pub id: u32,
    /// Its text.
    pub token: String,
    /// Its probability, 0 to 1.
    pub probability: f32,
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
    /// Its kind, in the words of the terminal. The field is left out if the kind is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Focus>,
    /// The reason why the run does not use its output, such as "ablated". The field is left out if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silenced: Option<&'static str>,
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
            Ok(HeadJson {
                head,
                kind: None,
                silenced: None,
                summary,
                weights: with_weights.then(|| rows(i)).transpose()?,
            })
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
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut out, self)?;
        out.write_all(b"\n")
    }
}

/// A line of [`write_json_lines`].
#[derive(Debug, Serialize)]
struct QueryLine<'a> {
    layer: usize,
    head: usize,
    /// The position of the query among the keys.
    position: usize,
    token: &'a str,
    /// The weights of the keys 0 to `position`; `null` for a NaN.
    weights: &'a [f32],
}

/// Writes a layer as JSON lines, one for each head and query: `layer`, `head`, `position`, `token` and the `weights`
/// of the keys 0 to that position. It makes many small writes, so give it a buffered writer.
///
/// # Shapes
/// `weights` (H, T, S), `heads` the indices of these H heads in the model, `tokens` the S keys
///
/// # Errors
/// When the number of `heads` or `tokens` differs from that in `weights`, or `out` cannot be written.
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
            let line = QueryLine { layer, head, position, token: &tokens[position], weights };
            serde_json::to_writer(&mut *out, &line).map_err(io::Error::from)?;
            out.write_all(b"\n")?;
        }
    }
    Ok(())
}

/// Writes `{"provenance": …}` with the facts and a newline: the first line of a file of JSON lines. Its single key
/// distinguishes it from the lines of [`write_json_lines`].
///
/// # Errors
/// When `out` cannot be written.
pub fn write_provenance_line(out: &mut impl Write, provenance: &Provenance) -> Result<()> {
    writeln!(out, "{}", json!({ "provenance": provenance.facts }))?;
    Ok(())
}

/// Writes one JSON object: `provenance`, the facts about how it was made, unless they are null; `tokens`; the indices
/// of the `layers` and `heads` in the model; and `attention`, the full square matrices of weights with their zeros,
/// by layer, head, query and key. It makes many small writes, so give it a buffered writer.
///
/// If `data` is the object in Python, BertViz's `head_view` and `model_view` take
/// `[torch.tensor([layer]) for layer in data["attention"]]` and `data["tokens"]`, and CircuitsVis'
/// `attention_patterns` takes `data["tokens"]` and `numpy.array(data["attention"][i])`. Both count layers and heads
/// from 0: their index `i` is `data["layers"][i]` or `data["heads"][i]` in the model.
///
/// # Shapes
/// `weights` one tensor (H, T, T) for each of `layers`, for the same H `heads` and T `tokens`
///
/// # Errors
/// When there are more or fewer tensors than `layers`, when one has the wrong shape, and when `out` cannot be written.
pub fn write_square_json(
    out: &mut impl Write,
    tokens: &[String],
    layers: &[usize],
    heads: &[usize],
    weights: impl IntoIterator<Item = Result<Tensor>>,
    provenance: &Provenance,
) -> Result<()> {
    out.write_all(b"{")?;
    if provenance.facts != Value::Null {
        write!(out, "\"provenance\":{},", provenance.facts)?;
    }
    write!(out, "\"tokens\":{},\"layers\":{},\"heads\":{},", json!(tokens), json!(layers), json!(heads))?;
    out.write_all(b"\"attention\":[")?;
    let mut count = 0;
    for weights in weights {
        let weights = weights?;
        if weights.dims() != [heads.len(), tokens.len(), tokens.len()] {
            candle_core::bail!(
                "square JSON: weights {:?} for {} heads and {} tokens",
                weights.dims(),
                heads.len(),
                tokens.len()
            )
        }
        if count > 0 {
            out.write_all(b",")?;
        }
        count += 1;
        let rows = weights.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.to_vec3::<f32>()?;
        serde_json::to_writer(&mut *out, &rows).map_err(io::Error::from)?;
    }
    if count != layers.len() {
        candle_core::bail!("square JSON: weights of {count} layers, with {} layers named", layers.len())
    }
    out.write_all(b"]}\n")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Error;

    #[test]
    fn json_holds_the_lower_triangle() -> Result<()> {
        let weights = Tensor::new(&[[[0.5f32, 0.5, 9.], [0.25, f32::NAN, 0.5]]], &Device::Cpu)?; // (1, 2, 3)
        let layer = LayerJson::new(3, &[7], &weights, true)?;
        let tokens = vec!["a".to_owned(), " b".to_owned(), "\n".to_owned()];
        let mut text = Vec::new();
        let run = RunJson { layers: vec![layer], ..RunJson::default() };
        AttentionJson { provenance: json!({ "model": "m" }), tokens, run, plain: None }.write(&mut text)?;
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

        let unknown =
            AttentionJson { provenance: Value::Null, tokens: vec![], run: RunJson::default(), plain: None };
        assert_eq!(
            serde_json::to_value(unknown).map_err(Error::wrap)?,
            json!({ "tokens": [], "layers": [] })
        );
        Ok(())
    }

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
        // Only the last query keeps its position.
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
    fn a_file_of_lines_begins_with_what_made_it() -> Result<()> {
        let facts = json!({ "model": "a\nb", "ids": [1, 2] });
        let mut out = vec![];
        write_provenance_line(&mut out, &Provenance { caption: "for people".into(), facts: facts.clone() })?;
        assert_eq!(out.iter().position(|b| *b == b'\n'), Some(out.len() - 1), "one line");
        assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), json!({ "provenance": facts }));
        Ok(())
    }

    #[test]
    fn squares_are_whole_and_named() -> Result<()> {
        let squares = |provenance: &Provenance| {
            let mut out = vec![];
            write_square_json(&mut out, &tokens(), &[1, 4], &[0, 7], [weights(), weights()], provenance)?;
            Ok::<_, candle_core::Error>(String::from_utf8(out).unwrap())
        };
        let layer = json!([[[1.0, 0.0], [0.25, 0.75]], [[1.0, 0.0], [0.5, 0.5]]]);
        let object =
            json!({ "tokens": tokens(), "layers": [1, 4], "heads": [0, 7], "attention": [layer, layer] });
        let text = squares(&Provenance::default())?;
        assert!(text.starts_with("{\"tokens\":[") && text.ends_with("]}\n"), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), object);

        let facts = json!({ "model": "m" });
        let text = squares(&Provenance { facts: facts.clone(), ..Provenance::default() })?;
        assert!(text.starts_with("{\"provenance\":{\"model\":\"m\"},\"tokens\":["), "{text}");
        let mut value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value.as_object_mut().and_then(|map| map.remove("provenance")), Some(facts));
        assert_eq!(value, object);
        Ok(())
    }

    #[test]
    fn squares_that_do_not_fit_their_names_are_refused() {
        let one = vec![weights()];
        let two = vec![weights(), weights()];
        for (tokens, layers, heads, weights, said) in [
            (&tokens()[..1], &[0][..], &[0, 1][..], one, "1 tokens"),
            (&tokens(), &[0], &[0], vec![weights()], "1 heads"),
            (&tokens(), &[0], &[0, 1], two, "weights of 2 layers, with 1 layers"),
            (&tokens(), &[0, 1], &[0, 1], vec![weights()], "weights of 1 layers, with 2 layers"),
        ] {
            let written =
                write_square_json(&mut vec![], tokens, layers, heads, weights, &Provenance::default());
            let error = written.expect_err(said).to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
