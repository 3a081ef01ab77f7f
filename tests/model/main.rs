//! GPT-2 and its block, compared with transformers and PyTorch, and with themselves.

mod analysis;
mod cache;
mod causality;
mod circuits;
#[path = "../common/mod.rs"]
mod common;
mod documents;
mod dropout;
mod generate;
mod gradients;
mod hooks;
mod lora;
#[path = "../common/models.rs"]
mod models;
mod padding;
mod parity;
mod quantized;
mod relatives;
