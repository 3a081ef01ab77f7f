//! The model that a command runs: where its files come from, and on which device.

pub(crate) mod adapters;
pub(crate) mod attention_layer;
pub(crate) mod device;
pub(crate) mod dictionaries;
pub(crate) mod finite;
pub(crate) mod hub;
pub(crate) mod session;
