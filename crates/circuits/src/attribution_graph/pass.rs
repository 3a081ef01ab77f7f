//! [`ReplacedPass`]: a prompt's pass with transcoders in place of MLPs, and the graph of what its nodes add to one another.

use super::frozen::{FrozenAttention, FrozenNorm, f32_of, recorded};
use crate::features::Features;
use candle_core::{D, DType, Device, Result, Tensor};
use gpt2_model::dictionary::{ActiveFeature, Dictionary, SparseActivations};
use gpt2_model::hooks::{Point, Recorder};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel};

/// Targets whose gradients go back through the model together: more take more memory.
const TARGETS: usize = 64;

/// A node of an attribution graph.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GraphNode {
    /// A transcoder's feature that fires.
    Feature {
        /// The transcoder's layer.
        layer: usize,
        /// The token's position.
        position: usize,
        /// The feature.
        feature: u32,
        /// Its activation.
        activation: f32,
    },
    /// The part of an MLP's output that its transcoder does not predict.
    Error {
        /// The layer.
        layer: usize,
        /// The token's position.
        position: usize,
    },
    /// A token's embedding, without that of its position.
    Token {
        /// The position.
        position: usize,
    },
    /// The logit of a next token, less the mean over the vocabulary.
    Logit {
        /// The token.
        token: u32,
        /// Its probability.
        probability: f32,
    },
}

impl GraphNode {
    /// The token and its probability, if it is a logit.
    #[must_use]
    pub fn as_logit(&self) -> Option<(u32, f32)> {
        match *self {
            Self::Logit { token, probability } => Some((token, probability)),
            _ => None,
        }
    }
}

/// The next tokens whose logits are nodes: the most probable ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitChoice {
    /// The tokens have this probability together.
    pub mass: f64,
    /// This many at most.
    pub most: usize,
}

impl Default for LogitChoice {
    fn default() -> Self {
        Self { mass: 0.95, most: 10 }
    }
}

/// The transcoder of a layer in the pass.
#[derive(Debug)]
struct ReplacedMlp {
    /// The layer norm between the stream and what the transcoder reads, if there is one.
    norm: Option<FrozenNorm>,
    dictionary: Dictionary,
    /// The features that fire at each position.
    code: SparseActivations,
    /// The part of the MLP's output that the transcoder misses, (T, C).
    error: Tensor,
}

/// A prompt's pass, with everything frozen but what features, errors and tokens write.
#[derive(Debug)]
pub struct ReplacedPass {
    attention: Vec<FrozenAttention>,
    mlps: Vec<ReplacedMlp>,
    last_norm: FrozenNorm,
    /// Embeddings of tokens and of positions, (T, C).
    tokens: Tensor,
    positions: Tensor,
    /// The directions of the chosen logits, (n, C), and the constant part of each, (n).
    directions: Tensor,
    head_bias: Tensor,
    nodes: Vec<GraphNode>,
}

/// The effects of the nodes of a [`ReplacedPass`] on one another.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AttributionGraph {
    /// Features by layer, position and number, then errors by layer and position, tokens, and logits, the most probable first.
    pub nodes: Vec<GraphNode>,
    /// The amount that each node adds to each, (targets, sources) in f32. Rows of errors and tokens are 0.
    pub edges: Tensor,
    /// The amount that biases, β and positions' embeddings add to each node: 0 for errors and tokens.
    pub constants: Vec<f64>,
}

impl ReplacedPass {
    /// Runs the model over a text (1, T), with a transcoder for each layer, in any order.
    ///
    /// # Errors
    /// When a layer has no transcoder or two, one reads or predicts something else than its layer's MLP or normalizes its input, or the
    /// model fails.
    pub fn run(
        model: &Gpt2LMHeadModel,
        transcoders: &[Features],
        input_ids: &Tensor,
        logits: LogitChoice,
    ) -> Result<Self> {
        let layers = model.transformer.h.len();
        let transcoders =
            (0..layers).map(|layer| of_layer(transcoders, layer)).collect::<Result<Vec<_>>>()?;
        if input_ids.dim(0)? != 1 {
            candle_core::bail!("an attribution graph is of one text, got {:?}", input_ids.dims())
        }
        let points = (0..layers).flat_map(|layer| {
            use Point::{Ln1Scale, Ln2Scale, MlpOut, Pattern};
            [Ln1Scale(layer), Pattern(layer), transcoders[layer].hook(), Ln2Scale(layer), MlpOut(layer)]
        });
        let recorder = Recorder::new(points.chain([Point::Embed, Point::LnFinalScale]));
        let args = ForwardArgs { hooks: Some(&recorder), ..ForwardArgs::default() };
        let found = f32_of(&model.forward(input_ids, args)?.logits.squeeze(0)?)?; // (T, V)
        let t = found.dim(0)?;
        let blocks = model.transformer.h.iter().enumerate();
        let attention = blocks.clone().map(|(layer, block)| FrozenAttention::new(block, layer, &recorder));
        let attention = attention.collect::<Result<Vec<_>>>()?;
        let mlps = blocks.zip(&transcoders).map(|((layer, block), transcoder)| {
            let scale = recorded(&recorder, Point::Ln2Scale(layer))?;
            let norm = match transcoder.hook() {
                Point::Ln2(_) => Some(FrozenNorm::new(&block.ln_2, &scale)?),
                Point::Ln2Normalized(_) => Some(FrozenNorm::normalized(&block.ln_2, &scale)?),
                _ => None,
            };
            let read = recorded(&recorder, transcoder.hook())?;
            ReplacedMlp::new(
                transcoder.dictionary(),
                norm,
                &read,
                &recorded(&recorder, Point::MlpOut(layer))?,
            )
        });
        let mlps = mlps.collect::<Result<Vec<_>>>()?;
        let chosen = logits.of(&found.get(t - 1)?)?;
        let (directions, head_bias) = unembeddings(model, &chosen)?;
        Ok(Self {
            nodes: nodes(&mlps, t, &chosen),
            attention,
            mlps,
            last_norm: FrozenNorm::new(&model.transformer.ln_f, &recorded(&recorder, Point::LnFinalScale)?)?,
            tokens: recorded(&recorder, Point::Embed)?,
            positions: f32_of(&model.transformer.wpe.narrow(0, 0, t)?)?,
            directions,
            head_bias,
        })
    }

    /// The nodes of the graph, in its order.
    #[must_use]
    pub fn nodes(&self) -> &[GraphNode] {
        &self.nodes
    }

    /// The graph. Calls `progress` with the number of targets done and their total; its error ends the work.
    ///
    /// # Errors
    /// When the device fails or there is not enough memory.
    pub fn graph(&self, progress: &mut dyn FnMut(usize, usize) -> Result<()>) -> Result<AttributionGraph> {
        let all = self.nodes.len();
        let logits = self.directions.dim(0)?;
        let features = self.features();
        let mut rows = Rows::new(all)?;
        let mut report = |rows: &Rows| progress(rows.done, features + logits);
        let mut first = 0;
        for (layer, mlp) in self.mlps.iter().enumerate() {
            let places: Vec<(u32, &ActiveFeature)> = mlp.places().collect();
            for places in places.chunks(TARGETS) {
                let positions: Vec<u32> = places.iter().map(|(position, _)| *position).collect();
                let ids = Tensor::from_iter(places.iter().map(|(_, one)| one.feature), &Device::Cpu)?;
                let vectors = mlp.dictionary.encoders(&ids)?;
                let biases = mlp.dictionary.b_enc().index_select(&ids, 0)?;
                let batch =
                    Targets::new(&vectors, &biases, mlp.norm.as_ref(), &positions, self.tokens.dim(0)?)?;
                self.add(&mut rows, first, layer, batch)?;
                first += places.len();
                report(&rows)?;
            }
        }
        let last = u32::try_from(self.tokens.dim(0)? - 1).map_err(candle_core::Error::wrap)?;
        let at = vec![last; logits];
        let batch =
            Targets::new(&self.directions, &self.head_bias, Some(&self.last_norm), &at, self.tokens.dim(0)?)?;
        self.add(&mut rows, all - logits, self.mlps.len(), batch)?;
        report(&rows)?;
        let edges = Tensor::from_vec(rows.edges, (all, all), &Device::Cpu)?;
        Ok(AttributionGraph { nodes: self.nodes.clone(), edges, constants: rows.constants })
    }

    /// The number of features that fire.
    fn features(&self) -> usize {
        self.mlps.iter().map(|mlp| mlp.code.count_fired()).sum()
    }

    /// Takes targets that read after `layer` attentions and MLPs, and before the MLP of `layer`, back through the model; adds their rows.
    fn add(&self, rows: &mut Rows, first: usize, layer: usize, targets: Targets) -> Result<()> {
        let Targets { mut gradient, mut constants } = targets;
        let (n, t, _) = gradient.dims3()?;
        let features = self.features();
        let layers = self.mlps.len();
        if let Some(attention) = self.attention.get(layer) {
            let (before, constant) = attention.back(&gradient)?;
            gradient = before;
            constants = (constants + constant)?;
        }
        for below in (0..layer).rev() {
            let mlp = &self.mlps[below];
            let mut place: usize = self.mlps[..below].iter().map(|mlp| mlp.code.count_fired()).sum();
            for position in (0..t).filter(|&position| !mlp.code.row(position).is_empty()) {
                let written = mlp.written(position)?;
                let at = gradient.narrow(1, position, 1)?.squeeze(1)?.contiguous()?; // (n, C)
                rows.put(first, place, &at.matmul(&written.t()?)?)?;
                place += written.dim(0)?;
            }
            rows.put(first, features + below * t, &gradient.broadcast_mul(&mlp.error)?.sum(D::Minus1)?)?;
            constants = (constants + gradient.broadcast_mul(mlp.dictionary.b_dec())?.sum((1, 2))?)?;
            if let Some(skip) = mlp.dictionary.skip() {
                let read = gradient.broadcast_matmul(skip)?; // (n, T, C)
                let (read, constant) = match &mlp.norm {
                    Some(norm) => (norm.back(&read)?, norm.constant(&read)?.sum(1)?),
                    None => (read, constants.zeros_like()?),
                };
                gradient = (gradient + read)?;
                constants = (constants + constant)?;
            }
            let (before, constant) = self.attention[below].back(&gradient)?;
            gradient = before;
            constants = (constants + constant)?;
        }
        rows.put(first, features + layers * t, &gradient.broadcast_mul(&self.tokens)?.sum(D::Minus1)?)?;
        constants = (constants + gradient.broadcast_mul(&self.positions)?.sum((1, 2))?)?;
        for (row, constant) in constants.to_vec1::<f32>()?.into_iter().enumerate() {
            rows.constants[first + row] = constant.into();
        }
        rows.done += n;
        Ok(())
    }
}

/// Targets on their way back through the model.
struct Targets {
    /// At the stream, (n, T, C).
    gradient: Tensor,
    /// The amount that constants have added so far, (n).
    constants: Tensor,
}

impl Targets {
    /// Targets that read directions (n, C) of what the norm makes of the stream, each at its position of T.
    fn new(
        vectors: &Tensor,
        biases: &Tensor,
        norm: Option<&FrozenNorm>,
        positions: &[u32],
        t: usize,
    ) -> Result<Self> {
        let (n, c) = vectors.dims2()?;
        let at = Tensor::new(positions, &Device::Cpu)?;
        let (read, constants) = match norm {
            Some(norm) => (norm.back_at(vectors, &at)?, (biases + norm.constant(vectors)?)?),
            None => (vectors.clone(), biases.clone()),
        };
        let read = read.contiguous()?.flatten_all()?.to_vec1::<f32>()?;
        let mut gradient = vec![0f32; n * t * c];
        for (row, (&position, read)) in positions.iter().zip(read.chunks(c)).enumerate() {
            gradient[(row * t + position as usize) * c..][..c].copy_from_slice(read);
        }
        Ok(Self { gradient: Tensor::from_vec(gradient, (n, t, c), &Device::Cpu)?, constants })
    }
}

/// The rows that are done.
struct Rows {
    /// (targets, sources)
    edges: Vec<f32>,
    constants: Vec<f64>,
    done: usize,
}

impl Rows {
    fn new(all: usize) -> Result<Self> {
        let count = all.saturating_mul(all);
        let mut edges = vec![];
        if edges.try_reserve_exact(count).is_err() {
            candle_core::bail!("there is no memory for the {all} x {all} edges of the graph")
        }
        edges.resize(count, 0f32);
        Ok(Self { edges, constants: vec![0f64; all], done: 0 })
    }

    /// Puts values (targets, sources) at a row and a column.
    fn put(&mut self, row: usize, column: usize, values: &Tensor) -> Result<()> {
        let all = self.constants.len();
        for (i, values) in values.to_vec2::<f32>()?.iter().enumerate() {
            self.edges[(row + i) * all + column..][..values.len()].copy_from_slice(values);
        }
        Ok(())
    }
}

impl ReplacedMlp {
    /// `read` and `out` (T, C): what the transcoder reads, and what it should predict.
    fn new(dictionary: &Dictionary, norm: Option<FrozenNorm>, read: &Tensor, out: &Tensor) -> Result<Self> {
        let code = dictionary.encode(read)?;
        let error = (out - dictionary.decode(&code, read)?)?;
        Ok(Self { norm, dictionary: dictionary.clone(), code, error })
    }

    /// The rows of `W_dec` of a position's features times their activations, (features, C).
    fn written(&self, position: usize) -> Result<Tensor> {
        let fired = self.code.row(position);
        let ids = Tensor::from_iter(fired.iter().map(|one| one.feature), &Device::Cpu)?;
        let value =
            |one: &ActiveFeature| one.value * self.dictionary.factor(&self.code, position, one.feature);
        let values = Tensor::from_iter(fired.iter().map(value), &Device::Cpu)?.unsqueeze(1)?;
        self.dictionary.w_dec().index_select(&ids, 0)?.broadcast_mul(&values)
    }

    /// The features that fire, with their positions, in the graph's order.
    fn places(&self) -> impl Iterator<Item = (u32, &ActiveFeature)> {
        (0u32..)
            .zip(self.code.iter())
            .flat_map(|(position, fired)| fired.iter().map(move |one| (position, one)))
    }
}

/// The one transcoder of a layer's MLP.
fn of_layer(transcoders: &[Features], layer: usize) -> Result<&Features> {
    use Point::{Ln2, Ln2Normalized, MlpIn, MlpOut, ResidMid};
    let mut of = transcoders.iter().filter(|one| one.hook().layer() == Some(layer));
    let (Some(found), None) = (of.next(), of.next()) else {
        let count = transcoders.iter().filter(|one| one.hook().layer() == Some(layer)).count();
        candle_core::bail!(
            "layer {layer} has {count} transcoders of {}; give one for the MLP of each layer",
            transcoders.len()
        )
    };
    let dictionary = found.dictionary();
    let hook = found.hook();
    let hook_out = found.hook_out();
    let reads_mlp = matches!(hook, MlpIn(_) | ResidMid(_) | Ln2(_) | Ln2Normalized(_));
    if !dictionary.is_transcoder() || !reads_mlp || hook_out != MlpOut(layer) {
        candle_core::bail!(
            "the dictionary of {hook} rebuilds {hook_out}; expected a transcoder from {} to {}",
            Ln2(layer),
            MlpOut(layer)
        )
    }
    if !dictionary.reads_linearly() {
        candle_core::bail!(
            "the transcoder of {hook} normalizes what it reads or gates its features, so that no activation is a sum of parts; take one \
             that does neither"
        )
    }
    Ok(found)
}

impl LogitChoice {
    /// The chosen tokens of logits (V), with their probabilities, the most probable first.
    fn of(&self, logits: &Tensor) -> Result<Vec<(u32, f32)>> {
        let logits: Vec<f32> = logits.to_vec1()?;
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exp = |logit: &f32| f64::from(logit - largest).exp();
        let all: f64 = logits.iter().map(exp).sum();
        #[allow(clippy::cast_possible_truncation)] // a probability
        let probability = |logit: &f32| (exp(logit) / all) as f32;
        let mut order: Vec<(u32, f32)> = (0..).zip(logits.iter().map(probability)).collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let mut sum = 0.0;
        let mut count = 0;
        while sum < self.mass && count < self.most.min(order.len()) {
            sum += f64::from(order[count].1);
            count += 1;
        }
        order.truncate(count.max(1));
        Ok(order)
    }
}

/// The rows of `W_U` of tokens less the mean over the vocabulary, (n, C), and the same of the logits' bias, (n).
fn unembeddings(model: &Gpt2LMHeadModel, chosen: &[(u32, f32)]) -> Result<(Tensor, Tensor)> {
    let ids = Tensor::from_iter(chosen.iter().map(|(token, _)| *token), &Device::Cpu)?;
    let less_mean = |all: &Tensor| all.index_select(&ids, 0)?.broadcast_sub(&all.mean_keepdim(0)?);
    let directions = less_mean(&f32_of(&model.lm_head.weight()?)?)?;
    let bias = match model.lm_head.bias() {
        Some(bias) => less_mean(&f32_of(bias)?)?,
        None => Tensor::zeros(chosen.len(), DType::F32, &Device::Cpu)?,
    };
    Ok((directions, bias))
}

fn nodes(mlps: &[ReplacedMlp], t: usize, chosen: &[(u32, f32)]) -> Vec<GraphNode> {
    let layers = mlps.len();
    let features = mlps.iter().enumerate().flat_map(|(layer, mlp)| {
        mlp.places().map(move |(position, one)| GraphNode::Feature {
            layer,
            position: position as usize,
            feature: one.feature,
            activation: one.value,
        })
    });
    let errors =
        (0..layers).flat_map(|layer| (0..t).map(move |position| GraphNode::Error { layer, position }));
    let tokens = (0..t).map(|position| GraphNode::Token { position });
    let logits = chosen.iter().map(|&(token, probability)| GraphNode::Logit { token, probability });
    features.chain(errors).chain(tokens).chain(logits).collect()
}
