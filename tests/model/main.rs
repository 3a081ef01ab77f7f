//! GPT-2 and its block, compared with transformers and PyTorch, and with themselves.

mod analysis;
mod cache;
mod cache_codes;
mod candle_calls;
mod circuits;
#[path = "../common/mod.rs"]
mod common;
mod cross_attention;
mod cuda_graph;
mod dropout;
mod generate;
mod gpt_bigcode;
mod gradients;
mod hooks;
mod inputs;
mod loading;
mod lora;
#[path = "../common/models.rs"]
mod models;
mod parity;
mod processed;
mod quantized;
mod rows;
mod search;
mod surprises;
