//! The model's part of a training step: batches, dropout, the loss, and gradients by variable name. The training loop
//! (data, schedule, optimizer) is in the crate `gpt2-train`.

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, Var};
use candle_fused::Dropout;
use candle_fused::adamw::sum_of_squares;
use candle_nn::VarMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Input tokens, and the token that follows each.
#[derive(Debug, Clone)]
pub struct TrainingBatch {
    /// (B, T)
    pub input_ids: Tensor,
    /// (B, T)
    pub targets: Tensor,
    /// The documents, if rows hold several of them or some targets are not learned.
    pub documents: Option<Documents>,
}

/// The documents of a batch.
#[derive(Debug, Clone)]
pub struct Documents {
    /// u32 (B, T): where the document of each position begins. Documents do not attend across each other.
    pub starts: Tensor,
    /// u32 (n): the targets to learn, as indexes into the B·T of the batch.
    pub learned: Tensor,
}

impl TrainingBatch {
    /// Rows of a text. Every target is learned.
    #[must_use]
    pub fn new(input_ids: Tensor, targets: Tensor) -> Self {
        Self { input_ids, targets, documents: None }
    }

    /// The first position that each position attends to.
    pub(crate) fn starts(&self) -> Option<&Tensor> {
        self.documents.as_ref().map(|documents| &documents.starts)
    }

    /// The rows of `x` (B, T, C) whose targets are learned, and those targets.
    pub(crate) fn learned(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let Some(documents) = &self.documents else { return Ok((x.clone(), self.targets.clone())) };
        if documents.learned.elem_count() == 0 {
            candle_core::bail!("a batch of documents of which nothing is learned has no loss")
        }
        let rows = x.flatten(0, 1)?.index_select(&documents.learned, 0)?; // (n, C)
        Ok((rows, self.targets.flatten_all()?.index_select(&documents.learned, 0)?))
    }
}

/// The mean cross-entropy, in nats, of predicting each token from those before it.
///
/// # Shapes
/// `logits` (B, T, V) at positions 0..T, `targets` (B, T): the token that follows each -> scalar
///
/// # Errors
/// When the shapes do not fit.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let (b, t, v) = logits.dims3()?;
    if targets.dims() != [b, t] {
        candle_core::bail!(
            "cross-entropy: logits {:?} need targets [{b}, {t}], got {:?}",
            logits.dims(),
            targets.dims()
        )
    }
    let logits = logits.reshape((b * t, v))?.to_dtype(candle_fused::accumulator(logits.dtype()))?;
    candle_fused::cross_entropy(&logits, &targets.reshape(b * t)?)
}

/// Turns a forward pass into a training pass, with dropout at the config's rates. The masks depend only on
/// the seed, the step, the layer and the position in the tensor: they are the same for any number of
/// threads, on every device, and when a forward pass runs again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Training {
    /// The run's seed.
    pub seed: u64,
    /// The optimizer's step, or any other number that distinguishes passes whose masks must differ; below
    /// 2^44.
    pub step: u64,
}

/// The places where the model applies dropout.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DropoutSite {
    /// `embd_pdrop`, on the sum of the embeddings.
    Embeddings,
    /// `attn_pdrop`, on the attention weights.
    Weights,
    /// `resid_pdrop`, on the output of attention.
    Attention,
    /// `resid_pdrop`, on the output of the MLP.
    Mlp,
    /// `attn_pdrop`, on the weights of cross-attention.
    CrossWeights,
    /// `resid_pdrop`, on what cross-attention adds to the residual stream.
    CrossAttention,
    /// An adapter's dropout, on the input of a linear layer: the first of a block's, in their order.
    Lora,
}

/// The number of passes in this process that asked for masks of no seed of their own.
static PASSES: AtomicU64 = AtomicU64::new(0);

impl Training {
    /// The next pass of a caller that gives no seed: its masks differ from those of all passes before, of whatever layer.
    pub(crate) fn next() -> Self {
        Self { seed: 0, step: PASSES.fetch_add(1, Ordering::Relaxed) % (1 << 44) }
    }

    /// The dropout for the place of this number, below 2^20.
    pub(crate) fn dropout_at(self, rate: f64, place: u32) -> Result<Dropout> {
        Dropout::new(rate, self.seed, self.step << 20 | u64::from(place))
    }
}

/// The number of a place in the model: 4 bits hold the site and 16 the layer.
#[allow(clippy::cast_possible_truncation)] // no model has 2^16 layers
pub(crate) fn place(layer_idx: usize, site: DropoutSite, nth: u32) -> u32 {
    (layer_idx as u32) << 4 | (site as u32 + nth)
}

/// The dropout for one place in the model, in a training pass.
pub(crate) fn dropout(
    training: Option<Training>,
    rate: f64,
    layer_idx: usize,
    site: DropoutSite,
) -> Result<Option<Dropout>> {
    training.map(|training| training.dropout_at(rate, place(layer_idx, site, 0))).transpose()
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_place_of_a_model_drops_numbers_of_its_own() {
        let sites = [
            DropoutSite::Embeddings,
            DropoutSite::Weights,
            DropoutSite::Attention,
            DropoutSite::Mlp,
            DropoutSite::CrossWeights,
            DropoutSite::CrossAttention,
        ];
        let of_layer = |layer| {
            // The linear layers of a block with cross-attention.
            let lora = (0..7).map(move |nth| place(layer, DropoutSite::Lora, nth));
            sites.iter().map(move |site| place(layer, *site, 0)).chain(lora)
        };
        let places: HashSet<u32> = (0..1024).flat_map(of_layer).collect();
        assert_eq!(places.len(), 1024 * 13);
        assert!(places.iter().all(|place| *place < 1 << 20));
    }
}
