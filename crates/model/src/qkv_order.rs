//! Where queries, keys and values lie in one projection.

/// The order of queries, keys and values in the output of `c_attn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkvOrder {
    /// The queries of all heads, then all keys, then all values: GPT-2, and gpt_bigcode with one head of keys.
    SideBySide,
    /// The query, key and value of the first head, then those of the next: gpt_bigcode with keys for each head.
    HeadByHead,
}
