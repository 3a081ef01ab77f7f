//! Files are written whole or not at all, whatever happens during the write.

mod atomic;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/folder.rs"]
mod folder;
mod folder_of_files;
