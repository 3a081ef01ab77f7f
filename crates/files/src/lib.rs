//! Writes files whole or not at all, and reads only regular files.
//!
//! [`atomic`] fills a temporary file and renames it: a reader sees the old file or the new one, never half of
//! one. [`write_safetensors`] writes the same bytes for the same tensors. [`open_regular`] and [`read_text`] refuse pipes and
//! devices, which may never end.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("numbers.txt");
//! gpt2_files::atomic::write_bytes(&path, b"1 2 3")?;
//! assert_eq!(gpt2_files::read_text(&path, 100)?, "1 2 3");
//! # Ok(())
//! # }
//! ```

pub mod atomic;
mod error;
mod regular;
mod safetensors;

pub use candle_core;
pub use error::Error;
pub use regular::{open_regular, read_text};
pub use safetensors::write_safetensors;
