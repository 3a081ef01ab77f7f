//! The fused kernels against the eager operations, which define them.

#[path = "../common/mod.rs"]
mod common;
mod fused;
mod fused_backward;
mod weights;
