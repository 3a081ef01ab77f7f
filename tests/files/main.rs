//! Files are whole or not there, whatever happens while they are written.

mod atomic;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/folder.rs"]
mod folder;
