//! Known ways to ask what attention does, each with its paper.
//!
//! | function | question |
//! |---|---|
//! | [`attention_rollout`] | which input tokens reach a position through all layers |
//! | [`head_scores`] | which heads look at the token before, at a repetition, or behind it |
//! | [`logit_lens`] | what the model would predict after each block |
//! | [`direct_logit_attribution`] | what each head writes into a token's logit, directly |
//! | [`ablation_effects`] | what ablating each head does to a token's probability, through whatever reads it |

mod effects;
mod head_scores;
mod logit_lens;
mod rollout;

pub use effects::{Ablation, AblationEffects, ablation_effects, direct_logit_attribution};
pub use head_scores::{HeadScores, head_scores, repeated_rows};
pub use logit_lens::logit_lens;
pub use rollout::attention_rollout;
