//! Changes inside a model while it runs: as data, checked, and ready to apply. Words on a command line and Python's values become the
//! same options.

mod checks;
mod circuit;
mod features;
mod means;
mod on_heads;
mod options;
mod prepared;
mod sources;
mod vector;

pub use checks::Reads;
pub(crate) use checks::nothing_to_compare;
pub use circuit::LoadedCircuit;
pub use on_heads::OnHeads;
pub use options::{
    ALL_BUT_DICTIONARY, ALL_INTERVENTIONS, At, CircuitChoice, DictionaryChoice, FeatureOption,
    InterventionOptions, MeanTexts, Steer, VectorSource,
};
pub use prepared::{Applied, Prepared};
pub use sources::{MeanSource, Sources};
