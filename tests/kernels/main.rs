//! The fused kernels against the eager operations, which define them.

#[path = "../common/mod.rs"]
mod common;
mod features;
mod fused;
mod fused_backward;
mod pytorch;
mod signatures;
mod weights;
