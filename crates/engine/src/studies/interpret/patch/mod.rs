//! The parts of the model that carry the difference between two texts, or between the texts of many pairs.

mod agreement;
mod many;
mod one;
mod options;
mod paths;
mod study;

pub use agreement::agreement;
pub use many::{HeadMeans, LayerMeans, PairDifferences, PairsReport};
pub use one::{HeadPatch, LayerPatch, PairReport};
pub use options::Options;
pub use paths::{FREEZES, PathOptions, PathPatch, PathReport, PathsText};
pub use study::Report;
