//! Attention over a text: the weights of heads as a look, a page or tensors; the effect of each head; rollout.

mod effects;
mod look;
mod page;
mod rollout;
mod subject;
mod weights_page;

pub use effects::{ABLATIONS, DirectShares, EffectOptions, EffectReport, HeadEffect, MeasuredToken};
pub use look::{Keep, Look, Options};
pub use page::{AttentionPageOptions, PAGE_PARTS, PagePart};
pub use rollout::{RolloutOptions, RolloutReport};
pub use subject::{ChosenHeads, LayerValues, MOST_LINKED, Subject, all_heads, predictions};
pub use weights_page::{PageOptions, WeightsPage};
