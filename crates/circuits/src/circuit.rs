//! The two circuits of a head.

/// What a head does with a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Circuit {
    /// Where it attends: the score of each key's token for each query's token.
    Qk,
    /// What it writes: the change of each token's logit when it attends to a token.
    Ov,
}
