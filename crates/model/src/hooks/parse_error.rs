//! The error of text that names nothing in a model.

use std::fmt;

/// The text is not a head, an intervention or a hook point; the error says which form was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError(pub(super) &'static str);

impl ParseError {
    pub(super) const HOOK_POINT: Self = Self(
        "a hook point's name in TransformerLens, such as blocks.3.attn.hook_pattern or ln_final.hook_out",
    );
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}", self.0)
    }
}

impl std::error::Error for ParseError {}
