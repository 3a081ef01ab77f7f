//! The commands that show how a model computes: what heads, layers and features do.

pub(super) mod attention;
pub(super) mod circuits;
pub(super) mod discover;
pub(super) mod features;
pub(super) mod graph;
pub(super) mod heads;
pub(super) mod lens;
pub(super) mod pairs;
pub(super) mod patch;
