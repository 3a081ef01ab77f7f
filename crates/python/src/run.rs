//! Forward passes: logits, loss, hidden states, attention weights, the values at hook points.

use crate::array::Array;
use crate::changes::{InterventionTexts, slices};
use crate::error::Failed;
use crate::guard::{Raised, compute, compute_in_pool};
use crate::hooks::PyHooks;
use crate::loaded::Loaded;
use crate::model::Model;
use crate::pattern::LazyPattern;
use anyhow::anyhow;
use candle_core::{DType, Tensor};
use gpt2_engine::interventions::Reads;
use gpt2_model::attention::PatternOf;
use gpt2_model::finite::all_finite;
use gpt2_model::hooks::{At, Chain, Hooks, Point, Recorder};
use gpt2_model::mask::{left_padding, position_ids};
use gpt2_model::training::cross_entropy;
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel, Start};
use pyo3::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The texts to run, and the results to return.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct RunRequest {
    /// The ids of each row. Shorter ones are padded on the left.
    rows: Vec<Vec<u32>>,
    changes: InterventionTexts,
    /// Points and the functions that read and change their values.
    hooks: Vec<(String, Py<PyAny>)>,
    /// The points whose values to return.
    points: Vec<String>,
    /// `all`, `last` or `none`.
    logits: String,
    loss: bool,
    hidden_states: bool,
    attentions: bool,
    /// The first block that runs, and the stream before it (B, T, C).
    start: Option<(usize, Py<Array>)>,
    /// The block before which the pass ends: the result is the stream there, in place of logits.
    stop: Option<usize>,
    /// Whether to return logits and losses that are NaN or infinite.
    allow_nonfinite: bool,
}

/// A result: computed already, or by a later call.
#[derive(IntoPyObject)]
pub(crate) enum RunValue {
    There(Array),
    Later(LazyPattern),
}

/// The results of a run: one value for each name, or one for each layer.
type Found = BTreeMap<String, Vec<RunValue>>;

/// Rows of ids as a batch, padded on the left.
pub(crate) struct PaddedBatch {
    pub(crate) ids: Tensor,
    /// u8 (B, T), if a row is shorter than others.
    mask: Option<Tensor>,
    positions: Option<Tensor>,
}

impl PaddedBatch {
    pub(crate) fn new(model: &Gpt2LMHeadModel, rows: &[Vec<u32>]) -> Result<Self, Failed> {
        let device = model.device();
        let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
        let width = lengths.iter().copied().max().unwrap_or(0);
        if rows.is_empty() || lengths.contains(&0) {
            return Err(Failed::value("a text is empty: give at least one token"));
        }
        let padded =
            rows.iter().flat_map(|row| std::iter::repeat_n(0, width - row.len()).chain(row.iter().copied()));
        let ids = Tensor::from_vec(padded.collect(), (rows.len(), width), device)?;
        if lengths.iter().all(|&t| t == width) {
            return Ok(Self { ids, mask: None, positions: None });
        }
        let mask = left_padding(&lengths, width, device)?;
        let positions = position_ids(&mask)?;
        Ok(Self { ids, mask: Some(mask), positions: Some(positions) })
    }

    pub(crate) fn args<'a>(&'a self, hooks: &'a dyn Hooks) -> ForwardArgs<'a> {
        ForwardArgs {
            attention_mask: self.mask.as_ref(),
            position_ids: self.positions.as_ref(),
            hooks: Some(hooks),
            ..ForwardArgs::default()
        }
    }
}

pub(crate) fn point(name: &str, layers: usize) -> Result<Point, Failed> {
    let point: Point = name.parse().map_err(|error| anyhow!("{name:?}: {error}"))?;
    match point.layer() {
        Some(layer) if layer >= layers => {
            Err(Failed::value(format!("{name}: the model has layers 0 to {}", layers - 1)))
        }
        _ => Ok(point),
    }
}

fn run(
    loaded: &Arc<Loaded>,
    asked: &RunRequest,
    hooks: Vec<(Point, Py<PyAny>)>,
    raised: &Arc<Raised>,
) -> Result<Found, Failed> {
    let model = &loaded.model;
    let layers = model.config().n_layer;
    let changes = asked.changes.build(loaded, Reads::Whole(&slices(&asked.rows)), raised)?;
    let points = asked.points.iter().map(|name| point(name, layers)).collect::<Result<Vec<_>, _>>()?;
    let functions = PyHooks { list: hooks, raised };
    // (T, T) numbers take far more memory than what they are computed from, and are seldom all looked at.
    let later = |point: &Point| match *point {
        Point::Scores(layer) if functions.list.is_empty() => Some((layer, PatternOf::Scores)),
        Point::Pattern(layer) if functions.list.is_empty() => Some((layer, PatternOf::Weights)),
        _ => None,
    };
    let recorded = points.iter().flat_map(|point| match later(point) {
        Some((layer, _)) => vec![Point::Q(layer), Point::K(layer)],
        None => vec![*point],
    });
    let recorder = Recorder::new(recorded);
    let mut all: Vec<&dyn Hooks> = vec![];
    all.extend((!changes.is_empty()).then_some(&changes as &dyn Hooks));
    all.extend((!functions.list.is_empty()).then_some(&functions as &dyn Hooks));
    all.extend((!points.is_empty()).then_some(&recorder as &dyn Hooks));
    let end = asked.stop.map(|stop| StreamBefore::new(stop, layers)).transpose()?;
    all.extend(end.iter().map(|end| end as &dyn Hooks));
    let chain = Chain(&all);
    let batch = PaddedBatch::new(model, &asked.rows)?;
    let stream = asked.start.as_ref().map(|(_, stream)| stream.get().tensor().to_dtype(model.dtype()));
    let stream = stream.transpose()?.map(|stream| stream.to_device(model.device())).transpose()?;
    let start = asked.start.as_ref().zip(stream.as_ref());
    let args = ForwardArgs {
        start: start.map(|((layer, _), stream)| Start { layer: *layer, stream }),
        hooks: if all.is_empty() { None } else { Some(&chain) },
        output_hidden_states: asked.hidden_states,
        output_attentions: asked.attentions,
        last_logits_only: asked.logits == "last" && !asked.loss,
        ..batch.args(&chain)
    };
    let mut found = Found::new();
    if let Some(end) = &end {
        let stream = end.run(model, &batch, args)?;
        if !asked.allow_nonfinite && !all_finite(&stream)? {
            return Err(not_finite(model, asked, &batch));
        }
        add(&mut found, "stream", &[stream])?;
    } else {
        let transformer = pass(model, asked, &batch, args, &mut found)?;
        add(&mut found, "hidden_states", &transformer.hidden_states)?;
        add(&mut found, "attentions", &transformer.attentions)?;
    }
    for (name, point) in asked.points.iter().zip(&points).filter(|(_, point)| later(point).is_none()) {
        let value = recorder.value(*point)?;
        // The positions' rows are those of the model's own table.
        let value = if *point == Point::PosEmbed { value.copy()? } else { value };
        add(&mut found, name, &[value])?;
    }
    // Python may write to what it has.
    let own = |point: Point| match (points.contains(&point), recorder.value(point)?) {
        (true, value) => value.copy(),
        (false, value) => Ok(value),
    };
    for (name, point) in asked.points.iter().zip(&points) {
        let Some((layer, kind)) = later(point) else { continue };
        let pattern = LazyPattern {
            loaded: Arc::clone(loaded),
            layer,
            kind,
            q: own(Point::Q(layer))?,
            k: own(Point::K(layer))?,
            padding: batch.mask.clone(),
            knocked_out: changes.knocked_out(layer),
        };
        found.insert(name.clone(), vec![RunValue::Later(pattern)]);
    }
    Ok(found)
}

/// Ends a pass before a block, and holds the stream there.
#[derive(Debug)]
struct StreamBefore {
    point: Point,
    stream: RefCell<Option<Tensor>>,
}

impl StreamBefore {
    fn new(layer: usize, layers: usize) -> Result<Self, Failed> {
        let point = match layer {
            _ if layer > layers => {
                return Err(Failed::value(format!(
                    "stop_at_layer is {layer}, but the model has {layers} layers"
                )));
            }
            _ if layer == layers => Point::ResidPost(layers - 1),
            _ => Point::ResidPre(layer),
        };
        Ok(Self { point, stream: RefCell::default() })
    }

    fn run(&self, model: &Gpt2LMHeadModel, batch: &PaddedBatch, args: ForwardArgs) -> Result<Tensor, Failed> {
        let passed = model.transform(&batch.ids, args);
        if let Some(stream) = self.stream.take() {
            return Ok(stream);
        }
        passed?;
        Err(Failed::value("stop_at_layer: lies before start_at_layer"))
    }
}

impl Hooks for StreamBefore {
    fn wants(&self, point: Point) -> bool {
        self.point == point
    }

    fn at(&self, _: At, value: &Tensor) -> candle_core::Result<Option<Tensor>> {
        self.stream.replace(Some(value.clone()));
        candle_core::bail!("the pass ends here")
    }
}

/// Adds a result with one value, or one for each layer.
fn add(found: &mut Found, name: &str, values: &[Tensor]) -> Result<(), Failed> {
    let there = |value| Ok(RunValue::There(Array::new(value)?));
    found.insert(name.to_owned(), values.iter().map(there).collect::<candle_core::Result<Vec<_>>>()?);
    Ok(())
}

/// Runs the model, without its output projection if nothing needs that. Adds the loss and the logits to `found`.
fn pass(
    model: &Gpt2LMHeadModel,
    asked: &RunRequest,
    batch: &PaddedBatch,
    args: ForwardArgs,
    found: &mut Found,
) -> Result<gpt2_model::ModelOutput, Failed> {
    let check = |result: &Tensor| {
        let is_fine = asked.allow_nonfinite || all_finite(result)?;
        if is_fine { Ok(()) } else { Err(not_finite(model, asked, batch)) }
    };
    if asked.logits == "none" && !asked.loss {
        let output = model.transform(&batch.ids, args)?;
        check(&output.last_hidden_state)?;
        return Ok(output);
    }
    let output = model.forward(&batch.ids, args)?;
    check(&output.logits)?;
    if asked.loss {
        let loss = loss(&output.logits, &asked.rows)?;
        check(&loss)?;
        add(found, "loss", &[loss])?;
    }
    match asked.logits.as_str() {
        "all" => add(found, "logits", &[output.logits])?,
        "last" => {
            let t = output.logits.dim(1)?;
            add(found, "logits", &[output.logits.narrow(1, t - 1, 1)?])?;
        }
        _ => {}
    }
    Ok(output.transformer)
}

/// The error about a result that is not finite, with its place if the model alone has it.
fn not_finite(model: &Gpt2LMHeadModel, asked: &RunRequest, batch: &PaddedBatch) -> Failed {
    let alone = if batch.mask.is_none() { model.first_not_finite(&batch.ids, None) } else { Ok(None) };
    let why = match alone {
        Ok(Some(found)) => format!("{found}: are the weights damaged, or too large for this dtype?"),
        _ if asked.hooks.is_empty() => "undo an intervention, or weaken it".to_owned(),
        _ => "undo what a function writes or an intervention, or weaken it".to_owned(),
    };
    Failed::value(format!(
        "the results are not finite numbers: {why}; allow_nonfinite=True returns them anyway"
    ))
}

/// The mean cross-entropy in nats of predicting each token of each row from those before it.
fn loss(logits: &Tensor, rows: &[Vec<u32>]) -> Result<Tensor, Failed> {
    let width = logits.dim(1)?;
    let (mut sum, mut count) = (0.0, 0);
    for (i, row) in rows.iter().enumerate().filter(|(_, row)| row.len() > 1) {
        let first = width - row.len();
        let n = row.len() - 1;
        let targets = Tensor::new(&row[1..], logits.device())?.unsqueeze(0)?;
        let mean = cross_entropy(&logits.narrow(0, i, 1)?.narrow(1, first, n)?, &targets)?;
        sum += mean.to_dtype(DType::F64)?.to_scalar::<f64>()? * n as f64;
        count += n;
    }
    if count == 0 {
        return Err(Failed::value("loss: a text of one token predicts nothing; give two or more"));
    }
    Ok(Tensor::new(sum / count as f64, &candle_core::Device::Cpu)?)
}

#[pymethods]
impl Model {
    /// A pass over some texts; see `RunRequest`.
    fn run(&self, py: Python<'_>, asked: RunRequest) -> PyResult<Found> {
        let raised = Arc::new(Raised::default());
        let layers = self.config_of().n_layer;
        let hooks =
            asked.hooks.iter().map(|(name, function)| Ok((point(name, layers)?, function.clone_ref(py))));
        let hooks = hooks.collect::<Result<Vec<_>, Failed>>()?;
        let calls_python = !hooks.is_empty();
        let work = || run(&self.loaded, &asked, hooks, &raised);
        if calls_python { compute(py, &raised, work) } else { compute_in_pool(py, &raised, work) }
    }
}
