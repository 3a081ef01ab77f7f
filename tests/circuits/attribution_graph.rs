//! Attribution graphs: a node's value is the sum of its edges, and an edge is what an intervention changes in the frozen model.

use crate::common::Result;
use crate::models::load;
use candle_core::{D, DType, Device, IndexOp, Tensor};
use gpt2_circuits::attribution_graph::{AttributionGraph, GraphNode, LogitChoice, ReplacedPass};
use gpt2_circuits::features::Features;
use gpt2_model::dictionary::{Dictionary, DictionaryTensors, Selection};
use gpt2_model::hooks::{Chain, Point, Recorder, on};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel, init};
use std::cell::RefCell;

const FEATURES: usize = 40;
const LAYERS: usize = 3;
/// Values are sums of a few hundred products in f32, of sizes up to ten times their own.
const TOLERANCE: f32 = 1e-4;

/// Numbers that are the same in each run.
fn drawn(seed: u64, shape: (usize, usize), deviation: f64) -> Result<Tensor> {
    let vb = init::seeded(seed, DType::F32, &Device::Cpu);
    let hint = gpt2_model::candle_nn::Init::Randn { mean: 0.0, stdev: deviation };
    Ok(vb.get_with_hints(shape, &format!("w{seed}"), hint)?)
}

/// Random transcoders of all three kinds: of each point that an MLP's input has, with and without thresholds and a linear map beside.
fn transcoders(model: &Gpt2LMHeadModel) -> Result<Vec<Features>> {
    let c = model.config().n_embd;
    let one = |(layer, hook): (usize, Point)| -> Result<Features> {
        let seed = 10 * layer as u64;
        let tensors = DictionaryTensors {
            w_enc: drawn(seed, (c, FEATURES), 0.3)?,
            b_enc: drawn(seed + 1, (1, FEATURES), 0.3)?.squeeze(0)?,
            w_dec: drawn(seed + 2, (FEATURES, c), 0.3)?,
            b_dec: drawn(seed + 3, (1, c), 0.3)?.squeeze(0)?,
            skip: (layer == 1).then(|| drawn(seed + 4, (c, c), 0.1)).transpose()?,
        };
        let selection = match layer {
            0 => Selection::Relu,
            1 => Selection::JumpRelu((Tensor::ones(FEATURES, DType::F32, &Device::Cpu)? * 0.2)?),
            _ => Selection::TopK { k: 5, by_norm: false, absolute: false },
        };
        let dictionary = Dictionary::new(tensors, selection)?.transcoding();
        Ok(Features::new(&dictionary, hook, Point::MlpOut(layer), model.config())?)
    };
    [(0, Point::Ln2(0)), (1, Point::Ln2Normalized(1)), (2, Point::MlpIn(2))].into_iter().map(one).collect()
}

/// A part of the model to change: what it writes, a share of it once more.
type Changed = (Point, usize, Tensor);

/// The points that are frozen, changed or read.
fn points(transcoders: &[Features]) -> Vec<Point> {
    use Point::{Embed, Ln1Scale, Ln2Scale, LnFinalScale, Logits, MlpOut, Pattern};
    let of_layer = |layer: usize| {
        [Ln1Scale(layer), Pattern(layer), Ln2Scale(layer), transcoders[layer].hook(), MlpOut(layer)]
    };
    (0..LAYERS).flat_map(of_layer).chain([Embed, LnFinalScale, Logits]).collect()
}

/// The model with everything frozen as the clean pass has it, and a change.
struct Frozen<'a> {
    model: &'a Gpt2LMHeadModel,
    transcoders: &'a [Features],
    ids: &'a Tensor,
    clean: Recorder,
}

impl<'a> Frozen<'a> {
    fn new(model: &'a Gpt2LMHeadModel, transcoders: &'a [Features], ids: &'a Tensor) -> Result<Self> {
        let clean = Recorder::new(points(transcoders));
        model.forward(ids, ForwardArgs { hooks: Some(&clean), ..ForwardArgs::default() })?;
        Ok(Self { model, transcoders, ids, clean })
    }

    /// The values of all nodes with `changed` added where it belongs; those of errors and tokens are 0.
    fn values(&self, nodes: &[GraphNode], changed: Option<&Changed>) -> Result<Vec<f32>> {
        let constant = |point: Point| {
            use Point::{Ln1Scale, Ln2Scale, LnFinalScale, MlpOut, Pattern};
            matches!(point, Ln1Scale(_) | Ln2Scale(_) | LnFinalScale | MlpOut(_) | Pattern(_))
        };
        let read = RefCell::new(vec![None; LAYERS]);
        let hooks = on(points(self.transcoders), |at, value| {
            let mut value = if constant(at.point) { self.clean.value(at.point)? } else { value.clone() };
            if let Some(layer) = self.transcoders.iter().position(|one| one.hook() == at.point) {
                read.borrow_mut()[layer] = Some((&value - self.clean.value(at.point)?)?);
            }
            if let Point::MlpOut(layer) = at.point {
                let skip = self.transcoders[layer].dictionary().skip();
                if let (Some(skip), Some(apart)) = (skip, &read.borrow()[layer]) {
                    value = (value + apart.broadcast_matmul(&skip.t()?)?)?;
                }
            }
            match changed {
                Some((point, position, added)) if *point == at.point => {
                    let (_, t, c) = value.dims3()?;
                    let mut rows = vec![Tensor::zeros(c, DType::F32, &Device::Cpu)?; t];
                    rows[*position] = added.clone();
                    Ok(Some((value + Tensor::stack(&rows, 0)?.unsqueeze(0)?)?))
                }
                _ => Ok(constant(at.point).then_some(value)),
            }
        });
        let seen = Recorder::new(points(self.transcoders));
        let chain = Chain(&[&hooks, &seen]);
        self.model.forward(self.ids, ForwardArgs { hooks: Some(&chain), ..ForwardArgs::default() })?;
        let logits = seen.value(Point::Logits)?.squeeze(0)?;
        let logits = logits.get(logits.dim(0)? - 1)?;
        let logits = logits.broadcast_sub(&logits.mean_keepdim(0)?)?.to_vec1::<f32>()?;
        let value = |node: &GraphNode| -> Result<f32> {
            Ok(match *node {
                GraphNode::Feature { layer, position, feature, .. } => {
                    let dictionary = self.transcoders[layer].dictionary();
                    let x = seen.value(self.transcoders[layer].hook())?.i((0, position))?;
                    let encoder = dictionary.encoders(&Tensor::new(&[feature], &Device::Cpu)?)?.squeeze(0)?;
                    let bias = dictionary.b_enc().get(feature as usize)?;
                    ((x * encoder)?.sum_all()? + bias)?.to_scalar()?
                }
                GraphNode::Logit { token, .. } => logits[token as usize],
                _ => 0.0,
            })
        };
        nodes.iter().map(value).collect()
    }

    /// The vector that a node writes, with its point and its position.
    fn written(&self, node: &GraphNode) -> Result<Changed> {
        let error = |layer: usize, position: usize| -> Result<Tensor> {
            let dictionary = self.transcoders[layer].dictionary();
            let read = self.clean.value(self.transcoders[layer].hook())?.squeeze(0)?;
            let rebuilt = dictionary.decode(&dictionary.encode(&read)?, &read)?;
            Ok((self.clean.value(Point::MlpOut(layer))?.squeeze(0)? - rebuilt)?.get(position)?)
        };
        Ok(match *node {
            GraphNode::Feature { layer, position, feature, activation } => {
                let row = self.transcoders[layer].dictionary().w_dec().get(feature as usize)?;
                (Point::MlpOut(layer), position, (row * f64::from(activation))?)
            }
            GraphNode::Error { layer, position } => (Point::MlpOut(layer), position, error(layer, position)?),
            GraphNode::Token { position } => {
                (Point::Embed, position, self.clean.value(Point::Embed)?.i((0, position))?)
            }
            GraphNode::Logit { .. } => unreachable!("a logit writes nothing"),
        })
    }
}

fn graph(model: &Gpt2LMHeadModel, transcoders: &[Features], ids: &Tensor) -> Result<AttributionGraph> {
    let pass = ReplacedPass::run(model, transcoders, ids, LogitChoice::default())?;
    let mut done = vec![];
    let graph = pass.graph(&mut |n, of| {
        done.push((n, of));
        Ok(())
    })?;
    let targets = graph.constants.iter().filter(|constant| **constant != 0.0).count();
    assert_eq!(done.last(), Some(&(targets, targets)));
    Ok(graph)
}

#[test]
fn edges_and_constants_add_up_to_the_value_of_each_node() -> Result {
    let model = load("circuits/model", DType::F32)?;
    let transcoders = transcoders(&model)?;
    // More targets than go back through the model together.
    let ids = Tensor::new(&[[1u32, 5, 9, 2, 7, 7, 3, 30]], &Device::Cpu)?;
    let graph = graph(&model, &transcoders, &ids)?;
    let expected = Frozen::new(&model, &transcoders, &ids)?.values(&graph.nodes, None)?;
    let sums = graph.edges.sum(D::Minus1)?.to_vec1::<f32>()?;
    let mut targets = 0;
    for (place, node) in graph.nodes.iter().enumerate() {
        #[allow(clippy::cast_possible_truncation)] // an f32 before
        let found = sums[place] + graph.constants[place] as f32;
        assert!((found - expected[place]).abs() < TOLERANCE, "{node:?}: {found}, not {}", expected[place]);
        if let GraphNode::Feature { activation, .. } = node {
            assert!((found - activation).abs() < TOLERANCE, "{node:?}: {found}");
        }
        targets += usize::from(matches!(node, GraphNode::Feature { .. } | GraphNode::Logit { .. }));
    }
    assert!(targets > 130, "{targets}");
    Ok(())
}

/// Everything between nodes is linear: what a node writes, once more, changes others by the edges, and by nothing else.
#[test]
fn an_edge_is_what_an_intervention_changes_in_the_frozen_model() -> Result {
    let model = load("circuits/model", DType::F32)?;
    let transcoders = transcoders(&model)?;
    let ids = Tensor::new(&[[1u32, 5, 9, 2]], &Device::Cpu)?;
    let graph = graph(&model, &transcoders, &ids)?;
    let frozen = Frozen::new(&model, &transcoders, &ids)?;
    let clean = frozen.values(&graph.nodes, None)?;
    let edges = graph.edges.to_vec2::<f32>()?;
    let mut largest = 0f32;
    for (source, node) in graph.nodes.iter().enumerate() {
        if matches!(node, GraphNode::Logit { .. }) {
            continue;
        }
        let changed = frozen.values(&graph.nodes, Some(&frozen.written(node)?))?;
        for (target, (changed, clean)) in changed.iter().zip(&clean).enumerate() {
            let edge = edges[target][source];
            let found = changed - clean;
            assert!(
                (found - edge).abs() < TOLERANCE,
                "{node:?} to {:?}: {found}, not {edge}",
                graph.nodes[target]
            );
            largest = largest.max(edge.abs());
        }
    }
    assert!(largest > 0.5, "{largest}");
    Ok(())
}

#[test]
fn transcoders_that_do_not_fit_are_refused() -> Result {
    let model = load("circuits/model", DType::F32)?;
    let ids = Tensor::new(&[[1u32, 5]], &Device::Cpu)?;
    let all = transcoders(&model)?;
    let refused = |transcoders: &[Features]| {
        ReplacedPass::run(&model, transcoders, &ids, LogitChoice::default()).expect_err("refused").to_string()
    };
    let said = refused(&all[..2]);
    assert!(said.contains("layer 2 has 0 transcoders of 2; give one for the MLP of each layer"), "{said}");
    let said = refused(&[&all[..], &all[..1]].concat());
    assert!(said.contains("layer 0 has 2 transcoders of 4"), "{said}");
    let skewed = Features::new(all[1].dictionary(), Point::Ln2(1), Point::ResidPost(1), model.config())?;
    let said = refused(&[all[0].clone(), skewed, all[2].clone()]);
    assert!(said.contains("rebuilds blocks.1.hook_resid_post; expected a transcoder from"), "{said}");
    let two = Tensor::new(&[[1u32, 5], [1, 5]], &Device::Cpu)?;
    let said = ReplacedPass::run(&model, &all, &two, LogitChoice::default()).expect_err("two texts");
    assert!(said.to_string().contains("of one text"), "{said}");
    Ok(())
}
