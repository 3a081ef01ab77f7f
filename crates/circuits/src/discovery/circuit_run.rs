//! A run that has some edges of the model alone: what a reader gets from other writers is replaced.

use super::edge_set::EdgeSet;
use super::graph::{Graph, Reader};
use super::written::{Written, stream, wide};
use candle_core::{Device, Result, Tensor};
use gpt2_model::Gpt2LMHeadModel;
use gpt2_model::hooks::{At, Hooks, Point};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// Hooks under which the model has a circuit's edges alone: along all others, readers get what stands in for the writers.
///
/// They take down what writers add from the start of a pass to its end, for each thread apart. With a cache, `Rest::Text` does not work.
#[derive(Debug)]
pub struct CircuitRun {
    edges: EdgeSet,
    /// What takes the place of writers along other edges.
    other: Written,
    /// The streams that these make: see [`Written::streams`].
    streams: Vec<Tensor>,
    /// How much more each writer adds in a thread's run, in the order of the graph: (B, T, C), of those that have written so far.
    more: Mutex<HashMap<ThreadId, Vec<Tensor>>>,
}

/// What stands in for writers along edges that a circuit lacks, where there is no pair of texts.
#[derive(Debug, Clone, Copy)]
pub enum Rest<'a> {
    /// Nothing.
    Zero,
    /// What they add in a run over another text, (1, T), of as many tokens as the runs' own.
    Text(&'a Tensor),
    /// The mean of what they add over all positions of texts, (B, T) each.
    MeanOf(&'a [Tensor]),
}

impl CircuitRun {
    /// Hooks for runs of a model with a circuit alone.
    ///
    /// # Errors
    /// When the circuit is of a model with another number of layers or heads, `Rest::MeanOf` has no text, or a run over a text fails.
    pub fn new(model: &Gpt2LMHeadModel, circuit: &EdgeSet, rest: Rest) -> Result<Self> {
        let graph = Graph::of(model.config())?;
        if circuit.graph() != graph {
            candle_core::bail!("the circuit belongs to a model with another number of layers or heads")
        }
        let other = match rest {
            Rest::Zero => Written::zeros(model, graph)?,
            Rest::Text(ids) => Written::of_run(model, graph, ids)?,
            Rest::MeanOf(texts) => {
                let runs =
                    texts.iter().map(|ids| Ok((Written::of_run(model, graph, ids)?, ids.elem_count())));
                Written::mean(runs)?
            }
        };
        let streams = other.streams(model)?;
        Ok(Self::with(circuit, &other, &streams))
    }

    /// The same, with values that stand in, and their streams.
    pub(super) fn with(circuit: &EdgeSet, other: &Written, streams: &[Tensor]) -> Self {
        Self {
            edges: circuit.clone(),
            other: other.clone(),
            streams: streams.to_vec(),
            more: Mutex::default(),
        }
    }

    /// Does something with what this thread's run has written so far.
    fn with_more<T>(&self, act: impl FnOnce(&mut Vec<Tensor>) -> T) -> T {
        let mut all = self.more.lock().unwrap_or_else(PoisonError::into_inner);
        act(all.entry(thread::current().id()).or_default())
    }

    /// Takes down what a writer, or all heads of a layer, add.
    fn write(&self, value: &Tensor, other: &Tensor) -> Result<()> {
        let (t, known) = (value.dim(1)?, other.dim(1)?);
        if known != 1 && known != t {
            candle_core::bail!("the other text of a circuit has {known} tokens, and this one {t}")
        }
        let more = wide(value)?.broadcast_sub(other)?;
        let more = if more.rank() == 4 {
            (0..more.dim(2)?).map(|head| more.narrow(2, head, 1)?.squeeze(2)).collect::<Result<Vec<_>>>()?
        } else {
            vec![more]
        };
        self.with_more(|all| all.extend(more));
        Ok(())
    }

    /// What readers of the same stream get instead of `x`, (B, T, R, C) or (B, T, C) for one: `None` if they get it from all
    /// writers.
    fn read(&self, readers: &[Reader], x: &Tensor) -> Result<Option<Tensor>> {
        let Some(&first) = readers.first() else { return Ok(None) };
        let before = self.edges.graph().writers_before(first);
        let wanted = |has: bool| -> Vec<usize> {
            let of = |&writer: &usize| readers.iter().any(|&reader| self.edges.reads(reader, writer) == has);
            (0..before).filter(of).collect()
        };
        let (kept, lost) = (wanted(true), wanted(false));
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
                self.with_more(|all| writers.iter().map(|&writer| all[writer].clone()).collect());
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
                self.write(x, &self.other.embed)?;
            }
            Point::Result(layer) => self.write(x, &self.other.heads[layer])?,
            Point::MlpOut(layer) => self.write(x, &self.other.mlps[layer])?,
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
