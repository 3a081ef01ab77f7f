//! A run that has some edges of the model alone: what a reader gets from other writers is replaced.

use super::edge_set::EdgeSet;
use super::graph::Reader;
use super::written::{Written, stream, wide};
use candle_core::{Device, Result, Tensor};
use gpt2_model::hooks::{At, Hooks, Point};
use std::cell::RefCell;

/// Hooks of a run with a circuit's edges.
#[derive(Debug)]
pub(super) struct CircuitRun<'a> {
    edges: &'a EdgeSet,
    /// What takes the place of writers along other edges.
    other: &'a Written,
    /// The streams that these make: see [`Written::streams`].
    streams: &'a [Tensor],
    /// How much more each writer adds in this run, in the order of the graph: (B, T, C), of those that have written so far.
    more: RefCell<Vec<Tensor>>,
}

impl<'a> CircuitRun<'a> {
    pub(super) fn new(edges: &'a EdgeSet, other: &'a Written, streams: &'a [Tensor]) -> Self {
        Self { edges, other, streams, more: RefCell::default() }
    }

    /// Takes down what a writer, or all heads of a layer, add.
    fn write(&self, value: &Tensor, other: &Tensor) -> Result<()> {
        let more = wide(value)?.broadcast_sub(other)?;
        let mut all = self.more.borrow_mut();
        if more.rank() == 4 {
            for head in 0..more.dim(2)? {
                all.push(more.narrow(2, head, 1)?.squeeze(2)?);
            }
        } else {
            all.push(more);
        }
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
            let all = self.more.borrow();
            let more = writers.iter().map(|&writer| &all[writer]).collect::<Vec<_>>();
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

impl Hooks for CircuitRun<'_> {
    fn wants(&self, point: Point) -> bool {
        let writes = matches!(point, Point::ResidPre(0) | Point::Result(_) | Point::MlpOut(_));
        writes || !self.edges.graph().readers_at(point).is_empty()
    }

    fn at(&self, at: At, x: &Tensor) -> Result<Option<Tensor>> {
        match at.point {
            Point::ResidPre(_) => {
                self.more.borrow_mut().clear();
                self.write(x, &self.other.embed)?;
            }
            Point::Result(layer) => self.write(x, &self.other.heads[layer])?,
            Point::MlpOut(layer) => self.write(x, &self.other.mlps[layer])?,
            point => return self.read(&self.edges.graph().readers_at(point), x),
        }
        Ok(None)
    }
}
