//! The logarithm of a row's sum.

/// The base-2 logarithm of a row's `Σ 2^score`, as a sum of two: of its largest score, and of what the others add to it. One
/// number would lose the second where scores are large.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LogSum {
    pub(super) max: f32,
    /// The logarithm of `Σ 2^(score - max)`: -inf if the row sees no key.
    pub(super) rest: f32,
}
