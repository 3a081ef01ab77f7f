//! The module of gpt2's live page, as bytes. This crate only holds them: `gpt2-web` writes the page around them.
//!
//! ```
//! // zlib's first byte: deflate with a window of 32 KiB.
//! assert_eq!(gpt2_page_module::PACKED[0], 0x78);
//! assert!(gpt2_page_module::LOADER.contains("wasm_bindgen"));
//! ```

/// The WebAssembly module, packed by zlib.
pub const PACKED: &[u8] = include_bytes!("../module/gpt2_web.wasm.zlib");

/// The script that loads it, as wasm-bindgen makes it for `no-modules`.
pub const LOADER: &str = include_str!("../module/gpt2_web.js");
