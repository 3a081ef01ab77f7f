//! Published methods for analyzing what attention does, each with its paper.
//!
//! | function | question |
//! |---|---|
//! | [`attention_rollout`] | which input tokens reach a position through all layers |
//! | [`head_scores`] | which heads look at the previous token, at a token's earlier occurrence, or just after that |
//! | [`logit_lens`] | what the model would predict after each block |
//! | [`direct_attribution`] | how much each head, MLP and embedding adds to a logit directly |
//! | [`activation_patching`] | which parts of a run carry what makes two texts differ |
//! | [`attribution_patching`] | the same of every part at once, to first order |
//! | [`gradients`], [`batch_gradients`] | how a prediction depends on the values at hook points |
//! | [`Comparison`] | how far the predictions of two models lie apart |
//! | [`surprises`] | how surprising each token of many texts is |
//! | [`likelihoods`] | how probable the ends of many texts are, and whether each is the most probable one |
//! | [`value_norms`] | how much each key adds to the residual stream |
//! | [`most_likely`] | which tokens are most likely to come next |
//! | [`ablation_effects`] | how ablating each head changes a token's probability, through everything that reads it |

mod attribution;
mod backward_hooks;
pub mod finite;
mod likelihood;
mod logit_lens;
pub(crate) mod mean_ablation;
mod metric;
mod patching;
mod patterns;
mod predictions;
mod readout;
mod text_metric;
mod values_at;

pub use attribution::{
    Attribution, BatchGradients, GradientHooks, Gradients, attribution_patching, batch_gradients, gradients,
};
pub use backward_hooks::{BackwardHooks, GradientFunction};
pub use likelihood::{Likelihood, PredictedEnd, likelihoods};
pub use logit_lens::{Centering, DirectAttribution, direct_attribution, logit_lens};
pub use metric::Metric;
pub use patching::{
    Ablation, AblationEffects, Contrast, Parts, Patched, ablation_effects, activation_patching,
};
pub use patterns::{
    HeadScores, RepeatedTokens, Score, attention_rollout, chance_scores, head_scores, head_vectors,
    value_norms,
};
pub use predictions::{Comparison, Likely, Surprises, highest, most_likely, surprises};
pub use text_metric::{Divergence, FunctionMetric, Loss, TextMetric, ValueAndGradient};
