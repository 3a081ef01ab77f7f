//! One subcommand a file.

pub(crate) mod attention;
pub(crate) mod bench;
pub(crate) mod circuits;
pub(crate) mod compare;
pub(crate) mod download;
pub(crate) mod forward;
pub(crate) mod generate;
pub(crate) mod heads;
pub(crate) mod inspect;
pub(crate) mod lens;
pub(crate) mod merge;
pub(crate) mod models;
pub(crate) mod patch;
pub(crate) mod quantize;
pub(crate) mod score;
pub(crate) mod shell;
pub(crate) mod train;
pub(crate) mod verify;
pub(crate) mod verify_cache;
