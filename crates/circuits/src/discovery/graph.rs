//! The writers to the residual stream, its readers, and the edges between them.

use candle_core::Result;
use gpt2_model::Config;
use gpt2_model::hooks::{Head, Point};
use std::fmt;
use std::str::FromStr;

/// A part of the model that adds to the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Writer {
    /// The embeddings of tokens and positions.
    Embed,
    /// A head, without `c_proj`'s bias.
    Head(Head),
    /// A layer's MLP.
    Mlp(usize),
}

/// A part of the model that reads the residual stream, through a layer norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reader {
    /// The queries of a head.
    Query(Head),
    /// The keys of a head.
    Key(Head),
    /// The values of a head.
    Value(Head),
    /// A layer's MLP.
    Mlp(usize),
    /// The logits.
    Logits,
}

impl Reader {
    /// The part of the model that reads, as a writer; `None` for the logits.
    pub(super) fn part(self) -> Option<Writer> {
        match self {
            Self::Query(head) | Self::Key(head) | Self::Value(head) => Some(Writer::Head(head)),
            Self::Mlp(layer) => Some(Writer::Mlp(layer)),
            Self::Logits => None,
        }
    }
}

/// From a writer to a reader behind it. Its text is `0.1->3.2.q`: `L.H` is a head, `L.mlp` an MLP, `embed` and `logits` are the ends.
///
/// ```
/// use gpt2_circuits::discovery::{Edge, Reader, Writer};
/// use gpt2_model::hooks::{Head, Point};
///
/// let edge = Edge { from: Writer::Head(Head { layer: 0, head: 1 }), to: Reader::Query(Head { layer: 3, head: 2 }) };
/// assert_eq!(edge.to_string(), "0.1->3.2.q");
/// assert_eq!("0.1->3.2.q".parse(), Ok(edge));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// The writer.
    pub from: Writer,
    /// The reader.
    pub to: Reader,
}

/// All writers, readers and edges of a model, in the order of the forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Graph {
    layers: usize,
    heads: usize,
}

impl Graph {
    /// The graph of a model.
    ///
    /// # Errors
    /// When heads share keys and values, or attend to an encoder.
    pub fn of(config: &Config) -> Result<Self> {
        if config.heads().key_heads != config.n_head {
            candle_core::bail!("edges: heads that share keys and values are not supported")
        }
        if config.add_cross_attention {
            candle_core::bail!("edges: a model that attends to an encoder is not supported")
        }
        Ok(Self { layers: config.n_layer, heads: config.n_head })
    }

    /// L
    #[must_use]
    pub fn layers(self) -> usize {
        self.layers
    }

    /// H
    #[must_use]
    pub fn heads(self) -> usize {
        self.heads
    }

    /// The number of writers, 1 + L·(H + 1).
    #[must_use]
    pub fn writer_count(self) -> usize {
        1 + self.layers * (self.heads + 1)
    }

    /// The number of readers, L·(3·H + 1) + 1.
    #[must_use]
    pub fn reader_count(self) -> usize {
        self.layers * (3 * self.heads + 1) + 1
    }

    /// The embeddings, then each layer's heads and its MLP.
    pub fn writers(self) -> impl Iterator<Item = Writer> {
        (0..self.writer_count()).map(move |index| self.writer(index))
    }

    /// Each layer's queries, keys, values and its MLP, then the logits.
    pub fn readers(self) -> impl Iterator<Item = Reader> {
        (0..self.reader_count()).map(move |index| self.reader(index))
    }

    /// All edges, by reader, then by writer.
    pub fn edges(self) -> impl Iterator<Item = Edge> {
        self.readers().flat_map(move |to| {
            self.writers().take(self.writers_before(to)).map(move |from| Edge { from, to })
        })
    }

    /// The number of edges: 32,491 in GPT-2 small.
    #[must_use]
    pub fn edge_count(self) -> usize {
        self.readers().map(|reader| self.writers_before(reader)).sum()
    }

    /// The readers of the stream at a hook point, by head; none at other points.
    pub(super) fn readers_at(self, point: Point) -> Vec<Reader> {
        let heads = |layer: usize, kind: fn(Head) -> Reader| {
            (0..self.heads).map(|head| kind(Head { layer, head })).collect()
        };
        match point {
            Point::QInput(layer) => heads(layer, Reader::Query),
            Point::KInput(layer) => heads(layer, Reader::Key),
            Point::VInput(layer) => heads(layer, Reader::Value),
            Point::MlpIn(layer) => vec![Reader::Mlp(layer)],
            Point::ResidPost(layer) if layer + 1 == self.layers => vec![Reader::Logits],
            _ => vec![],
        }
    }

    /// The number of writers that come before a reader: the first ones of [`writers`](Self::writers).
    #[must_use]
    pub fn writers_before(self, reader: Reader) -> usize {
        let of_layer = |layer: usize| 1 + layer * (self.heads + 1);
        match reader {
            Reader::Query(Head { layer, .. })
            | Reader::Key(Head { layer, .. })
            | Reader::Value(Head { layer, .. }) => of_layer(layer),
            Reader::Mlp(layer) => of_layer(layer) + self.heads,
            Reader::Logits => self.writer_count(),
        }
    }

    /// Refuses a writer, a reader or an edge that the model does not have.
    ///
    /// # Errors
    /// When the model lacks one of them.
    pub fn check(self, edge: Edge) -> Result<()> {
        let exists = |layer: usize, head: usize| layer < self.layers && head < self.heads;
        let writes = match edge.from {
            Writer::Embed => true,
            Writer::Head(Head { layer, head }) => exists(layer, head),
            Writer::Mlp(layer) => exists(layer, 0),
        };
        let reads = match edge.to.part() {
            Some(Writer::Head(Head { layer, head })) => exists(layer, head),
            Some(Writer::Mlp(layer)) => exists(layer, 0),
            _ => true,
        };
        if !writes || !reads {
            candle_core::bail!(
                "edge {edge}: the model has layers 0 to {} of {} heads",
                self.layers - 1,
                self.heads
            )
        }
        if self.writer_index(edge.from) >= self.writers_before(edge.to) {
            candle_core::bail!("edge {edge}: {} does not come before {}", edge.from, edge.to)
        }
        Ok(())
    }

    pub(super) fn writer_index(self, writer: Writer) -> usize {
        match writer {
            Writer::Embed => 0,
            Writer::Head(Head { layer, head }) => 1 + layer * (self.heads + 1) + head,
            Writer::Mlp(layer) => 1 + layer * (self.heads + 1) + self.heads,
        }
    }

    pub(super) fn reader_index(self, reader: Reader) -> usize {
        let of =
            |Head { layer, head }: Head, part: usize| layer * (3 * self.heads + 1) + part * self.heads + head;
        match reader {
            Reader::Query(head) => of(head, 0),
            Reader::Key(head) => of(head, 1),
            Reader::Value(head) => of(head, 2),
            Reader::Mlp(layer) => of(Head { layer, head: 0 }, 3),
            Reader::Logits => self.reader_count() - 1,
        }
    }

    pub(super) fn writer(self, index: usize) -> Writer {
        let Some(index) = index.checked_sub(1) else { return Writer::Embed };
        let (layer, head) = (index / (self.heads + 1), index % (self.heads + 1));
        if head == self.heads { Writer::Mlp(layer) } else { Writer::Head(Head { layer, head }) }
    }

    pub(super) fn reader(self, index: usize) -> Reader {
        if index + 1 == self.reader_count() {
            return Reader::Logits;
        }
        let (layer, part) = (index / (3 * self.heads + 1), index % (3 * self.heads + 1));
        let head = Head { layer, head: part % self.heads };
        match part / self.heads {
            0 => Reader::Query(head),
            1 => Reader::Key(head),
            2 => Reader::Value(head),
            _ => Reader::Mlp(layer),
        }
    }
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embed => f.write_str("embed"),
            Self::Head(head) => head.fmt(f),
            Self::Mlp(layer) => write!(f, "{layer}.mlp"),
        }
    }
}

impl fmt::Display for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Query(head) => write!(f, "{head}.q"),
            Self::Key(head) => write!(f, "{head}.k"),
            Self::Value(head) => write!(f, "{head}.v"),
            Self::Mlp(layer) => write!(f, "{layer}.mlp"),
            Self::Logits => f.write_str("logits"),
        }
    }
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}->{}", self.from, self.to)
    }
}

fn head(text: &str) -> Option<Head> {
    let (layer, head) = text.split_once('.')?;
    Some(Head { layer: layer.parse().ok()?, head: head.parse().ok()? })
}

fn mlp(text: &str) -> Option<usize> {
    text.strip_suffix(".mlp")?.parse().ok()
}

impl FromStr for Writer {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let other = || mlp(text).map(Self::Mlp).or_else(|| head(text).map(Self::Head));
        let found = if text == "embed" { Some(Self::Embed) } else { other() };
        found.ok_or_else(|| {
            format!("{text:?} writes nothing: expected a head, such as 3.2, an MLP, such as 3.mlp, or embed")
        })
    }
}

impl FromStr for Reader {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let of_head = || {
            let (of, part) = text.rsplit_once('.')?;
            let kind = match part {
                "q" => Self::Query,
                "k" => Self::Key,
                "v" => Self::Value,
                _ => return None,
            };
            head(of).map(kind)
        };
        let found =
            if text == "logits" { Some(Self::Logits) } else { mlp(text).map(Self::Mlp).or_else(of_head) };
        found.ok_or_else(|| {
            format!(
                "{text:?} reads nothing: expected a head's queries, keys or values, such as 3.2.q, an MLP, such as 3.mlp, or logits"
            )
        })
    }
}

impl FromStr for Edge {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (from, to) =
            text.split_once("->").ok_or_else(|| format!("{text:?} is not an edge, such as 0.1->3.2.q"))?;
        Ok(Self { from: from.trim().parse()?, to: to.trim().parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpt2_small_has_the_published_number_of_edges() {
        let graph = Graph::of(&Config::gpt2()).expect("a graph");
        assert_eq!((graph.edge_count(), graph.edges().count()), (32_491, 32_491));
        assert_eq!((graph.writer_count(), graph.reader_count()), (157, 445));
    }

    #[test]
    fn every_writer_reader_and_edge_has_an_index_and_a_text() {
        let graph = Graph { layers: 3, heads: 2 };
        for (index, writer) in graph.writers().enumerate() {
            assert_eq!((graph.writer_index(writer), writer.to_string().parse()), (index, Ok(writer)));
        }
        for (index, reader) in graph.readers().enumerate() {
            assert_eq!((graph.reader_index(reader), reader.to_string().parse()), (index, Ok(reader)));
        }
        for edge in graph.edges() {
            assert_eq!(edge.to_string().parse(), Ok(edge));
            graph.check(edge).expect("an edge of the graph");
        }
        for wrong in ["3.0->logits", "0.2->logits", "1.0->1.0.q", "0.mlp->0.1.k", "1.mlp->1.mlp"] {
            graph.check(wrong.parse().expect(wrong)).expect_err(wrong);
        }
        for wrong in ["", "0.1", "0.1->3.2", "0.1.q->logits", "x->logits", "0.1->3.2.z", "embed->embed"] {
            assert!(wrong.parse::<Edge>().is_err(), "{wrong}");
        }
    }
}
