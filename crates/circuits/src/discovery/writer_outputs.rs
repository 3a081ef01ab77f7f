//! Each writer's output to the residual stream in a run, or its replacement.

use super::graph::{Graph, Reader, Writer};
use candle_core::{Result, Tensor};
use gpt2_model::hooks::{Chain, Head, Hooks, Point, Recorder};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel};

/// The output of each writer, in f32 or wider. A batch or a length of 1 serves all.
#[derive(Debug, Clone)]
pub(super) struct WriterOutputs {
    /// (B, T, C)
    pub(super) embed: Tensor,
    /// (B, T, H, C) of each layer.
    pub(super) heads: Vec<Tensor>,
    /// (B, T, C) of each layer.
    pub(super) mlps: Vec<Tensor>,
}

impl WriterOutputs {
    /// The writers' outputs in a run, recorded by the hooks that `run` gets.
    pub(super) fn record(graph: Graph, run: impl FnOnce(&dyn Hooks) -> Result<()>) -> Result<Self> {
        let of_layers = (0..graph.layers()).flat_map(|layer| [Point::Result(layer), Point::MlpOut(layer)]);
        let recorder = Recorder::new(of_layers.chain([Point::ResidPre(0)]));
        run(&recorder)?;
        let value = |point: Point| wide(&recorder.value(point)?);
        Ok(Self {
            embed: value(Point::ResidPre(0))?,
            heads: (0..graph.layers()).map(|layer| value(Point::Result(layer))).collect::<Result<_>>()?,
            mlps: (0..graph.layers()).map(|layer| value(Point::MlpOut(layer))).collect::<Result<_>>()?,
        })
    }

    /// The writers' outputs in a run over `ids`, (B, T), in which the hooks `before` come first.
    pub(super) fn of_run(
        model: &Gpt2LMHeadModel,
        graph: Graph,
        ids: &Tensor,
        before: Option<&dyn Hooks>,
    ) -> Result<Self> {
        Self::record(graph, |hooks| {
            let all: Vec<&dyn Hooks> = before.into_iter().chain([hooks]).collect();
            let args = ForwardArgs { hooks: Some(&Chain(&all)), ..Default::default() };
            model.transformer.forward(ids, args).map(drop)
        })
    }

    /// Zeros, which serve any batch and length.
    pub(super) fn zeros(model: &Gpt2LMHeadModel, graph: Graph) -> Result<Self> {
        let c = model.config().n_embd;
        let dtype = candle_fused::accumulator(model.dtype());
        let zeros = |shape: &[usize]| Tensor::zeros(shape, dtype, model.device());
        let heads = zeros(&[1, 1, graph.heads(), c])?;
        let one = zeros(&[1, 1, c])?;
        let layers = graph.layers();
        Ok(Self { embed: one.clone(), heads: vec![heads; layers], mlps: vec![one; layers] })
    }

    /// The mean over all positions of runs, each with the number of its positions: one vector for each writer.
    pub(super) fn mean(runs: impl IntoIterator<Item = Result<(Self, usize)>>) -> Result<Self> {
        let mut sum: Option<Self> = None;
        let mut count = 0;
        for run in runs {
            let (run, positions) = run?;
            let of_run = run.map(|x| x.sum_keepdim((0, 1)))?;
            count += positions;
            sum = Some(match sum {
                None => of_run,
                Some(sum) => sum.zip(&of_run, |a, b| a + b)?,
            });
        }
        match sum {
            Some(sum) => sum.map(|x| x / count as f64),
            None => candle_core::bail!("a mean needs at least one text"),
        }
    }

    /// Applies `change` to each value.
    pub(super) fn map(&self, change: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let all = |values: &[Tensor]| values.iter().map(&change).collect::<Result<Vec<_>>>();
        Ok(Self { embed: change(&self.embed)?, heads: all(&self.heads)?, mlps: all(&self.mlps)? })
    }

    /// Joins each value with its counterpart.
    pub(super) fn zip(
        &self,
        other: &Self,
        join: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        let all =
            |a: &[Tensor], b: &[Tensor]| a.iter().zip(b).map(|(a, b)| join(a, b)).collect::<Result<Vec<_>>>();
        Ok(Self {
            embed: join(&self.embed, &other.embed)?,
            heads: all(&self.heads, &other.heads)?,
            mlps: all(&self.mlps, &other.mlps)?,
        })
    }

    /// (B, T, C)
    pub(super) fn of(&self, writer: Writer) -> Result<Tensor> {
        match writer {
            Writer::Embed => Ok(self.embed.clone()),
            Writer::Head(Head { layer, head }) => self.heads[layer].narrow(2, head, 1)?.squeeze(2),
            Writer::Mlp(layer) => Ok(self.mlps[layer].clone()),
        }
    }

    /// The residual stream that the writers make together with `c_proj`'s biases, (B, T, C) at each [`stream`].
    pub(super) fn streams(&self, model: &Gpt2LMHeadModel) -> Result<Vec<Tensor>> {
        let mut streams = vec![self.embed.clone()];
        let mut x = self.embed.clone();
        for (block, (heads, mlp)) in model.transformer.h.iter().zip(self.heads.iter().zip(&self.mlps)) {
            x = x.broadcast_add(&heads.sum(2)?)?;
            if let Some(bias) = block.attn.c_proj.bias() {
                x = x.broadcast_add(&wide(bias)?)?;
            }
            streams.push(x.clone());
            x = x.broadcast_add(mlp)?;
            streams.push(x.clone());
        }
        Ok(streams)
    }

    /// The outputs of all writers, (W, B·T·C)
    pub(super) fn stacked(&self) -> Result<Tensor> {
        let mut rows = vec![self.embed.flatten_all()?.unsqueeze(0)?];
        for (heads, mlp) in self.heads.iter().zip(&self.mlps) {
            let h = heads.dim(2)?;
            rows.push(heads.permute((2, 0, 1, 3))?.reshape((h, ()))?); // (H, B·T·C)
            rows.push(mlp.flatten_all()?.unsqueeze(0)?);
        }
        Tensor::cat(&rows, 0)
    }
}

/// The index of the stream that a reader reads: before each layer's attention, before its MLP, and so on; the last is
/// before `ln_f`.
pub(super) fn stream(graph: Graph, reader: Reader) -> usize {
    match reader {
        Reader::Query(head) | Reader::Key(head) | Reader::Value(head) => 2 * head.layer,
        Reader::Mlp(layer) => 2 * layer + 1,
        Reader::Logits => 2 * graph.layers(),
    }
}

/// In f32 or wider.
pub(super) fn wide(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(candle_fused::accumulator(x.dtype()))
}
