//! The formats of weight files: which tensors a file holds, and where.

pub(crate) mod gguf;
pub(crate) mod gguf_header;
pub(crate) mod gguf_types;
pub(crate) mod pickle;
mod pickle_machine;
pub(crate) mod safetensors_file;
