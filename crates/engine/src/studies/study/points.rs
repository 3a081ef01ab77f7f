//! Values of a run by the names of their hooks.

use anyhow::bail;
use candle_core::{DType, Tensor};
use gpt2_model::hooks::{Point, Recorder};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// The number of names to propose for an unknown one.
const NEAREST: usize = 3;
/// The prefix that means every layer, and the prefix that the parser gets in its place.
const EVERY_LAYER: &str = "blocks.*.";
const LAYER_0: &str = "blocks.0.";

/// The name of a point, or of one in every layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PointName(String);

impl TryFrom<String> for PointName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl From<PointName> for String {
    fn from(PointName(name): PointName) -> Self {
        name
    }
}

impl FromStr for PointName {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found: Result<Point, _> = s.replacen(EVERY_LAYER, LAYER_0, 1).parse();
        match found {
            Ok(_) => Ok(Self(s.to_owned())),
            Err(_) => Err(format!(
                "no hook point has this name; the nearest are {}; gpt2 inspect --points lists all, and blocks.* stands for every layer",
                nearest(s).join(", ")
            )),
        }
    }
}

/// The names that are most like `s`, in its layer.
fn nearest(s: &str) -> Vec<String> {
    let layer = s.strip_prefix("blocks.").and_then(|rest| rest.split('.').next());
    let layer = layer.filter(|layer| *layer == "*" || layer.parse::<usize>().is_ok()).unwrap_or("0");
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let names = Point::of_model(1).flat_map(|point| point.names());
    let mut names: Vec<String> =
        names.map(|name| name.replacen(LAYER_0, &format!("blocks.{layer}."), 1)).collect();
    // What comes after the last dot counts most: the parts before it are often left out or mixed up.
    names.sort_by_key(|name| (strsim::levenshtein(&last(name), &last(s)), strsim::levenshtein(name, s)));
    names.truncate(NEAREST);
    names
}

/// The chosen points, each with the name that the user gave it.
#[derive(Debug, Default)]
pub struct Points(Vec<(String, Point)>);

impl PointName {
    /// The points that names of the option `option` mean in a model, once each.
    ///
    /// # Errors
    /// When a name has a layer that the model does not have.
    pub fn all(option: &str, names: &[Self], layers: usize) -> anyhow::Result<Vec<(String, Point)>> {
        let mut all: Vec<(String, Point)> = vec![];
        for Self(name) in names {
            let names = match name.strip_prefix(EVERY_LAYER) {
                Some(rest) => (0..layers).map(|layer| format!("blocks.{layer}.{rest}")).collect(),
                None => vec![name.clone()],
            };
            for name in names {
                let point: Point = name.parse()?;
                if point.layer().is_some_and(|layer| layer >= layers) {
                    bail!("{option} {name}: the model has layers 0 to {}", layers - 1);
                }
                if all.iter().all(|(other, _)| *other != name) {
                    all.push((name, point));
                }
            }
        }
        Ok(all)
    }
}

impl Points {
    /// The points that the names of `option` mean in a model.
    ///
    /// # Errors
    /// See [`PointName::all`].
    pub fn new(option: &str, names: &[PointName], layers: usize) -> anyhow::Result<Self> {
        Ok(Self(PointName::all(option, names, layers)?))
    }

    /// Hooks that record the values.
    #[must_use]
    pub fn recorder(&self) -> Recorder {
        Recorder::new(self.0.iter().map(|(_, point)| *point))
    }

    /// Adds the recorded values, in f32 or wider, except those that `tensors` already has under their names. `check` refuses
    /// what is not finite.
    ///
    /// # Errors
    /// When a value was not recorded, or `check` refuses it.
    pub fn add_to(
        &self,
        tensors: &mut Vec<(String, Tensor)>,
        recorder: &Recorder,
        check: impl Fn(&Tensor) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for (name, point) in &self.0 {
            if tensors.iter().any(|(other, _)| other == name) {
                continue;
            }
            let value = recorder.value(*point)?;
            let value = if value.dtype() == DType::F64 { value } else { value.to_dtype(DType::F32)? };
            match point {
                // They are -inf wherever a key is hidden.
                Point::Scores(_) => {
                    let hidden = value.eq(f64::NEG_INFINITY)?;
                    check(&hidden.where_cond(&value.zeros_like()?, &value)?)?;
                }
                _ => check(&value)?,
            }
            tensors.push((name.clone(), value));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_gets_the_nearest_of_its_layer() {
        for (wrong, right) in [
            ("blocks.7.attn.hook_zz", "blocks.7.attn.hook_z"),
            ("blocks.7.hook_z", "blocks.7.attn.hook_z"),
            ("blocks.*.attn.hook_patern", "blocks.*.attn.hook_pattern"),
            ("hook_resid_pre", "blocks.0.hook_resid_pre"),
            ("ln_final.hook_scal", "ln_final.hook_scale"),
            ("blocks.x.mlp.hook_post", "blocks.0.mlp.hook_post"),
        ] {
            let said = wrong.parse::<PointName>().expect_err("refused");
            assert!(said.contains(&format!("the nearest are {right},")), "{wrong}: {said}");
        }
    }
}
