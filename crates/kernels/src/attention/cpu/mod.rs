//! Fused attention on the CPU: no (T, S) tensor, memory linear in S, forward and [`backward`], as one Candle operation, and
//! one more for each tensor beside q, k and v that learns (see [`extra_gradients`]).
//!
//! Keys are packed once for the heads that share them; then each task walks a tile of queries through the keys that it sees
//! (see [`tile`]). A few queries against many keys (decoding) skip the packing and read k and v in
//! place (see [`decode`]). `pulp` chooses the instruction set at run time. Results depend neither on the
//! number of threads nor on their order: either one task computes a row, or the results of spans of a
//! fixed length are merged in order. The gradient of a bias that heads share is added up in their order (see [`added_gradient`]).

#![allow(unsafe_code)] // register blocks, the shared output and the shared sums; each unsafe block says why it is sound

mod added_gradient;
pub(super) mod attention_weights;
mod backward;
pub(super) mod blocks;
mod decode;
mod extra_gradients;
mod forward;
mod pack;
mod pass_inputs;
mod row_steps;
mod rows;
mod summary;
mod tile;
mod views;

use self::added_gradient::AddedGradient;
use self::backward::{HeadBackward, HeadGradients};
use self::extra_gradients::{SideGradient, returning_copy};
use self::forward::Forward;
use self::pass_inputs::{LogSum, PassInputs, SharedOutput};
use self::views::{HeadAt, Heads};
use crate::attention::heads::WeightDropout;
use crate::attention::inputs::Wanted;
use crate::attention::row_summary::RowSummary;
use crate::attention::scores::ScoreRules;
use crate::cpu::cpu_op::{CpuInput, CpuOp, OnCpu};
use crate::cpu::element::Element;
use crate::cpu::isa;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Device, Result, Shape, Tensor, WithDType};
use half::{bf16, f16};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// The operation as Candle sees it.
pub(super) struct CpuAttention {
    rules: ScoreRules,
    dropout: Option<WeightDropout>,
    /// The pages of k and v, if these are pools (pages, page size, key heads, D): only for B = 1 and without a backward pass.
    pages: Option<Vec<u32>>,
    /// (B, H, T), which the forward pass saves for the backward pass.
    log_sums: OnceLock<Vec<LogSum>>,
    summarize: bool,
    /// Whether the result is flat, in f32: the context (B, T, H, Dv), then the rows' natural log-sums (B, H, T). An operation
    /// has one result, and so both have one backward pass.
    with_log_sums: bool,
    /// Receives the gradient of the added scores (B or 1, H or 1, T, S), if they need one.
    of_added: Option<(Arc<SideGradient>, [usize; 4])>,
    /// Receives the gradient of the sinks (H), if they need one.
    of_sinks: Option<Arc<SideGradient>>,
    /// (B, H, T), which the forward pass fills if `summarize` is set.
    summaries: Arc<OnceLock<Vec<RowSummary>>>,
}

impl CpuAttention {
    pub(super) fn new(rules: ScoreRules, dropout: Option<WeightDropout>, wanted: Wanted) -> Self {
        let Wanted { summary: summarize, lse: with_log_sums, .. } = wanted;
        Self {
            rules,
            dropout,
            pages: None,
            log_sums: OnceLock::new(),
            summarize,
            with_log_sums,
            of_added: None,
            of_sinks: None,
            summaries: Arc::default(),
        }
    }

    /// Reads k and v as pools that hold a sequence in these pages.
    pub(super) fn in_pages(self, pages: &[u32]) -> Self {
        Self { pages: Some(pages.to_vec()), ..self }
    }

    /// The context (B, T, H, Dv) in the dtype of q, and the log-sums (B, H, T) if they are wanted. `added` and `sinks`
    /// are those that the rules hold as numbers.
    pub(super) fn run(
        mut self,
        [q, k, v]: [&Tensor; 3],
        added: Option<&Tensor>,
        sinks: Option<&Tensor>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let with_log_sums = self.with_log_sums;
        let mut v = v.clone();
        if let Some(added) = added.filter(|added| added.track_op()) {
            let (b, h, _, s) = added.dims4()?;
            let added = added.broadcast_as((b, h, q.dim(2)?, s))?; // a gradient for each query
            let (carrier, returned) = returning_copy(&v, &added)?;
            (v, self.of_added) = (carrier, Some((returned, added.dims4()?.into())));
        }
        if let Some(sinks) = sinks.filter(|sinks| sinks.track_op()) {
            let (carrier, returned) = returning_copy(&v, sinks)?;
            (v, self.of_sinks) = (carrier, Some(returned));
        }
        let out = q.apply_op3(k, &v, OnCpu(self))?;
        if !with_log_sums {
            return Ok((out, None));
        }
        let (context, log_sums) = split(&out, q)?;
        // A view would keep the memory of the context.
        let log_sums = if log_sums.track_op() { log_sums } else { log_sums.force_contiguous()? };
        Ok((context, Some(log_sums)))
    }

    /// The cell in which the forward pass stores the summary of each row (B, H, T).
    pub(super) fn summaries(&self) -> Arc<OnceLock<Vec<RowSummary>>> {
        self.summaries.clone()
    }

    fn compute<E: Element + WithDType>(&self, [q, k, v]: [CpuInput; 3]) -> Result<(CpuStorage, Shape)> {
        let of_keys = |x| match &self.pages {
            None => Heads::of(x),
            Some(pages) => Heads::in_pages(x, pages, self.rules.keys),
        };
        let q = Heads::of(q)?;
        let k = of_keys(k)?;
        let v = of_keys(v)?;
        let problem = PassInputs { q, k, v, rules: &self.rules, dropout: self.dropout };
        let [b, h, t, d] = problem.context_dims();
        let mut out = Vec::<E>::with_capacity(b * t * h * d);
        let mut log_sums = vec![LogSum::default(); b * h * t];
        let mut summaries = vec![RowSummary::default(); if self.summarize { b * h * t } else { 0 }];
        let uninit = &mut out.spare_capacity_mut()[..b * t * h * d];
        let wanted = self.summarize.then_some(summaries.as_mut_slice());
        let shared = SharedOutput::new(&problem, uninit, &mut log_sums, wanted);
        isa::arch().dispatch(Forward { problem: &problem, out: &shared });
        // SAFETY: `Forward` has written every row.
        unsafe { out.set_len(b * t * h * d) };
        let flat = self.with_log_sums.then(|| {
            let mut flat = Vec::with_capacity(out.len() + log_sums.len());
            flat.extend(out.iter().map(|x| x.to_f32()));
            flat.extend(log_sums.iter().map(|row| row.natural()));
            flat
        });
        // A second forward pass of the same operation would compute the same values.
        let _ = self.log_sums.set(log_sums);
        if self.summarize {
            let _ = self.summaries.set(summaries);
        }
        match flat {
            Some(flat) => {
                let shape = Shape::from(flat.len());
                Ok((CpuStorage::F32(flat), shape))
            }
            None => Ok((E::to_cpu_storage_owned(out), Shape::from((b, t, h, d)))),
        }
    }
}

impl CpuOp<3> for CpuAttention {
    const NAME: &'static str = "attention";

    fn forward(&self, inputs: [CpuInput; 3]) -> Result<(CpuStorage, Shape)> {
        use DType::{BF16, F16, F32, U8};
        match inputs.map(|x| x.storage.dtype()) {
            [F32, F32, F32] | [F32, F16, F16] | [F32, BF16, BF16] | [F32, U8, U8] => {
                self.compute::<f32>(inputs)
            }
            [F16, F16, F16] => self.compute::<f16>(inputs),
            [BF16, BF16, BF16] => self.compute::<bf16>(inputs),
            _ => candle_core::bail!(
                "attention: q, k and v must be all f32, all f16 or all bf16, or q f32 and k and v halves of one \
                 dtype or quantized"
            ),
        }
    }

    fn backward(
        &self,
        [q, k, v]: [&Tensor; 3],
        context: &Tensor,
        grad: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let Some(log_sums) = self.log_sums.get() else {
            candle_core::bail!("attention: the backward pass ran without a forward pass before it")
        };
        let (context, grad, of_log_sums) = if self.with_log_sums {
            let ((context, _), (grad, of_log_sums)) = (split(context, q)?, split(grad, q)?);
            (context, grad, Some(of_log_sums.flatten_all()?.to_vec1()?))
        } else {
            (context.clone(), grad.clone(), None)
        };
        let rows = SavedRows { log_sums, gradients: of_log_sums.as_deref() };
        let tensors = [q, k, v, &context, &grad];
        let [dq, dk, dv] = match q.dtype() {
            DType::F16 => self.gradients::<f16>(tensors, rows)?,
            DType::BF16 => self.gradients::<bf16>(tensors, rows)?,
            _ => self.gradients::<f32>(tensors, rows)?,
        };
        Ok([Some(dq), Some(dk), Some(dv)])
    }
}

/// The saved values of each row (B, H, T) that a backward pass needs: the log-sum, and the gradient of the log-sum.
#[derive(Clone, Copy)]
struct SavedRows<'a> {
    log_sums: &'a [LogSum],
    gradients: Option<&'a [f32]>,
}

impl CpuAttention {
    /// The gradients of q, k and v: contiguous, with the shapes and dtype of q, k and v.
    ///
    /// q (B, H, T, D), k (B, key heads, S, D), v (B, key heads, S, Dv); context and its gradient (B, T, H, Dv)
    fn gradients<E: Element + WithDType>(
        &self,
        [q, k, v, context, grad]: [&Tensor; 5],
        rows: SavedRows,
    ) -> Result<[Tensor; 3]> {
        let (context, grad) = (context.transpose(1, 2)?, grad.transpose(1, 2)?); // (B, H, T, Dv)
        let guards = [q, k, v, &context, &grad].map(|x| x.storage_and_layout());
        let view = |i: usize| Heads::of(CpuInput::new(&guards[i].0, guards[i].1)?);
        let context_view = view(3)?;
        let grad_view = view(4)?;
        let rules = &self.rules;
        let dropout = self.dropout;
        let problem = PassInputs { q: view(0)?, k: view(1)?, v: view(2)?, rules, dropout };
        let [b, h, t, dv] = problem.context_dims();
        if context_view.dims != [b, h, t, dv]
            || grad_view.dims != [b, h, t, dv]
            || rows.log_sums.len() != b * h * t
            || rows.gradients.is_some_and(|all| all.len() != b * h * t)
        {
            candle_core::bail!(
                "attention: the gradient {:?} does not fit queries {:?} and values {:?}",
                grad.dims(),
                q.dims(),
                v.dims()
            )
        }
        let mut added = self.of_added.as_ref().map(|(_, dims)| AddedGradient::new(*dims, b, h));
        let sums = added.as_mut().map(AddedGradient::sums);
        let heads = in_order(problem.heads(), |i, head| {
            let one = HeadBackward {
                problem: &problem,
                context: context_view,
                grad: grad_view,
                head,
                added: sums.as_ref(),
                log_sums: &rows.log_sums[i * t..(i + 1) * t],
                log_sum_grads: rows.gradients.map(|all| &all[i * t..(i + 1) * t]),
            };
            isa::arch().dispatch(one)
        });
        let group = problem.group();
        let [mut of_q, mut of_k, mut of_v] = [(); 3].map(|()| Vec::with_capacity(heads.len()));
        let mut of_sinks = vec![0.0; h];
        for (i, HeadGradients { qkv: [dq, dk, dv], sink }) in heads.into_iter().enumerate() {
            of_sinks[i % h] += sink;
            of_q.push(dq);
            of_k.push(dk);
            of_v.push(dv);
        }
        let qkv = [gather::<E>(of_q, 1, q)?, gather::<E>(of_k, group, k)?, gather::<E>(of_v, group, v)?];
        // Last: a thread that waits for others in between could run another pass over this operation.
        if let (Some((returned, dims)), Some(added)) = (&self.of_added, added) {
            returned.put(Tensor::from_vec(added.into_numbers(), &dims[..], &Device::Cpu)?);
        }
        if let Some(returned) = &self.of_sinks {
            returned.put(Tensor::from_vec(of_sinks, h, &Device::Cpu)?);
        }
        Ok(qkv)
    }
}

/// Splits a flat result or its gradient into the context (B, T, H, Dv), in the dtype of q, and the log-sums (B, H, T).
fn split(flat: &Tensor, q: &Tensor) -> Result<(Tensor, Tensor)> {
    let (b, h, t, _) = q.dims4()?;
    let rows = b * h * t;
    let numbers = flat.elem_count() - rows;
    let context = flat.narrow(0, 0, numbers)?.reshape((b, t, h, numbers / rows))?;
    let log_sums = flat.narrow(0, numbers, rows)?.reshape((b, h, t))?;
    Ok((context.to_dtype(q.dtype())?, log_sums))
}

/// Calls `task` with each head and its index: every thread takes the next free head, so that each head starts after the one
/// before it.
fn in_order<T: Send>(heads: Vec<HeadAt>, task: impl Fn(usize, HeadAt) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let take = || {
        let i = next.fetch_add(1, Ordering::Relaxed);
        heads.get(i).map(|head| (i, task(i, *head)))
    };
    let threads = rayon::current_num_threads().min(heads.len());
    let each = (0..threads).into_par_iter().with_max_len(1);
    let mut all: Vec<(usize, T)> = each.flat_map_iter(|_| std::iter::from_fn(take)).collect();
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, result)| result).collect()
}

/// The gradient of a tensor each of whose heads is shared by `group` heads: the sum of theirs.
fn gather<E: Element + WithDType>(mut heads: Vec<Vec<f32>>, group: usize, like: &Tensor) -> Result<Tensor> {
    heads.par_chunks_mut(group).for_each(|heads| {
        if let [sum, others @ ..] = heads {
            for other in others {
                sum.iter_mut().zip(other).for_each(|(sum, x)| *sum += *x);
            }
        }
    });
    let mut all = Vec::with_capacity(like.elem_count());
    for sum in heads.into_iter().step_by(group) {
        all.extend(sum.into_iter().map(E::from_f32));
    }
    Tensor::from_vec(all, like.shape(), &Device::Cpu)
}
