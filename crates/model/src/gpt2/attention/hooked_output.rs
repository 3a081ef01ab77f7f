//! Attention's output as a tensor of its own, for callers and hooks that ask for it or for the heads' contributions.

use super::causal_self_attention::CausalSelfAttention;
use super::hooked_heads::{results, sum_of_results};
use super::pass::Pass;
use crate::hooks::{PassHooks, Point};
use candle_core::{Result, Tensor};

impl CausalSelfAttention {
    /// The output of attention, (B, T, C), if `pass` asks for it, or a hook wants it or the heads' contributions.
    /// Otherwise `None`, and [`project_onto`](Self::project_onto) adds the output to the stream directly.
    pub(crate) fn hooked_output(
        &self,
        context: &Tensor,
        pass: &Pass,
        hooks: PassHooks,
    ) -> Result<Option<Tensor>> {
        let of_heads = || results(&self.c_proj, context, self.layout.heads); // (B, T, H, C)
        let of_heads = hooks.read(Point::Result(self.layer_idx), of_heads)?;
        let output = || match &of_heads {
            Some(of_heads) => {
                let sum = sum_of_results(&self.c_proj, of_heads)?;
                self.output_dropout(pass.training)?
                    .map_or_else(|| Ok(sum.clone()), |dropout| dropout.apply(&sum))
            }
            None => self.project(context, pass.training),
        };
        match hooks.read(Point::AttnOut(self.layer_idx), output)? {
            None if pass.output_attention_outputs || of_heads.is_some() => Ok(Some(output()?)),
            replaced => Ok(replaced),
        }
    }
}
