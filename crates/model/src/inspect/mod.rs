//! Methods that look into a model: the published analyses, the search for numbers that are not finite, means for ablations.

pub mod analysis;
mod attribution;
pub mod finite;
mod logit_lens;
pub(crate) mod mean_ablation;
mod metric;
mod patching;
mod patterns;
mod predictions;
mod values_at;
