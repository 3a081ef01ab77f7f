//! Reading and changing what the model computes while it runs, at points named as in TransformerLens (Nanda &
//! Bloom 2022).
//!
//! A hook is asked which points it wants and is handed the value at each; what it returns takes the value's
//! place. Parts of the model that no hook wants keep their fused code, and a hook that only reads changes no bit
//! of the result. Ready-made changes are [`Interventions`]; exact weights and summaries are asked for as data
//! ([`ForwardArgs::weights`](crate::ForwardArgs::weights)), and need no hook.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use gpt2_model::hooks::{Point, on};
//! use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, init};
//!
//! # fn main() -> candle_core::Result<()> {
//! # let config = Config { n_layer: 2, n_head: 2, n_embd: 8, n_positions: 16, vocab_size: 11, ..Config::gpt2() };
//! # let model = Gpt2LMHeadModel::load(init::seeded(1, DType::F32, &Device::Cpu), &config)?;
//! # let input_ids = Tensor::new(&[[3u32, 1, 4, 1, 5]], &Device::Cpu)?;
//! let halve = on([Point::MlpOut(1)], |_, x| Ok(Some((x * 0.5)?)));
//! let output = model.forward(&input_ids, ForwardArgs { hooks: Some(&halve), ..Default::default() })?;
//! # Ok(())
//! # }
//! ```
//!
//! With a cache, a hook sees the new positions of each pass: [`At::past`] says how many came before them.
//! With `last_logits_only` the last block works for all positions where a hook wants one of its points, and the
//! result is the same.

mod interventions;
mod pass;
mod text;

pub(crate) use interventions::mean;
pub use interventions::{Head, Intervention, Interventions};
pub(crate) use pass::PassHooks;
pub use text::ParseError;

use candle_core::{Result, Tensor};
use std::cell::RefCell;
use std::fmt;

/// A place in the model; those of a block hold the layer, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Point {
    /// The residual stream before a block, (B, T, C); before block 0, the sum of the embeddings.
    ResidPre(usize),
    /// Queries, (B, T, H, D).
    Q(usize),
    /// The new positions' keys, before they go into the cache, (B, T, H, D).
    K(usize),
    /// The new positions' values, likewise.
    V(usize),
    /// The attention weights of all heads, (B, H, T, S), f32 at least. Wanting it computes all of them beside the
    /// fused kernel; replacing it replaces the context. Weights asked for as data are those before.
    Pattern(usize),
    /// Each head's context, before `c_proj`, (B, T, H, D).
    Z(usize),
    /// What attention adds to the residual stream, (B, T, C).
    AttnOut(usize),
    /// The residual stream between attention and MLP, (B, T, C).
    ResidMid(usize),
    /// What the MLP adds to the residual stream, (B, T, C).
    MlpOut(usize),
    /// The residual stream after a block, (B, T, C).
    ResidPost(usize),
    /// The output of `ln_f`, (B, T, C), or (B, 1, C) where the last block worked for the last position alone.
    LnFinal,
    /// The logits that are handed back, (B, T, V) or (B, 1, V).
    Logits,
}

impl Point {
    /// The points of one layer, in the order in which they are met.
    #[must_use]
    pub fn of_layer(layer: usize) -> [Self; 10] {
        [
            Self::ResidPre(layer),
            Self::Q(layer),
            Self::K(layer),
            Self::V(layer),
            Self::Pattern(layer),
            Self::Z(layer),
            Self::AttnOut(layer),
            Self::ResidMid(layer),
            Self::MlpOut(layer),
            Self::ResidPost(layer),
        ]
    }
}

impl fmt::Display for Point {
    /// TransformerLens' name, such as `blocks.3.attn.hook_z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layer, name) = match self {
            Self::ResidPre(l) => (l, "hook_resid_pre"),
            Self::Q(l) => (l, "attn.hook_q"),
            Self::K(l) => (l, "attn.hook_k"),
            Self::V(l) => (l, "attn.hook_v"),
            Self::Pattern(l) => (l, "attn.hook_pattern"),
            Self::Z(l) => (l, "attn.hook_z"),
            Self::AttnOut(l) => (l, "hook_attn_out"),
            Self::ResidMid(l) => (l, "hook_resid_mid"),
            Self::MlpOut(l) => (l, "hook_mlp_out"),
            Self::ResidPost(l) => (l, "hook_resid_post"),
            Self::LnFinal => return f.write_str("ln_final.hook_normalized"),
            Self::Logits => return f.write_str("logits"),
        };
        write!(f, "blocks.{layer}.{name}")
    }
}

/// Where a hook is called.
#[derive(Debug, Clone, Copy)]
pub struct At<'a> {
    /// The place in the model.
    pub point: Point,
    /// The position of the value's first row: how many tokens the cache held before this pass.
    pub past: usize,
    /// Whether the pass has a cache, and so may be one of several over one text.
    pub cached: bool,
    /// u8 (B, S), 1 = visible, where some positions are padding; not told at [`Point::Logits`].
    pub padding: Option<&'a Tensor>,
}

/// A key position that a query position may not attend to: its score is -inf before the softmax. Attention
/// knock-out of Geva et al. 2023, "Dissecting Recall of Factual Associations".
///
/// Positions are columns of the text, whatever the cache held already, in every row of the batch. A query that
/// is not among a pass's positions leaves that pass alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnockOut {
    /// The head, or all heads.
    pub head: Option<usize>,
    /// The position that attends.
    pub query: usize,
    /// The position that it may not see.
    pub key: usize,
}

/// What reads and changes values while a model runs. [`on`] makes one of a closure.
pub trait Hooks {
    /// Whether [`at`](Self::at) is to be called at a point. What is not wanted costs nothing.
    fn wants(&self, point: Point) -> bool;

    /// Handed the value at a point that is wanted; returns what takes its place, of the same shape and dtype, or
    /// `None` to leave it.
    ///
    /// # Errors
    /// Any error ends the forward pass.
    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>>;

    /// The pairs of positions between which a layer's attention is knocked out; the kernel leaves these keys out
    /// and nothing is computed twice.
    fn knocked_out(&self, _layer: usize) -> Vec<KnockOut> {
        vec![]
    }
}

impl fmt::Debug for dyn Hooks + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooks")
    }
}

/// Hooks that call `hook` at each of `points`.
pub fn on<F>(points: impl IntoIterator<Item = Point>, hook: F) -> impl Hooks
where
    F: Fn(At, &Tensor) -> Result<Option<Tensor>>,
{
    On { points: points.into_iter().collect(), hook }
}

struct On<F> {
    points: Vec<Point>,
    hook: F,
}

impl<F: Fn(At, &Tensor) -> Result<Option<Tensor>>> Hooks for On<F> {
    fn wants(&self, point: Point) -> bool {
        self.points.contains(&point)
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        (self.hook)(at, value)
    }
}

/// Several hooks, each handed what those before it left.
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a>(pub &'a [&'a dyn Hooks]);

impl Hooks for Chain<'_> {
    fn wants(&self, point: Point) -> bool {
        self.0.iter().any(|hooks| hooks.wants(point))
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        let mut replaced = None;
        for hooks in self.0.iter().filter(|hooks| hooks.wants(at.point)) {
            let current = replaced.as_ref().unwrap_or(value);
            replaced = hooks.at(at, current)?.or(replaced);
        }
        Ok(replaced)
    }

    fn knocked_out(&self, layer: usize) -> Vec<KnockOut> {
        self.0.iter().flat_map(|hooks| hooks.knocked_out(layer)).collect()
    }
}

/// Keeps the values at some points, those of the latest pass.
#[derive(Debug, Default)]
pub struct Recorder {
    points: Vec<Point>,
    found: RefCell<Vec<(Point, Tensor)>>,
}

impl Recorder {
    /// A recorder of `points`.
    #[must_use]
    pub fn new(points: impl IntoIterator<Item = Point>) -> Self {
        Self { points: points.into_iter().collect(), found: RefCell::default() }
    }

    /// The value at a point.
    ///
    /// # Errors
    /// When no pass came by it.
    pub fn value(&self, point: Point) -> Result<Tensor> {
        match self.found.borrow().iter().find(|(at, _)| *at == point) {
            Some((_, value)) => Ok(value.clone()),
            None => candle_core::bail!("Recorder: nothing was recorded at {point}"),
        }
    }
}

impl Hooks for Recorder {
    fn wants(&self, point: Point) -> bool {
        self.points.contains(&point)
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        let mut found = self.found.borrow_mut();
        found.retain(|(point, _)| *point != at.point);
        found.push((at.point, value.clone()));
        Ok(None)
    }
}
