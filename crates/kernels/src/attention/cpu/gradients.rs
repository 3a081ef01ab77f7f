//! The gradients of q, k and v, from those of single heads.

use super::backward::HeadBackward;
use super::heads::Heads;
use super::log_sum::LogSum;
use super::problem::Problem;
use crate::attention::drop_weights::WeightDropout;
use crate::attention::scores::ScoreRules;
use crate::element::Element;
use crate::isa;
use candle_core::{Device, Result, Storage, Tensor, WithDType};
use rayon::prelude::*;

/// What the forward pass saved for the backward pass.
pub(super) struct Saved<'a> {
    pub(super) rules: &'a ScoreRules,
    pub(super) dropout: Option<WeightDropout>,
    /// (B, H, T)
    pub(super) log_sums: &'a [LogSum],
}

impl Saved<'_> {
    /// The gradients of q, k and v: contiguous, with the shapes and dtype of q, k and v.
    ///
    /// q (B, H, T, D), k (B, key heads, S, D), v (B, key heads, S, Dv); context and its gradient (B, T, H, Dv)
    pub(super) fn gradients<E: Element + WithDType>(&self, tensors: [&Tensor; 5]) -> Result<[Tensor; 3]> {
        let [q, k, v, context, grad] = tensors;
        let (context, grad) = (context.transpose(1, 2)?, grad.transpose(1, 2)?); // (B, H, T, Dv)
        let guards = [q, k, v, &context, &grad].map(|x| x.storage_and_layout());
        let views = guards.iter().map(|(storage, layout)| match &**storage {
            Storage::Cpu(storage) => Heads::new(storage.as_slice::<E>()?, layout),
            _ => candle_core::bail!("attention: the CPU's backward pass needs tensors on the CPU"),
        });
        let views = views.collect::<Result<Vec<Heads<E>>>>()?;
        let [q_view, k_view, v_view, context_view, grad_view] = views[..] else {
            candle_core::bail!("attention: the backward pass takes five tensors")
        };
        let problem = Problem { q: q_view, k: k_view, v: v_view, rules: self.rules, dropout: self.dropout };
        let [b, h, t, dv] = problem.context_dims();
        if context_view.dims != [b, h, t, dv]
            || grad_view.dims != [b, h, t, dv]
            || self.log_sums.len() != b * h * t
        {
            candle_core::bail!(
                "attention: the gradient {:?} does not fit queries {:?} and values {:?}",
                grad.dims(),
                q.dims(),
                v.dims()
            )
        }
        let heads: Vec<[Vec<f32>; 3]> = problem
            .heads()
            .into_par_iter()
            .enumerate()
            .map(|(i, head)| {
                let log_sums = &self.log_sums[i * t..(i + 1) * t];
                let one = HeadBackward {
                    problem: &problem,
                    context: context_view,
                    grad: grad_view,
                    head,
                    log_sums,
                };
                isa::arch().dispatch(one)
            })
            .collect();
        let group = problem.group();
        let [mut of_q, mut of_k, mut of_v] = [(); 3].map(|()| Vec::with_capacity(heads.len()));
        for [dq, dk, dv] in heads {
            of_q.push(dq);
            of_k.push(dk);
            of_v.push(dv);
        }
        Ok([gather::<E>(of_q, 1, q)?, gather::<E>(of_k, group, k)?, gather::<E>(of_v, group, v)?])
    }
}

/// The gradient of a tensor, from those of heads of which `group` share each of its heads: their sum.
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
