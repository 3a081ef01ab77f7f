//! The summary of a single query, computed from its weights, for queries that no tile summarizes as it goes.

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
        let Self(problem @ &Problem { q, k, rules, .. }, query @ (b, h, i)) = self;
        let mut weights = vec![0.0; rules.keys_of(i).end];
        let head = HeadInputs { q, k, places: ((b, h), problem.key_head((b, h))), rules };
        OneRow { head: &head, query, i, out: &mut weights }.with_simd(simd);
        RowSummary::of(&weights, rules.position(i), rules.mask.first_key(b, rules.keys))
    }
}
