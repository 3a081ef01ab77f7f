//! GPT-2. In reading order: `attention/causal_self_attention.rs`, `mlp.rs`, `block.rs`, `model.rs`, `lm_head_model.rs`.

pub(crate) mod apply_adapter;
pub(crate) mod args_and_outputs;
pub(crate) mod attention;
pub mod block;
pub(crate) mod checked_inputs;
pub(crate) mod layers;
pub(crate) mod lm_head_model;
pub mod lora;
pub mod mlp;
pub mod model;
pub(crate) mod parameter_list;
pub(crate) mod processed;
pub(crate) mod recompute;
pub(crate) mod stacked_weights;
