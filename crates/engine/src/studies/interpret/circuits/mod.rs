//! The work of heads' weights by token, and of heads on one another (Elhage et al. 2021).

mod one_head;
mod options;
mod overview;
mod study;

pub use one_head::{Direction, LinkTokens, OneHead, TokenLink};
pub use options::{HEAD_INPUTS, HeadInput, HeadName, Options};
pub use overview::{ComposedHeads, CopyingHead, Overview};
pub use study::Report;
