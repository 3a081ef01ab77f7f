//! The logit lens (nostalgebraist 2020, "interpreting GPT: the logit lens"): what the model would predict after each
//! block.

use crate::hooks::Hooks;
use crate::{ForwardArgs, Gpt2LMHeadModel};
use candle_core::{Module, Result, Tensor};

/// The logits of one position, read from the residual stream before the first block and after each block by applying
/// `ln_f` and `lm_head` directly. `hooks` act in the run. The last row holds the model's own logits.
///
/// # Shapes
/// `input_ids` (B, T), `position` below T -> (L + 1, B, V)
///
/// # Errors
/// When `position` is not below T, and for the errors of [`Gpt2LMHeadModel::forward`].
pub fn logit_lens(
    model: &Gpt2LMHeadModel,
    input_ids: &Tensor,
    position: usize,
    hooks: Option<&dyn Hooks>,
) -> Result<Tensor> {
    let t = input_ids.dim(1)?;
    if position >= t {
        candle_core::bail!(
            "logit lens: position {position} of a text of {t} tokens, expected 0 to {}",
            t.saturating_sub(1)
        )
    }
    let args = ForwardArgs { output_hidden_states: true, hooks, ..Default::default() };
    let states = model.transformer.forward(input_ids, args)?.hidden_states; // L + 1 of (B, T, C), the last one after `ln_f`
    let rows = states.iter().enumerate().map(|(i, state)| {
        let row = state.narrow(1, position, 1)?.squeeze(1)?; // (B, C)
        if i + 1 == states.len() { Ok(row) } else { model.transformer.ln_f.forward(&row) }
    });
    let rows = Tensor::stack(&rows.collect::<Result<Vec<_>>>()?, 0)?; // (L + 1, B, C)
    model.lm_head.forward(&rows)
}
