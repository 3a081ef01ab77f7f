//! The formats of weight files: which tensors a file holds, and where.

pub(crate) mod gguf;
pub(crate) mod gguf_header;
pub(crate) mod gguf_parts;
pub(crate) mod gguf_types;
pub(crate) mod index;
pub(crate) mod json;
pub(crate) mod llmc;
pub(crate) mod pickle;
pub(crate) mod safetensors_file;
