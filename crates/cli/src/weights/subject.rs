//! What weights are about: the model, the text, and the chosen layers and heads.

use crate::args::FiniteArgs;
use crate::changes::Changes;
use crate::provenance::Provenance;
use crate::session::Session;
use candle_core::Tensor;

/// What weights are about.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) session: &'a Session,
    /// The text's ids, and the label of each.
    pub(crate) ids: &'a [u32],
    pub(crate) tokens: &'a [String],
    /// The chosen layers, and the chosen heads of each.
    pub(crate) layers: &'a [usize],
    pub(crate) heads: &'a [usize],
    pub(crate) changes: &'a Changes,
    pub(crate) finite: &'a FiniteArgs,
    pub(crate) made_by: &'a Provenance,
}

impl Subject<'_> {
    /// Refuses numbers that are not finite, unless the user allows them.
    pub(crate) fn check_finite<'t>(
        &self,
        results: impl IntoIterator<Item = &'t Tensor>,
    ) -> anyhow::Result<()> {
        let ids = self.session.input_ids(self.ids)?;
        self.finite.check(self.session, &ids, Some(&self.changes.list), results)
    }

    /// The weights of the chosen heads, in f32, from those of all heads: (1, H, T, T) -> (heads, T, T)
    pub(crate) fn of_chosen(&self, weights: &Tensor) -> anyhow::Result<Tensor> {
        let index = self.heads.iter().map(|&h| u32::try_from(h)).collect::<Result<Vec<_>, _>>()?;
        let index = Tensor::new(index, weights.device())?;
        Ok(weights.squeeze(0)?.index_select(&index, 0)?.to_dtype(candle_core::DType::F32)?)
    }
}
