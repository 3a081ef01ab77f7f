//! A name that stands for nothing here, so that it is looked up on the Hub.

use std::fmt::{self, Display};

/// The kind of thing that a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HubThing {
    /// A model.
    Model,
    /// A file of a model's weights.
    ModelFile,
    /// An adapter of a model.
    Adapter,
    /// A sparse autoencoder or transcoder.
    Dictionary,
    /// A data set of an evaluation.
    DataSet,
}

/// The context of an error of the Hub: what was looked up there, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenForHub {
    /// The name as it was given.
    pub name: String,
    /// The kind of thing that it was taken for.
    pub kind: HubThing,
}

impl Display for TakenForHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kind } = self;
        let (there, taken) = match kind {
            HubThing::DataSet => return write!(f, "{name} is a data set on the Hub"),
            HubThing::Model => ("folder", "a model of the Hub"),
            HubThing::ModelFile => ("file", "one of the Hub"),
            HubThing::Adapter => ("folder", "an adapter on the Hub"),
            HubThing::Dictionary => ("folder", "a dictionary on the Hub"),
        };
        write!(f, "there is no {there} {name}, so it was taken for {taken}")
    }
}
