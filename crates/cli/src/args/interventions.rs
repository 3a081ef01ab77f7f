//! Changes to heads, attention and the residual stream on the command line.
// These comments are the help text, which would print backticks and backslashes.
#![allow(clippy::doc_markdown, rustdoc::broken_intra_doc_links)]

use gpt2_model::hooks::{Intervention, ParseError, Place};
use std::path::PathBuf;
use std::str::FromStr;

/// Options that change heads, attention and the residual stream while the model runs.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Interventions")]
pub(crate) struct InterventionArgs {
    /// Heads whose output becomes 0: LAYER.HEAD, counted from 0 (repeatable)
    #[arg(long, value_name = "L.H", value_delimiter = ',', value_parser = ablate)]
    pub(crate) ablate: Vec<Intervention>,
    /// Heads whose output becomes its mean over the prompt, or over the texts of --mean-of (repeatable)
    #[arg(long, value_name = "L.H", value_delimiter = ',', value_parser = mean_ablate)]
    pub(crate) mean_ablate: Vec<Intervention>,
    /// Texts to take the means over, one a line: for each position, if all have as many tokens as the prompt (Wang et
    /// al.), otherwise over all positions
    #[arg(long, value_name = "FILE", requires = "mean_ablate")]
    pub(crate) mean_of: Option<PathBuf>,
    /// Heads whose output is multiplied by a factor (repeatable)
    #[arg(long, value_name = "L.H=FACTOR", value_delimiter = ',', value_parser = scale)]
    pub(crate) scale: Vec<Intervention>,
    /// Heads whose scores are divided by a temperature before the softmax; below 1, attention gets sharper (repeatable)
    #[arg(long, value_name = "L.H=T", value_delimiter = ',', value_parser = temperature)]
    pub(crate) attention_temperature: Vec<Intervention>,
    /// Stop position QUERY from attending to KEY, both counted from 0: in all layers, or in one layer or head only,
    /// as in 3/7:4 and 3.2/7:4 (repeatable)
    #[arg(long, value_name = "[L[.H]/]QUERY:KEY", value_delimiter = ',', value_parser = block)]
    pub(crate) block: Vec<Intervention>,
    /// What becomes as in a run over --from-prompt: a head's output L.H, the stream before block L, or what its halves
    /// add, L.attn and L.mlp; at all positions or at one, after the other changes of a head (repeatable)
    #[arg(long, value_name = "PLACE[@POS]", value_delimiter = ',', requires = "from_prompt", value_parser = at::<Place>)]
    pub(crate) patch: Vec<At<Place>>,
    /// The prompt that --patch takes its values from; as many tokens as the prompt, unless each patch is at one position
    #[arg(long, value_name = "TEXT", requires = "patch")]
    pub(crate) from_prompt: Option<String>,
    /// Add a vector, n_embd numbers in a NumPy file, to the residual stream before block L: steering (repeatable)
    #[arg(long, value_name = "L[@POS]=FILE.npy[*SCALE]", value_parser = Steer::from_str)]
    pub(crate) add: Vec<Steer>,
}

/// A place, at one position or at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At<P> {
    pub(crate) place: P,
    pub(crate) position: Option<usize>,
}

/// A vector to add to the residual stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Steer {
    pub(crate) at: At<usize>,
    pub(crate) file: PathBuf,
    pub(crate) scale: f64,
    /// As the user typed it.
    pub(crate) text: String,
}

impl FromStr for Steer {
    type Err = String;

    /// `5=v.npy`, `5@3=v.npy*-2.5`
    fn from_str(s: &str) -> Result<Self, String> {
        let expected =
            || "expected L=FILE.npy, L@POS=FILE.npy or either with *SCALE, such as 5=v.npy*4".to_owned();
        let (place, rest) = s.split_once('=').ok_or_else(expected)?;
        let (file, scale) = match rest.rsplit_once('*') {
            Some((file, scale)) => (file, scale.trim().parse().ok().filter(|x: &f64| x.is_finite())),
            None => (rest, Some(1.0)),
        };
        let scale = scale.ok_or_else(expected)?;
        let at = at::<usize>(place).map_err(|_| expected())?;
        if file.is_empty() {
            return Err(expected());
        }
        Ok(Self { at, file: file.into(), scale, text: s.to_owned() })
    }
}

/// `PLACE` or `PLACE@POS`
fn at<P: FromStr<Err: ToString>>(s: &str) -> Result<At<P>, String> {
    let (place, position) = match s.split_once('@') {
        Some((place, position)) => {
            let position = position.trim().parse().map_err(|_| format!("`{position}` is not a position"))?;
            (place, Some(position))
        }
        None => (s, None),
    };
    Ok(At { place: place.trim().parse().map_err(|e: P::Err| e.to_string())?, position })
}

fn ablate(s: &str) -> Result<Intervention, ParseError> {
    format!("ablate {s}").parse()
}

fn mean_ablate(s: &str) -> Result<Intervention, ParseError> {
    format!("mean-ablate {s}").parse()
}

fn scale(s: &str) -> Result<Intervention, ParseError> {
    format!("scale {s}").parse()
}

fn temperature(s: &str) -> Result<Intervention, ParseError> {
    format!("temperature {s}").parse()
}

fn block(s: &str) -> Result<Intervention, ParseError> {
    format!("block {s}").parse()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpt2_model::hooks::Head;

    #[test]
    fn a_vector_has_a_layer_a_file_and_perhaps_a_position_and_a_scale() {
        let parsed = |s: &str| s.parse::<Steer>().map(|Steer { at, file, scale, .. }| (at, file, scale));
        let at = |place, position| At { place, position };
        assert_eq!(parsed("5=v.npy"), Ok((at(5, None), "v.npy".into(), 1.0)));
        assert_eq!(parsed("5@3=a=b.npy*-2.5"), Ok((at(5, Some(3)), "a=b.npy".into(), -2.5)));
        assert_eq!(parsed("0=a*b.npy*2"), Ok((at(0, None), "a*b.npy".into(), 2.0)));
        for wrong in ["", "5", "5=", "x=v.npy", "5@=v.npy", "5=v.npy*", "5=v.npy*nan", "-1=v.npy"] {
            assert!(parsed(wrong).is_err_and(|e| e.contains("5=v.npy*4")), "{wrong:?}");
        }
    }

    #[test]
    fn a_patch_has_a_place_and_perhaps_a_position() {
        let parsed = |s: &str| at::<Place>(s);
        assert_eq!(parsed("2@7"), Ok(At { place: Place::Stream(2), position: Some(7) }));
        assert_eq!(parsed("2.1"), Ok(At { place: Place::Head(Head { layer: 2, head: 1 }), position: None }));
        assert!(parsed("2.1@x").is_err_and(|e| e.contains("not a position")));
        assert!(parsed("2.x@1").is_err_and(|e| e.contains("5.mlp")));
    }
}
