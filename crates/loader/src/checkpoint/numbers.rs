//! [`Numbers`]: what is unusual about the numbers of a checkpoint, which only its data can tell.

/// Unusual facts about the numbers of the parameters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Numbers {
    /// Parameters with numbers that are not finite: the name in the file, and how many there are.
    pub not_finite: Vec<(String, usize)>,
    /// Weights, tables and scales that hold nothing but zeros: their names in the file. A bias may be all zeros.
    pub zeros: Vec<String>,
}
