//! The module of gpt2's live page, as text. This crate only holds it: `gpt2-web` writes the page around it.
//!
//! ```
//! // In base64, zlib's first bytes: deflate with a window of 32 KiB, packed as far as it goes.
//! assert!(gpt2_page_module::PACKED.starts_with("eN"));
//! assert!(gpt2_page_module::PACKED.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte)));
//! assert!(gpt2_page_module::LOADER.contains("wasm_bindgen"));
//! ```

/// A script, since a page that is opened from disk may load nothing else: docs/live.html takes from it what other pages have inside.
const SCRIPT: &str = include_str!("../module/gpt2_web.wasm.js");
const BEFORE: &str = "(globalThis.gpt2Live ??= {})[\"module\"] = \"";
const AFTER: &str = "\";\n";

/// The WebAssembly module, packed by zlib, in base64.
pub const PACKED: &str = SCRIPT.split_at(SCRIPT.len() - AFTER.len()).0.split_at(BEFORE.len()).1;

/// The script that loads it, as wasm-bindgen makes it for `no-modules`.
pub const LOADER: &str = include_str!("../module/gpt2_web.js");
