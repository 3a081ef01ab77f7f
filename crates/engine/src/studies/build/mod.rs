//! The build itself: its speed, and how exactly it computes.

pub mod bench;
pub mod verify;
