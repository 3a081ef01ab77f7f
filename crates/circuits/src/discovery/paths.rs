//! Path patching: what a sender tells a receiver.

use super::graph::{Edge, Reader, Writer};
use super::study::{Progress, Study};
use super::writer_outputs::{WriterOutputs, stream};
use candle_core::{Result, Tensor};
use gpt2_model::hooks::{At, Head, Hooks, Point};
use std::cell::RefCell;

/// The parts that stay as in the clean run while the senders' change travels to the receivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Freeze {
    /// Heads and MLPs: only the edges that lead straight from a sender to a receiver count (Goldowsky-Dill et al. 2023,
    /// "Localizing Model Behavior with Path Patching").
    #[default]
    All,
    /// Heads; MLPs pass on what they read (Wang et al. 2022, "Interpretability in the Wild").
    Heads,
    /// Nothing: all paths count.
    Nothing,
}

/// Senders, and the receivers that hear their change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The parts whose outputs come from the corrupted run.
    pub senders: Vec<Writer>,
    /// The parts that read the change. Everything else runs as in the clean run, except for what the receivers change
    /// in turn.
    pub receivers: Vec<Reader>,
    /// The parts that stay fixed between them.
    pub freeze: Freeze,
}

impl Study<'_> {
    /// The metric of each pair's clean text if the receivers read what the senders add in the corrupted run, for each entry of
    /// `all`: a run in which the senders are changed and what `freeze` names stays tells what each receiver reads, and one with
    /// these readings tells the metric.
    ///
    /// # Errors
    /// When a sender or a receiver does not exist, no sender comes before a receiver, and for those of `progress` and of the hooks.
    pub fn path_patching(&self, all: &[Paths], progress: &mut Progress) -> Result<Vec<Vec<f64>>> {
        all.iter().try_for_each(|paths| self.check_paths(paths))?;
        let mut metrics = vec![vec![0.0; self.pairs().len()]; all.len()];
        let mut done = 0;
        let total = self.batches().len() * all.len();
        for batch in self.batches() {
            let clean = self.written(&batch.clean)?;
            let corrupt = self.written(&batch.corrupt)?;
            for (paths, metrics) in all.iter().zip(&mut metrics) {
                let sending = Sending {
                    study: self,
                    paths,
                    clean: &clean,
                    corrupt: &corrupt,
                    streams: RefCell::default(),
                };
                self.logits(&batch.clean, &sending)?;
                let receiving = Receiving { study: self, paths, streams: sending.streams.into_inner() };
                batch.put(&self.logits(&batch.clean, &receiving)?, metrics)?;
                done += 1;
                progress(done, total)?;
            }
        }
        Ok(metrics)
    }

    fn check_paths(&self, Paths { senders, receivers, .. }: &Paths) -> Result<()> {
        let graph = self.graph();
        let has = format!("the model has layers 0 to {} of {} heads", graph.layers() - 1, graph.heads());
        if let Some(to) = receivers.iter().find(|&&to| graph.check(Edge { from: Writer::Embed, to }).is_err())
        {
            candle_core::bail!("there is no receiver {to}: {has}")
        }
        for &from in senders {
            if graph.check(Edge { from, to: Reader::Logits }).is_err() {
                candle_core::bail!("there is no sender {from}: {has}")
            }
            if !receivers.iter().any(|&to| graph.check(Edge { from, to }).is_ok()) {
                candle_core::bail!("path patching: no receiver comes after the sender {from}")
            }
        }
        if senders.is_empty() {
            candle_core::bail!("path patching needs a sender")
        }
        Ok(())
    }
}

/// The run in which the senders are changed; it takes down the streams that readers read.
struct Sending<'a> {
    study: &'a Study<'a>,
    paths: &'a Paths,
    clean: &'a WriterOutputs,
    corrupt: &'a WriterOutputs,
    /// In the order of [`stream`].
    streams: RefCell<Vec<Tensor>>,
}

impl Sending<'_> {
    /// The replacement of a part's output in this run; `None` if the output stays as computed.
    fn of(&self, writer: Writer) -> Result<Option<Tensor>> {
        let frozen = match self.paths.freeze {
            Freeze::All => true,
            Freeze::Heads => matches!(writer, Writer::Head(_)),
            Freeze::Nothing => false,
        };
        if self.paths.senders.contains(&writer) {
            return self.corrupt.of(writer).map(Some);
        }
        frozen.then(|| self.clean.of(writer)).transpose()
    }
}

impl Hooks for Sending<'_> {
    fn wants(&self, point: Point) -> bool {
        let last = self.study.graph().layers() - 1;
        match point {
            Point::ResidPre(_) | Point::MlpIn(_) | Point::Result(_) | Point::MlpOut(_) => true,
            Point::ResidPost(layer) => layer == last,
            _ => false,
        }
    }

    fn at(&self, at: At, x: &Tensor) -> Result<Option<Tensor>> {
        let changed = match at.point {
            Point::ResidPre(0) => self.of(Writer::Embed)?,
            Point::MlpOut(layer) => {
                return self.of(Writer::Mlp(layer))?.map(|new| new.to_dtype(x.dtype())).transpose();
            }
            Point::Result(layer) => {
                let heads = (0..x.dim(2)?).map(|head| {
                    Ok(match self.of(Writer::Head(Head { layer, head }))? {
                        Some(new) => new.to_dtype(x.dtype())?,
                        None => x.narrow(2, head, 1)?.squeeze(2)?,
                    })
                });
                return Tensor::stack(&heads.collect::<Result<Vec<_>>>()?, 2).map(Some);
            }
            _ => None,
        };
        let changed = changed.map(|new| new.to_dtype(x.dtype())).transpose()?;
        let mut streams = self.streams.borrow_mut();
        if at.point == Point::ResidPre(0) {
            streams.clear();
        }
        streams.push(changed.clone().unwrap_or_else(|| x.clone()));
        Ok(changed)
    }
}

/// The run in which the receivers read what that one took down.
struct Receiving<'a> {
    study: &'a Study<'a>,
    paths: &'a Paths,
    streams: Vec<Tensor>,
}

impl Hooks for Receiving<'_> {
    fn wants(&self, point: Point) -> bool {
        self.study.graph().readers_at(point).iter().any(|reader| self.paths.receivers.contains(reader))
    }

    fn at(&self, at: At, x: &Tensor) -> Result<Option<Tensor>> {
        let readers = self.study.graph().readers_at(at.point);
        let Some(&first) = readers.first() else { return Ok(None) };
        let sent = &self.streams[stream(self.study.graph(), first)]; // (B, T, C)
        if x.rank() == 3 {
            return Ok(Some(sent.clone()));
        }
        let heads = readers.iter().enumerate().map(|(head, reader)| {
            let hears = self.paths.receivers.contains(reader);
            if hears { Ok(sent.clone()) } else { x.narrow(2, head, 1)?.squeeze(2) }
        });
        Tensor::stack(&heads.collect::<Result<Vec<_>>>()?, 2).map(Some)
    }
}
