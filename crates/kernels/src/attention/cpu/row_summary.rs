//! The summary of a single query, computed from its weights, for queries that no tile summarises as it goes.

use super::problem::Problem;
use super::summary::RowSummary;
use super::weights::{HeadInputs, OneRow};
use crate::element::Element;
use pulp::{Simd, WithSimd};

/// Computes the summary of a query (b, h, i).
pub(super) struct SummaryOfRow<'a, E, K>(pub(super) &'a Problem<'a, E, K>, pub(super) (usize, usize, usize));

impl<E: Element, K: Element> WithSimd for SummaryOfRow<'_, E, K> {
    type Output = RowSummary;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> RowSummary {
        let Self(problem, query) = self;
        let (s, (b, h, i)) = (problem.k.dims[2], query);
        let mut weights = vec![0.0; s - problem.q.dims[2] + i + 1];
        let head = HeadInputs { q: problem.q, k: problem.k, place: (b, h), scale: problem.scale, seen: &[] };
        let hide = |_, scores: &mut [f32]| problem.mask.hide(query, s, 0, scores);
        OneRow { head: &head, i, hide: &hide, out: &mut weights }.with_simd(simd);
        RowSummary::of(&weights, problem.mask.first_key(b, s))
    }
}
