//! [`Readout`]: the end of a pass whose logits are needed at some positions only.

use crate::gpt2::args_and_outputs::{CausalLMOutput, ForwardArgs, ModelOutput};
use crate::gpt2::layers::lm_head::LmHead;
use crate::gpt2::lm_head_model::Gpt2LMHeadModel;
use crate::hooks::Point;
use candle_core::{Module, Result, Tensor};

/// The last hidden state, of which the caller turns some positions into logits. Where a hook reads or changes logits, it sees all of
/// them first, as in [`Gpt2LMHeadModel::forward`].
pub(super) struct Readout<'a> {
    lm_head: &'a LmHead,
    pub(super) output: ModelOutput,
    /// (B, T, V), if a hook asked for them.
    logits: Option<Tensor>,
}

impl<'a> Readout<'a> {
    /// Runs the model.
    pub(super) fn of(model: &'a Gpt2LMHeadModel, input_ids: &Tensor, args: ForwardArgs) -> Result<Self> {
        let lm_head = &model.lm_head;
        if args.hooks.is_some_and(|hooks| hooks.wants(Point::Logits)) {
            let CausalLMOutput { logits, transformer } = model.forward(input_ids, args)?;
            return Ok(Self { lm_head, output: transformer, logits: Some(logits) });
        }
        Ok(Self { lm_head, output: model.transformer.forward(input_ids, args)?, logits: None })
    }

    /// The values to take positions of: (B, T, C), or (B, T, V).
    pub(super) fn values(&self) -> &Tensor {
        self.logits.as_ref().unwrap_or(&self.output.last_hidden_state)
    }

    /// The logits of some positions, in f32 or wider.
    ///
    /// `rows` (.., C or V), taken from [`values`](Self::values) -> (.., V)
    pub(super) fn logits_of(&self, rows: &Tensor) -> Result<Tensor> {
        let logits = if self.logits.is_some() { rows.clone() } else { self.lm_head.forward(rows)? };
        logits.to_dtype(candle_fused::accumulator(logits.dtype()))
    }
}
