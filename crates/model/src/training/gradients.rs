//! Sums gradients over batches, and checks them for variables that learn nothing.

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, Var};
use candle_fused::adamw::sum_of_squares;
use candle_nn::VarMap;

/// All variables of a map with their names, sorted by name. For a model's variables see
/// [`Gpt2LMHeadModel::named_variables`](crate::Gpt2LMHeadModel::named_variables).
///
/// # Errors
/// When a thread panicked while it held the variables.
pub fn variables_of(variables: &VarMap) -> Result<Vec<(String, Var)>> {
    let Ok(held) = variables.data().lock() else {
        candle_core::bail!("the variables' lock is poisoned: a thread panicked while it held them")
    };
    let mut named: Vec<_> = held.iter().map(|(name, var)| (name.clone(), var.clone())).collect();
    named.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(named)
}

/// Adds the gradients of `more` to those of `sum`, for the variables in `variables`.
///
/// # Errors
/// When two gradients of one variable have different shapes.
pub fn add_gradients(sum: &mut GradStore, mut more: GradStore, variables: &[(String, Var)]) -> Result<()> {
    for (_, var) in variables {
        let Some(gradient) = more.remove(var) else { continue };
        let total = match sum.remove(var) {
            Some(before) => (before + gradient)?,
            None => gradient,
        };
        sum.insert(var, total);
    }
    Ok(())
}

/// The variables that learn nothing from a loss.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GradientCheck {
    /// Variables without a gradient: some operation before the loss has no backward pass.
    pub missing: Vec<String>,
    /// Variables whose gradient is 0 everywhere.
    pub zero: Vec<String>,
    /// Variables with a gradient that is not finite.
    pub not_finite: Vec<String>,
}

impl GradientCheck {
    /// Whether every variable learns.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.missing.is_empty() && self.zero.is_empty() && self.not_finite.is_empty()
    }
}

/// Names each variable that gets no gradient from `loss`, or a gradient that is 0 or not finite. Candle
/// silently drops gradients at operations without a backward pass; this check finds the variables affected.
///
/// ```
/// use candle_core::{D, DType, Device};
/// use candle_nn::{Init, VarMap, init};
/// use gpt2_model::training::{check_gradients, variables_of};
///
/// # fn main() -> candle_core::Result<()> {
/// let variables = VarMap::new();
/// let x = variables.get((2, 3), "x", Init::Randn { mean: 0., stdev: 1. }, DType::F32, &Device::Cpu)?;
/// let fine = candle_nn::ops::softmax(&x, D::Minus1)?.sqr()?.sum_all()?;
/// assert!(check_gradients(&variables_of(&variables)?, &fine)?.is_clean());
/// let cut = candle_nn::ops::softmax_last_dim(&x)?.sqr()?.sum_all()?; // has no backward
/// assert_eq!(check_gradients(&variables_of(&variables)?, &cut)?.missing, ["x"]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// When the backward pass fails.
pub fn check_gradients(variables: &[(String, Var)], loss: &Tensor) -> Result<GradientCheck> {
    let mut check = GradientCheck::default();
    // `backward` fails if every path to a variable goes through an operation without a backward pass.
    let gradients = loss.backward().ok();
    for (name, var) in variables {
        match gradients.as_ref().and_then(|gradients| gradients.get(var)) {
            None => check.missing.push(name.clone()),
            Some(gradient) => match sum_of_squares(gradient)? {
                squares if !squares.is_finite() => check.not_finite.push(name.clone()),
                0.0 => check.zero.push(name.clone()),
                _ => {}
            },
        }
    }
    Ok(check)
}
