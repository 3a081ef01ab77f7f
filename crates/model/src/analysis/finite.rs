//! Finds numbers that are not finite: whether there are any, and where in a run they first appear.

use crate::gpt2::args_and_outputs::ForwardArgs;
use crate::gpt2::layers::parameters::WTE;
use crate::gpt2::lm_head_model::Gpt2LMHeadModel;
use crate::hooks::{At, Chain, Hooks, Point};
use candle_core::{DType, Device, Result, Tensor};
use std::cell::RefCell;
use std::fmt;

/// Whether every number of `x` is finite, on any device and in any float dtype.
///
/// # Errors
/// When the device fails.
pub fn all_finite(x: &Tensor) -> Result<bool> {
    let x = x.to_dtype(candle_fused::accumulator(x.dtype()))?;
    // Not every device has f64.
    let sum = |x: &Tensor| x.sum_all()?.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_scalar::<f64>();
    // A sum that includes NaN or infinity is not finite. A sum that merely overflows is told apart by multiplying by
    // 0 first: 0 times NaN or infinity is NaN.
    Ok(sum(&x)?.is_finite() || sum(&x.affine(0.0, 0.0)?)? == 0.0)
}

/// The first place in a run with a number that is not finite.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotFinite {
    /// The first place in the model, in the order of the forward pass.
    pub point: Point,
    /// A parameter just before that place that itself holds such a number; `None` if all parameters there are
    /// finite and their results overflow.
    pub parameter: Option<String>,
    /// The dtype that the model computes in.
    pub dtype: DType,
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(layer) = self.point.layer() {
            write!(f, "layer {layer}: ")?;
        }
        match &self.parameter {
            Some(name) => write!(f, "{name} holds NaN or infinity, first seen at {}", self.point),
            None => write!(
                f,
                "{} overflows in {}, although the weights that lead to it are finite",
                self.point,
                self.dtype.as_str()
            ),
        }
    }
}

impl Gpt2LMHeadModel {
    /// Runs the model over `input_ids` under `hooks` and looks at the main [`Point`]s, in order, for the first whose value
    /// is not finite; returns `None` if all are finite. This is as slow as a run that returns all attention weights.
    ///
    /// # Shapes
    /// `input_ids` (B, T)
    ///
    /// # Errors
    /// The errors of [`forward`](Self::forward).
    pub fn first_not_finite(
        &self,
        input_ids: &Tensor,
        hooks: Option<&dyn Hooks>,
    ) -> Result<Option<NotFinite>> {
        let watch = FirstNonFinite::default();
        let all: Vec<&dyn Hooks> = hooks.into_iter().chain([&watch as &dyn Hooks]).collect();
        self.forward(input_ids, ForwardArgs { hooks: Some(&Chain(&all)), ..Default::default() })?;
        let Some(point) = watch.first.into_inner() else { return Ok(None) };
        let mut damaged = None;
        let before = point.parameters();
        for (name, values) in self.named_parameters() {
            // A tied head is listed only as the embedding.
            let is_before =
                before.contains(&name) || (self.is_tied() && point == Point::Logits && name == WTE);
            if is_before && !all_finite(&values.tensor()?)? {
                damaged = Some(name);
                break;
            }
        }
        Ok(Some(NotFinite { point, parameter: damaged, dtype: self.dtype() }))
    }
}

/// Looks at the main points until it finds one that is not finite.
#[derive(Default)]
struct FirstNonFinite {
    first: RefCell<Option<Point>>,
}

impl Hooks for FirstNonFinite {
    fn wants(&self, point: Point) -> bool {
        point.is_watched() && self.first.borrow().is_none()
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        if !all_finite(value)? {
            *self.first.borrow_mut() = Some(at.point);
        }
        Ok(None)
    }
}

impl Point {
    /// Whether the search looks here: at the streams, attention's values and the outputs, which everything else reaches.
    /// Scores hold -inf wherever a key is hidden.
    fn is_watched(self) -> bool {
        matches!(
            self,
            Self::ResidPre(_)
                | Self::Q(_)
                | Self::K(_)
                | Self::V(_)
                | Self::Pattern(_)
                | Self::Z(_)
                | Self::AttnOut(_)
                | Self::ResidMid(_)
                | Self::MlpOut(_)
                | Self::ResidPost(_)
                | Self::LnFinal
                | Self::Logits
        )
    }

    /// The parameters between the previous point and this one, by their names in a checkpoint.
    fn parameters(&self) -> Vec<String> {
        let names: &[&str] = match self {
            Self::ResidPre(0) => &["wte", "wpe"],
            Self::Q(_) | Self::K(_) | Self::V(_) => &["ln_1", "attn.c_attn"],
            Self::AttnOut(_) => &["attn.c_proj"],
            Self::MlpOut(_) => &["ln_2", "mlp.c_fc", "mlp.c_proj"],
            Self::LnFinal => &["ln_f"],
            Self::Logits => &["lm_head"],
            _ => &[],
        };
        let prefix = match self {
            Self::ResidPre(_) => String::new(),
            point => point.layer().map_or_else(String::new, |layer| format!("h.{layer}.")),
        };
        names
            .iter()
            .flat_map(|name| [format!("{prefix}{name}.weight"), format!("{prefix}{name}.bias")])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, init};
    use candle_nn::VarMap;

    /// A small model with variables that a test can change.
    fn model(dtype: DType) -> Result<(VarMap, Gpt2LMHeadModel)> {
        let config =
            Config { n_layer: 2, n_head: 2, n_embd: 8, n_positions: 16, vocab_size: 11, ..Config::gpt2() };
        let variables = VarMap::new();
        let vb = init::seeded_variables(5, &variables, dtype, &Device::Cpu);
        let model = Gpt2LMHeadModel::load(vb, &config)?;
        Ok((variables, model))
    }

    fn ids() -> Result<Tensor> {
        Tensor::new(&[[3u32, 1, 4, 1, 5]], &Device::Cpu)
    }

    /// Replaces the first number of `name`.
    fn damage(variables: &VarMap, name: &str, value: f32, dtype: DType) -> Result<()> {
        let variables = variables.data().lock().expect("not poisoned");
        let mut numbers: Vec<f32> = variables[name].to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        numbers[0] = value;
        let shape = variables[name].shape();
        variables[name].set(&Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(dtype)?)
    }

    /// A model with one number replaced.
    fn with(name: &str, value: f32, dtype: DType) -> Result<Gpt2LMHeadModel> {
        let (variables, model) = model(dtype)?;
        damage(&variables, name, value, dtype)?;
        Ok(model)
    }

    #[test]
    fn one_number_among_many_is_found_in_every_dtype() -> Result<()> {
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let finite = Tensor::new(&[1f32, -60000., 0.], &Device::Cpu)?.to_dtype(dtype)?;
            assert!(all_finite(&finite)?);
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let bad = Tensor::new(&[1f32, bad, 0.], &Device::Cpu)?.to_dtype(dtype)?;
                assert!(!all_finite(&bad)?, "{dtype:?}");
            }
        }
        // A sum of finite numbers can overflow, but the numbers are still finite.
        assert!(all_finite(&Tensor::new(&[f32::MAX, f32::MAX], &Device::Cpu)?)?);
        Ok(())
    }

    #[test]
    fn a_sound_model_has_none() -> Result<()> {
        assert_eq!(model(DType::F32)?.1.first_not_finite(&ids()?, None)?, None);
        Ok(())
    }

    #[test]
    fn a_damaged_parameter_is_named_with_its_layer() -> Result<()> {
        for (name, point) in [
            ("h.1.mlp.c_fc.weight", Point::MlpOut(1)),
            ("h.0.attn.c_attn.weight", Point::Q(0)),
            ("h.1.attn.c_proj.bias", Point::AttnOut(1)),
            ("ln_f.bias", Point::LnFinal),
            ("wpe.weight", Point::ResidPre(0)),
            // Not a token of the text, so it first shows in the logits, where every row is an output.
            ("wte.weight", Point::Logits),
        ] {
            let found = with(name, f32::NAN, DType::F32)?.first_not_finite(&ids()?, None)?.expect("a NaN");
            assert_eq!((found.point, found.parameter.as_deref()), (point, Some(name)));
            let text = found.to_string();
            assert!(text.contains(name), "{text}");
            if let Some(layer) = name.strip_prefix("h.") {
                assert!(text.starts_with(&format!("layer {}: ", &layer[..1])), "{text}");
            }
        }
        Ok(())
    }

    #[test]
    fn an_overflow_names_the_place_and_no_parameter() -> Result<()> {
        let model = with("h.1.mlp.c_proj.bias", 60000., DType::F16)?;
        let double = crate::hooks::on([Point::MlpOut(1)], |_, x| Ok(Some((x * 2.0)?)));
        let found = model.first_not_finite(&ids()?, Some(&double))?.expect("an overflow");
        assert_eq!((found.point, found.parameter.as_deref()), (Point::MlpOut(1), None));
        assert!(found.to_string().contains("f16"), "{found}");
        assert_eq!(model.first_not_finite(&ids()?, None)?, None);
        Ok(())
    }

    /// Of several damaged parameters, the one that the named place follows.
    #[test]
    fn a_parameter_that_comes_into_play_later_is_not_blamed() -> Result<()> {
        let (variables, model) = model(DType::F32)?;
        // The embedding's first row is of a token that is not in the text.
        for name in ["wte.weight", "h.1.mlp.c_fc.weight", "ln_f.weight"] {
            damage(&variables, name, f32::NAN, DType::F32)?;
        }
        let found = model.first_not_finite(&ids()?, None)?.expect("a NaN");
        assert_eq!(
            (found.point, found.parameter.as_deref()),
            (Point::MlpOut(1), Some("h.1.mlp.c_fc.weight"))
        );
        // A head of its own, before which nothing is damaged.
        let (_, mut model) = self::model(DType::F32)?;
        let table = model.lm_head.weight()?;
        model.lm_head = crate::LmHead::new((table * f64::NAN)?)?;
        let found = model.first_not_finite(&ids()?, None)?.expect("a NaN");
        assert_eq!((found.point, found.parameter.as_deref()), (Point::Logits, Some("lm_head.weight")));
        Ok(())
    }
}
