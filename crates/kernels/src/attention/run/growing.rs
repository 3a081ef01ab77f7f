//! A query against a cache that grows while the launch stays the same.

use super::choice::AttentionCode;
use crate::attention::inputs::Inputs;
use crate::attention::mask::Mask;
use crate::attention::sdpa::Sdpa;
use candle_core::{DType, Result, Tensor};

impl Sdpa {
    /// The context of one query for each head, whose own key is behind `past` others, in a cache that has room for S: the GPU reads
    /// the number when the kernel runs, so that a launch which is repeated, as in a [`CudaGraph`](crate::CudaGraph), fits a cache that grows. Keys
    /// behind the query's own may hold anything. The result has the bits of [`forward`](Self::forward) on the keys that are there.
    ///
    /// Only CUDA's kernel for decoding does this, and not with [`Implementation::Eager`](crate::Implementation::Eager).
    ///
    /// # Shapes
    /// `q` (B, H, 1, D), `k` and `v` (B, H, S, D), `padding` u8 (B, S), `past` u32 (1) -> (B, 1, H, D)
    ///
    /// # Errors
    /// When the shapes do not fit each other or the options, or no kernel does this.
    pub fn forward_at(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        padding: Option<&Tensor>,
        past: &Tensor,
    ) -> Result<Tensor> {
        let mask = Mask { padding, ..Mask::default() };
        let inputs = Inputs::from_tensors(q, k, v, mask);
        self.check(&inputs, mask)?;
        if past.dims() != [1] || past.dtype() != DType::U32 || !past.device().same_device(q.device()) {
            candle_core::bail!(
                "attention: the number of keys before the query must be u32 [1] beside q, got {:?} {:?} on {:?}",
                past.dtype(),
                past.dims(),
                past.device().location()
            )
        }
        #[cfg(feature = "cuda")]
        if let Some(kernels) = self.decoding_kernels(&inputs)? {
            crate::cpu::explain::note(|| crate::cpu::explain::Explained {
                code: "fused, on the GPU".to_owned(),
                slower_because: None,
                ..self.explained(&inputs, mask, &AttentionCode::Eager, false)
            });
            return kernels.forward([q, k, v], mask, Some(past));
        }
        let explained = self.explained(&inputs, mask, &AttentionCode::Eager, false);
        candle_core::bail!(
            "attention: no kernel reads the number of keys on the GPU: {}",
            explained.slower_because.unwrap_or_else(|| "the kernel is for one query of each head".to_owned())
        )
    }
}
