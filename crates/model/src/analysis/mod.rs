//! Published methods for analysing what attention does, each with its paper.
//!
//! | function | question |
//! |---|---|
//! | [`attention_rollout`] | which input tokens reach a position through all layers |
//! | [`head_scores`] | which heads look at the previous token, at a token's earlier occurrence, or just after that |
//! | [`logit_lens`] | what the model would predict after each block |
//! | [`direct_logit_attribution`] | how much each head contributes directly to a token's logit |
//! | [`Comparison`] | how far the predictions of two models lie apart |
//! | [`surprises`] | how surprising each token of many texts is |
//! | [`ablation_effects`] | how ablating each head changes a token's probability, through everything that reads it |

mod comparison;
mod effects;
mod head_scores;
mod logit_lens;
mod rollout;
mod surprise;

pub use comparison::Comparison;
pub use effects::{Ablation, AblationEffects, ablation_effects, direct_logit_attribution};
pub use head_scores::{HeadScores, head_scores, repeated_rows};
pub use logit_lens::logit_lens;
pub use rollout::attention_rollout;
pub use surprise::{Surprises, surprises};
