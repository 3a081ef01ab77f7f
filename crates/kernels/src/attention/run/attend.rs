//! Runs attention: the context, and whatever else a call asks for.

use super::choice::AttentionCode;
use super::eager;
use super::summary::Summary;
use crate::attention::cpu::CpuAttention;
use crate::attention::cpu::attention_weights::CpuWeights;
use crate::attention::heads::WeightDropout;
use crate::attention::inputs::{Chosen, ChosenIndices, Inputs, Wanted};
use crate::attention::mask::Mask;
use crate::attention::quantized_rows;
use crate::attention::scores::ScoreRules;
use crate::attention::sdpa::Sdpa;
use crate::cpu::cpu_op::OnCpu;
use crate::cpu::element::accumulator;
use crate::cpu::explain::note;
use candle_core::{DType, Result, Tensor};

/// The result of attention.
#[derive(Debug)]
pub struct Attended {
    /// `weights·v`, (B, T, H, Dv).
    pub context: Tensor,
    /// A tensor (B, heads, queries, S) for each entry of [`Wanted::weights`], in f32, or f64 for f64 inputs.
    pub weights: Vec<Tensor>,
    /// The summary, if it was asked for.
    pub summary: Option<Summary>,
    /// `ln Σ exp(score)` over the keys that a query sees, if it was asked for: (B, H, T) in f32, or in f64 for f64 inputs. The
    /// scores are scaled, capped, and include the added tensor, as in the softmax. It is -inf for a query that sees no key; a
    /// sink counts among the keys. It has a gradient; context and log-sums together take one backward pass.
    /// [`merge`](crate::attention::merge) joins attention over several sets of keys with it.
    pub lse: Option<Tensor>,
}

impl From<Tensor> for Attended {
    /// A context alone.
    fn from(context: Tensor) -> Self {
        Self { context, weights: vec![], summary: None, lse: None }
    }
}

impl Sdpa {
    /// The context of each query, `weights·v`. Scores, softmax and sums are f32 or wider; the result has the dtype of `q`, to
    /// which `k` and `v` are converted if they have another; only the CPU's fused kernels read halves under f32 in place. A
    /// query with no visible key gets a context of zeros.
    ///
    /// `k` and `v` in u8 are rows that [`quantize_rows`](crate::attention::quantize_rows) made, D + 4 and Dv + 4 bytes wide. The CPU reads them under
    /// queries in f32 that need no gradient; anything else is an error. The CPU's fused kernels read them in place.
    ///
    /// # Shapes
    /// `q` (B, H, T, D), `k` (B, key heads, S, D), `v` (B, key heads, S, Dv), with any strides -> (B, T, H, Dv), contiguous,
    /// so that merging the heads is a reshape.
    ///
    /// # Errors
    /// When the shapes do not fit each other, the options or the mask.
    pub fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: Mask) -> Result<Tensor> {
        Ok(self.attend(q, k, v, mask, Wanted::default())?.context)
    }

    /// Like [`forward`](Self::forward), but also returns the weights of all heads and queries, after dropout, as they
    /// multiply v.
    ///
    /// # Shapes
    /// context (B, T, H, Dv), weights (B, H, T, S) in f32, or in f64 for f64 inputs.
    ///
    /// # Errors
    /// When the shapes do not fit each other, the options or the mask.
    pub fn forward_with_weights(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: Mask,
    ) -> Result<(Tensor, Tensor)> {
        let wanted = Wanted { weights: &[Chosen::default()], ..Wanted::default() };
        let mut attended = self.attend(q, k, v, mask, wanted)?;
        Ok((attended.context, attended.weights.remove(0)))
    }

    /// Like [`forward`](Self::forward), but also returns whatever `wanted` asks for.
    ///
    /// The weights are those that multiply v, after dropout, and a gradient flows through them to q and k. A [`Summary`]
    /// describes the weights before dropout and has no gradient.
    ///
    /// # Shapes
    /// `q` (B, H, T, D), `k` (B, key heads, S, D), `v` (B, key heads, S, Dv) -> see [`Attended`]
    ///
    /// # Errors
    /// When the shapes do not fit each other, the options or the mask, or a chosen head or query does not exist.
    pub fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: Mask, wanted: Wanted) -> Result<Attended> {
        self.attend_after(q, k, v, mask, wanted, 0)
    }

    /// [`attend`](Self::attend), where the first rows of dropout's mask belong to other sequences.
    pub(super) fn attend_after(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: Mask,
        wanted: Wanted,
        rows_before: usize,
    ) -> Result<Attended> {
        let inputs = Inputs::from_tensors(q, k, v, mask);
        self.check(&inputs, mask)?;
        if k.dim(2)? == 0 {
            return self.without_keys(q, v, wanted);
        }
        let dropout = self.checked_dropout(q, rows_before)?;
        let (_, h, t, _) = q.dims4()?;
        let code = match self.choose(&inputs, dropout)? {
            AttentionCode::Gpu(_) if wanted.lse => AttentionCode::Eager,
            code => code,
        };
        let in_place = matches!(code, AttentionCode::Cpu) && inputs.has_narrow_keys() && !self.learns_sinks();
        note(|| self.explained(&inputs, mask, &code, in_place));
        let as_read =
            |x: &Tensor| if in_place { Ok(x.clone()) } else { quantized_rows::to_dtype(x, q.dtype()) };
        let k = &as_read(k)?;
        let v = &as_read(v)?;
        let chosen_weights = || {
            let of = |chosen| self.weights_under(q, k, mask, chosen, dropout.as_ref());
            wanted.weights.iter().map(of).collect::<Result<_>>()
        };
        let eager_summary = || wanted.summary.then(|| Summary::eager(self, q, k, mask)).transpose();
        match code {
            AttentionCode::Cpu => {
                let rules = ScoreRules::new(self, mask, q, k.dim(2)?)?;
                let op = CpuAttention::new(rules, dropout, wanted);
                Ok(Attended { weights: chosen_weights()?, ..self.run(op, [q, k, v], mask)? })
            }
            AttentionCode::Gpu(kernel) => Ok(Attended {
                context: kernel([q, k, v], mask)?,
                weights: chosen_weights()?,
                summary: eager_summary()?,
                lse: None,
            }),
            AttentionCode::Eager => {
                let rows = Chosen::default().resolve(h, t)?;
                let scores = eager::Scores::new(self, q, k, mask, &rows)?;
                let all = Self::dropped(scores.softmax()?, dropout.as_ref(), &rows)?; // (B, H, T, S)
                let of_all = |chosen: &Chosen| chosen.resolve(h, t)?.of_queries(&all);
                let context = if mask.hides_nothing() {
                    eager::context(&all, v, q.dtype())?
                } else {
                    scores.context(&all, v, q.dtype())?
                };
                Ok(Attended {
                    context,
                    weights: wanted.weights.iter().map(of_all).collect::<Result<_>>()?,
                    summary: eager_summary()?,
                    lse: wanted.lse.then(|| scores.log_sums()).transpose()?,
                })
            }
        }
    }

    /// Runs the CPU's kernels, which compute everything but weights.
    pub(super) fn run(&self, op: CpuAttention, qkv: [&Tensor; 3], mask: Mask) -> Result<Attended> {
        let (b, h, t, _) = qkv[0].dims4()?;
        let rows = op.summaries();
        let (context, lse) = op.run(qkv, mask.added, self.sinks.as_ref())?;
        let summary = rows.get().map(|rows| Summary::from_rows(rows, b, h, t)).transpose()?;
        Ok(Attended { context, weights: vec![], summary, lse })
    }

    /// The dropout on the weights of `q` (B, H, T, D), if it drops any, after rows of its mask that belong to other sequences.
    pub(super) fn checked_dropout(&self, q: &Tensor, rows_before: usize) -> Result<Option<WeightDropout>> {
        let (b, h, t, d) = q.dims4()?;
        let dropout = self.weight_dropout(h, t, d, rows_before);
        let rows = rows_before + b * self.layer_heads(h) * t;
        if dropout.is_some() && u32::try_from(rows).is_err() {
            candle_core::bail!("attention: dropout on {rows} rows of weights, expected fewer than 2^32")
        }
        Ok(dropout)
    }

    /// The log-sums of queries without keys, in f32 or wider: the sinks, or -inf.
    fn log_sums_of_nothing(&self, (b, h, t): (usize, usize, usize), q: &Tensor) -> Result<Tensor> {
        let wide = accumulator(q.dtype());
        match &self.sinks {
            Some(sinks) => sinks.to_dtype(wide)?.reshape((1, h, 1))?.broadcast_as((b, h, t))?.contiguous(),
            None => Tensor::full(f32::NEG_INFINITY, (b, h, t), q.device())?.to_dtype(wide),
        }
    }

    /// Returns the result for queries without any key: zeros, a summary of zeros, and log-sums over the sinks alone.
    pub(super) fn without_keys(&self, q: &Tensor, v: &Tensor, wanted: Wanted) -> Result<Attended> {
        let ((b, h, t, _), (_, _, s, width)) = (q.dims4()?, v.dims4()?);
        let dv = width.saturating_sub(quantized_rows::extra(v.dtype()));
        let weights = |chosen: &Chosen| {
            let rows = chosen.resolve(h, t)?;
            let shape = (b, rows.heads.len(), rows.queries.len(), s);
            Tensor::zeros(shape, accumulator(q.dtype()), q.device())
        };
        Ok(Attended {
            context: Tensor::zeros((b, t, h, dv), q.dtype(), q.device())?,
            weights: wanted.weights.iter().map(weights).collect::<Result<_>>()?,
            summary: wanted.summary.then(|| Summary::zeros((b, h, t), q.device())).transpose()?,
            lse: wanted.lse.then(|| self.log_sums_of_nothing((b, h, t), q)).transpose()?,
        })
    }

    /// The weights of chosen heads and queries alone, after dropout, as they multiply v: computed from q and k, in memory for
    /// the chosen ones. A gradient flows through them to q and k.
    ///
    /// # Shapes
    /// `q` (B, H, T, D), `k` (B, key heads, S, D) -> (B, heads, queries, S) in f32, or in f64 for f64 inputs
    ///
    /// # Errors
    /// When the shapes do not fit each other, the options or the mask, or a chosen head or query does not exist.
    pub fn weights(&self, q: &Tensor, k: &Tensor, mask: Mask, chosen: &Chosen) -> Result<Tensor> {
        self.check(&Inputs::from_tensors(q, k, k, mask), mask)?;
        let (_, h, t, d) = q.dims4()?;
        self.weights_under(q, k, mask, chosen, self.weight_dropout(h, t, d, 0).as_ref())
    }

    pub(super) fn weights_under(
        &self,
        q: &Tensor,
        k: &Tensor,
        mask: Mask,
        chosen: &Chosen,
        dropout: Option<&WeightDropout>,
    ) -> Result<Tensor> {
        let (_, h, t, _) = q.dims4()?;
        let rows = chosen.resolve(h, t)?;
        let inputs = Inputs::from_tensors(q, k, k, mask);
        // The kernel gives a gradient to q and k alone.
        let for_kernel = !inputs.added_gradient && !self.learns_sinks();
        let weights = if for_kernel && self.has_cpu_kernel(&inputs) {
            let rules = ScoreRules::new(self, mask, q, k.dim(2)?)?;
            let op = OnCpu(CpuWeights { rules, rows: rows.clone() });
            rows.of_queries(q)?.apply_op2(&quantized_rows::to_dtype(&rows.of_keys(k)?, q.dtype())?, op)?
        } else {
            eager::Scores::new(self, q, &quantized_rows::to_dtype(k, q.dtype())?, mask, &rows)?.softmax()?
        };
        Self::dropped(weights, dropout, &rows)
    }

    /// `weights` (B, heads, queries, S) after dropout, if there is any.
    fn dropped(weights: Tensor, dropout: Option<&WeightDropout>, rows: &ChosenIndices) -> Result<Tensor> {
        match dropout {
            Some(dropout) => eager::dropped(&weights, dropout, rows),
            None => Ok(weights),
        }
    }

    /// The scores before the softmax, by plain operations: scaled, capped, with the added tensor, and -inf where a query does
    /// not see a key. Sinks have no place among them, so that [`softmax`](Self::softmax) makes weights as if there were none.
    ///
    /// # Shapes
    /// `q` (B, H, T, D), `k` (B, key heads, S, D) -> (B, H, T, S) in f32, or in f64 for f64 inputs
    ///
    /// # Errors
    /// When the shapes do not fit each other, the options or the mask.
    pub fn scores(&self, q: &Tensor, k: &Tensor, mask: Mask) -> Result<Tensor> {
        self.check(&Inputs::from_tensors(q, k, k, mask), mask)?;
        let rows = Chosen::default().resolve(q.dim(1)?, q.dim(2)?)?;
        eager::Scores::new(self, q, &quantized_rows::to_dtype(k, q.dtype())?, mask, &rows)?.masked()
    }

    /// The weights of `scores` without sinks: their softmax over the last dimension, and zeros where all scores of a row are -inf.
    ///
    /// # Shapes
    /// `scores` (.., S) -> (.., S)
    ///
    /// # Errors
    /// When the device fails.
    pub fn softmax(scores: &Tensor) -> Result<Tensor> {
        eager::softmax(scores, &scores.ne(f64::NEG_INFINITY)?)
    }

    /// The context for weights that you supply, in the layout of [`forward`](Self::forward).
    ///
    /// # Shapes
    /// `weights` (B, H, T, S), `v` (B, key heads, S, Dv) -> (B, T, H, Dv) in the dtype of `v`; f32 if `v` is quantized,
    /// (B, key heads, S, Dv + 4)
    ///
    /// # Errors
    /// When the shapes do not fit each other.
    pub fn context(weights: &Tensor, v: &Tensor) -> Result<Tensor> {
        let dtype = if v.dtype() == DType::U8 { DType::F32 } else { v.dtype() };
        eager::context(weights, &quantized_rows::to_dtype(v, dtype)?, dtype)
    }
}
