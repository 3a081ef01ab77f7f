//! A run that has some edges of the model alone: what a reader gets from other writers is replaced.

use super::edge_set::EdgeSet;
use super::graph::{Graph, Reader, Writer};
use super::hook_checks::check_carried;
use super::writer_outputs::{WriterOutputs, stream, wide};
use candle_core::{Device, Result, Tensor};
use gpt2_model::Gpt2LMHeadModel;
use gpt2_model::hooks::{At, Head, Hooks, Point};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

const PASSES: &str = "the hooks of a circuit need whole passes of a batch, one after another";

/// Hooks that leave the model only a circuit's edges: along all others, readers get a replacement of the writer's
/// output.
///
/// They record each writer's output during a pass, separately for each thread, and need passes from the embeddings on,
/// one after another. Later hooks must not change the stream, or the output of attention or an MLP: see
/// [`check_carried`](super::check_carried). `Rest::Text` works without a cache and without padding.
#[derive(Debug)]
pub struct CircuitRun {
    edges: EdgeSet,
    /// The replacements of the writers' outputs along other edges.
    other: WriterOutputs,
    /// The residual streams that the replacements make: see [`WriterOutputs::streams`].
    streams: Vec<Tensor>,
    /// Whether the replacements come from one text.
    of_text: bool,
    /// Each writer's output less its replacement in a thread's run, (B, T, C), for the writers that have written so
    /// far, in the order of the graph.
    more: Mutex<HashMap<ThreadId, Vec<Tensor>>>,
}

/// The replacement of writers' outputs along edges that a circuit lacks, where there is no pair of texts.
#[derive(Debug, Clone, Copy)]
pub enum Rest<'a> {
    /// Zeros.
    Zero,
    /// The writers' outputs in a run over another text, (1, T), with as many tokens as the runs' own.
    Text(&'a Tensor),
    /// The mean of the writers' outputs over all positions of texts, (B, T) each.
    MeanOf(&'a [Tensor]),
}

impl CircuitRun {
    /// Hooks for runs of a model with a circuit alone.
    ///
    /// # Errors
    /// When the circuit is of a model with another number of layers or heads, `Rest::MeanOf` has no text, or a run over a text fails;
    /// and when no edge carries what `hooks` change, which come first in the runs over the rest's texts.
    pub fn new(
        model: &Gpt2LMHeadModel,
        circuit: &EdgeSet,
        rest: Rest,
        hooks: Option<&dyn Hooks>,
    ) -> Result<Self> {
        let graph = Graph::of(model.config())?;
        if circuit.graph() != graph {
            candle_core::bail!("the circuit belongs to a model with another number of layers or heads")
        }
        hooks.map_or(Ok(()), |hooks| check_carried(hooks, graph.layers()))?;
        let of_run = |ids: &Tensor| WriterOutputs::of_run(model, graph, ids, hooks);
        let other = match rest {
            Rest::Zero => WriterOutputs::zeros(model, graph)?,
            Rest::Text(ids) => of_run(ids)?,
            Rest::MeanOf(texts) => {
                WriterOutputs::mean(texts.iter().map(|ids| Ok((of_run(ids)?, ids.elem_count()))))?
            }
        };
        let streams = other.streams(model)?;
        let of_text = matches!(rest, Rest::Text(_));
        Ok(Self { of_text, ..Self::with(circuit, &other, &streams) })
    }

    /// Hooks for a circuit, given the replacements of the writers' outputs and the streams that these make.
    pub(super) fn with(circuit: &EdgeSet, other: &WriterOutputs, streams: &[Tensor]) -> Self {
        let other = other.clone();
        let streams = streams.to_vec();
        Self { edges: circuit.clone(), other, streams, of_text: false, more: Mutex::default() }
    }

    /// Calls `act` with what this thread has recorded.
    fn with_more<T>(&self, act: impl FnOnce(&mut Vec<Tensor>) -> T) -> T {
        let mut all = self.more.lock().unwrap_or_else(PoisonError::into_inner);
        act(all.entry(thread::current().id()).or_default())
    }

    /// Records what a writer, or all heads of a layer, add; `first` is its place in the order of the graph.
    fn write(&self, at: At, first: usize, value: &Tensor, other: &Tensor) -> Result<()> {
        let t = value.dim(1)?;
        let known = other.dim(1)?;
        if self.of_text && (at.cached || at.padding.is_some() || known != t) {
            candle_core::bail!(
                "what stands in for the rest of a circuit is of a text of {known} tokens: it serves whole texts of as many, without \
                 a cache or padding, and got {t} tokens"
            )
        }
        let more = wide(value)?.broadcast_sub(other)?;
        let more = if more.rank() == 4 {
            (0..more.dim(2)?).map(|head| more.narrow(2, head, 1)?.squeeze(2)).collect::<Result<Vec<_>>>()?
        } else {
            vec![more]
        };
        self.with_more(|all| {
            let fits = all.first().is_none_or(|before| before.dims() == more[0].dims());
            if all.len() != first || !fits {
                candle_core::bail!("{PASSES}")
            }
            all.extend(more);
            Ok(())
        })
    }

    /// The input that replaces `x` for readers of the same stream, (B, T, R, C), or (B, T, C) for one; `None` if they
    /// read all writers.
    fn read(&self, readers: &[Reader], x: &Tensor) -> Result<Option<Tensor>> {
        let Some(&first) = readers.first() else { return Ok(None) };
        let before = self.edges.graph().writers_before(first);
        let wanted = |has: bool| -> Vec<usize> {
            let of = |&writer: &usize| readers.iter().any(|&reader| self.edges.reads(reader, writer) == has);
            (0..before).filter(of).collect()
        };
        let kept = wanted(true);
        let lost = wanted(false);
        if lost.is_empty() {
            return Ok(None);
        }
        // Whichever is less: the other run's stream with what the circuit adds to it, or this run's without the rest.
        let adds = kept.len() <= lost.len();
        let (writers, has, factor) = if adds { (kept, true, 1f64) } else { (lost, false, -1.0) };
        let (b, t, c) = (x.dim(0)?, x.dim(1)?, x.dim(x.rank() - 1)?);
        let shape = (b, t, readers.len(), c);
        let base = if adds {
            let stream = &self.streams[stream(self.edges.graph(), first)];
            stream.unsqueeze(2)?.broadcast_as(shape)?
        } else {
            wide(x)?.reshape((b, t, (), c))?.broadcast_as(shape)?
        };
        let base = if writers.is_empty() {
            base.contiguous()?
        } else {
            let more: Vec<Tensor> =
                self.with_more(|all| writers.iter().filter_map(|&writer| all.get(writer).cloned()).collect());
            let is_whole = more.len() == writers.len() && more[0].dims() == [b, t, c];
            if !is_whole {
                candle_core::bail!("{PASSES}")
            }
            let more = Tensor::stack(&more, 0)?.reshape((writers.len(), b * t * c))?;
            let factor = |(&reader, &writer): (&Reader, &usize)| {
                if self.edges.reads(reader, writer) == has { factor } else { 0.0 }
            };
            let factors =
                readers.iter().flat_map(|reader| writers.iter().map(move |writer| (reader, writer)));
            let factors: Vec<f64> = factors.map(factor).collect();
            let factors = Tensor::from_vec(factors, (readers.len(), writers.len()), &Device::Cpu)?;
            let factors = factors.to_dtype(more.dtype())?.to_device(more.device())?;
            let sum = factors.matmul(&more)?.reshape((readers.len(), b, t, c))?.permute((1, 2, 0, 3))?;
            (base + sum)?
        };
        Ok(Some(base.reshape(x.shape())?.to_dtype(x.dtype())?))
    }
}

impl Hooks for CircuitRun {
    fn wants(&self, point: Point) -> bool {
        let writes = matches!(point, Point::ResidPre(0) | Point::Result(_) | Point::MlpOut(_));
        writes || !self.edges.graph().readers_at(point).is_empty()
    }

    fn at(&self, at: At, x: &Tensor) -> Result<Option<Tensor>> {
        match at.point {
            Point::ResidPre(_) => {
                self.with_more(Vec::clear);
                self.write(at, 0, x, &self.other.embed)?;
            }
            Point::Result(layer) => {
                let first = self.edges.graph().writer_index(Writer::Head(Head { layer, head: 0 }));
                self.write(at, first, x, &self.other.heads[layer])?;
            }
            Point::MlpOut(layer) => {
                let first = self.edges.graph().writer_index(Writer::Mlp(layer));
                self.write(at, first, x, &self.other.mlps[layer])?;
            }
            point => {
                let readers = self.edges.graph().readers_at(point);
                let read = self.read(&readers, x)?;
                // The last reader.
                if readers.contains(&Reader::Logits) {
                    self.with_more(std::mem::take);
                }
                return Ok(read);
            }
        }
        Ok(None)
    }
}
