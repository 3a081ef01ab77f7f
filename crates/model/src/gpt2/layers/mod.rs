//! The layers that hold the parameters, the updates that adapters put on them, and how they load.

pub mod conv1d;
pub(crate) mod embedding;
pub(crate) mod layer_norm;
pub mod linear;
pub(crate) mod lm_head;
pub(crate) mod loading;
pub(crate) mod low_rank_update;
pub mod parameters;
pub(crate) mod updates_of_layer;
