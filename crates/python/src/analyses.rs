//! The published analyses, as arrays.

use crate::array::Array;
use crate::changes::{InterventionTexts, slices};
use crate::error::Failed;
use crate::guard::{Raised, compute};
use crate::hooks::PyHooks;
use crate::metric::GivenMetric;
use crate::model::Model;
use crate::run::{PaddedBatch, point};
use candle_core::{Device, Tensor};
use gpt2_circuits::{Circuit, Circuits, Composition};
use gpt2_engine::Opened;
use gpt2_engine::interventions::Reads;
use gpt2_model::ForwardArgs;
use gpt2_model::analysis::{
    Ablation, BackwardHooks, Centering, Contrast, Divergence, GradientFunction, Loss, Metric, Parts,
    RepeatedTokens, ablation_effects, activation_patching, attention_rollout, attribution_patching,
    batch_gradients, direct_attribution, head_scores, surprises,
};
use gpt2_model::hooks::{Chain, Head, Hooks, Interventions, Point};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The answers, and the tokens to compare them with. Without these, the metric is the log-probability of the only answer.
#[derive(Debug, FromPyObject)]
pub(crate) struct AnswerTokens(Vec<u32>, Option<Vec<u32>>);

impl AnswerTokens {
    /// The difference to the tokens that they are compared with, or what `alone` makes of the only answer.
    fn metric(&self, alone: fn(u32) -> Metric) -> Result<Metric, Failed> {
        match (&self.0[..], &self.1) {
            (answers, Some(against)) => {
                Ok(Metric::LogitDifference { answers: answers.to_vec(), against: against.clone() })
            }
            ([answer], None) => Ok(alone(*answer)),
            _ => Err(Failed::value("answer: several right answers need wrong ones, too: give against")),
        }
    }

    /// The only answer.
    fn only(&self, metric: &str) -> Result<u32, Failed> {
        match self.0[..] {
            [answer] => Ok(answer),
            _ => Err(Failed::value(format!("metric '{metric}': is of one right answer; give one"))),
        }
    }

    /// The probability of any answer, less that of any token that they are compared with.
    fn probability(&self) -> Metric {
        Metric::Probability { answers: self.0.clone(), against: self.1.clone().unwrap_or_default() }
    }
}

/// The metric: that of answers, another by its name, or a function of logits.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct MetricArgument {
    answer: Option<AnswerTokens>,
    /// `log-prob`, `logit`, `logit-difference`, `probability`, `probability-difference`, `loss` or `kl`; otherwise it is that of the
    /// answers.
    name: Option<String>,
    function: Option<Py<PyAny>>,
    /// The logits of another run, from which `kl` is measured.
    reference: Option<Py<Array>>,
    positions: Vec<usize>,
    /// Whether the function measures all texts together.
    together: bool,
}

impl MetricArgument {
    /// The metric of texts; `alone` makes one of a single answer.
    fn metric(
        &self,
        texts: &[&[u32]],
        alone: fn(u32) -> Metric,
        raised: &Arc<Raised>,
    ) -> Result<Metric, Failed> {
        if let Some(function) = &self.function {
            let function = Python::attach(|py| function.clone_ref(py));
            let given = GivenMetric { function, raised: Arc::clone(raised), pair: None };
            return Ok(given.metric(self.together));
        }
        let answer = || {
            let missing = "answer: give the token that is measured, or a metric that needs none";
            self.answer.as_ref().ok_or_else(|| Failed::value(missing))
        };
        let metric = match self.name.as_deref() {
            None | Some("logit-difference") => answer()?.metric(alone)?,
            Some("log-prob") => answer()?.only("log-prob").map(Metric::LogProb)?,
            Some("logit") => answer()?.only("logit").map(Metric::Logit)?,
            Some("probability" | "probability-difference") => answer()?.probability(),
            Some("loss") => {
                return Ok(Metric::OfText(Arc::new(Loss {
                    texts: texts.iter().map(|ids| ids.to_vec()).collect(),
                })));
            }
            Some("kl") => {
                let Some(reference) = &self.reference else {
                    return Err(Failed::value("metric 'kl': give reference, the logits of another run"));
                };
                return Ok(Metric::OfText(Arc::new(Divergence::from(reference.get().tensor())?)));
            }
            Some(other) => {
                return Err(Failed::value(format!(
                    "metric {other:?}: expected logit-difference, log-prob, logit, probability, probability-difference, loss, kl or a \
                     function"
                )));
            }
        };
        Ok(if self.positions.is_empty() {
            metric
        } else {
            Metric::At(self.positions.clone(), Box::new(metric))
        })
    }
}

/// A clean and a corrupted text, and what is measured of them.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct TextPair {
    clean: Vec<u32>,
    corrupt: Vec<u32>,
    measure: MetricArgument,
    changes: InterventionTexts,
}

impl TextPair {
    fn measured<T>(
        &self,
        opened: &Opened,
        raised: &Arc<Raised>,
        work: impl FnOnce(&Contrast) -> candle_core::Result<T>,
    ) -> Result<T, Failed> {
        let changes = self.changes.build(opened, Reads::Branches(&self.clean), raised)?;
        let model = &opened.model;
        let clean = model.ids(&self.clean)?;
        let corrupt = model.ids(&self.corrupt)?;
        let metric = self.measure.metric(&[&self.clean], Metric::LogProb, raised)?;
        Ok(work(&Contrast { clean: &clean, corrupt: &corrupt, metric: &metric, hooks: hooks(&changes) })?)
    }
}

/// Interventions as hooks; without any, the model keeps its fused code.
fn hooks(changes: &Interventions) -> Option<&dyn Hooks> {
    if changes.is_empty() { None } else { Some(changes) }
}

/// Random tokens that come several times.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
struct RepeatedTexts {
    length: usize,
    repeats: usize,
    /// The number of texts.
    rows: usize,
    /// Whether they begin with a random token instead of the model's first token.
    no_bos: bool,
}

/// Texts, what is measured of them, and the points whose gradients are wanted.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
struct GradientRequest {
    rows: Vec<Vec<u32>>,
    measure: MetricArgument,
    points: Vec<String>,
    changes: InterventionTexts,
    /// Points and the functions that read and change their values.
    hooks: Vec<(String, Py<PyAny>)>,
    /// Points and the functions that read and change their gradients.
    bwd_hooks: Vec<(String, Py<PyAny>)>,
}

/// The metrics, the logits, and at each point the value and the gradient.
type TextGradients = (Vec<f64>, Array, Vec<(Array, Array)>);

/// Python functions of gradients.
fn backward_hooks(
    functions: Vec<(String, Py<PyAny>)>,
    layers: usize,
    raised: &Arc<Raised>,
) -> Result<BackwardHooks, Failed> {
    let of = |(name, function): (String, Py<PyAny>)| {
        let raised = Arc::clone(raised);
        let call: GradientFunction = Arc::new(move |gradient: &Tensor| {
            let list = vec![(Point::Logits, Python::attach(|py| function.clone_ref(py)))];
            PyHooks { list, raised: &raised }.changed(Point::Logits, gradient)
        });
        Ok((point(&name, layers)?, call))
    };
    Ok(BackwardHooks::new(functions.into_iter().map(of).collect::<Result<_, Failed>>()?))
}

type Arrays = BTreeMap<&'static str, Array>;

fn number(x: f64) -> candle_core::Result<Array> {
    Array::new(&Tensor::new(x, &Device::Cpu)?)
}

#[pymethods]
impl Model {
    /// The metric of texts, the logits, the values at points and the metric's gradients there.
    fn gradients(&self, py: Python<'_>, request: GradientRequest) -> PyResult<TextGradients> {
        let raised = Arc::default();
        compute(py, &raised, || {
            let model = &self.loaded.model;
            let GradientRequest { rows, measure, points, changes, hooks: functions, bwd_hooks } = request;
            let layers = model.config().n_layer;
            let points = points.iter().map(|name| point(name, layers)).collect::<Result<Vec<_>, _>>()?;
            let list = functions.into_iter().map(|(name, function)| Ok((point(&name, layers)?, function)));
            let functions = PyHooks { list: list.collect::<Result<_, Failed>>()?, raised: &raised };
            let changes = changes.build(&self.loaded, Reads::Whole(&slices(&rows)), &raised)?;
            let metric = measure.metric(&slices(&rows), Metric::LogProb, &raised)?;
            let batch = PaddedBatch::new(model, &rows)?;
            let backward = backward_hooks(bwd_hooks, layers, &raised)?;
            let chain: [&dyn Hooks; 3] = [&changes, &functions, &backward];
            let found = batch_gradients(model, &batch.ids, batch.args(&Chain(&chain)), &metric, &points)?;
            let array = |(value, gradient): &(Tensor, Tensor)| {
                Ok((Array::copy_of(value)?, Array::copy_of(gradient)?))
            };
            let at = found.at.iter().map(array).collect::<candle_core::Result<Vec<_>>>()?;
            Ok((found.metric, Array::copy_of(&found.logits)?, at))
        })
    }

    /// Scores of heads on repeated random tokens: (L, H) for each kind, and their standard errors.
    fn head_scores(
        &self,
        py: Python<'_>,
        of: RepeatedTexts,
        seed: u64,
        changes: InterventionTexts,
    ) -> PyResult<Arrays> {
        let raised = Arc::default();
        compute(py, &raised, || {
            let model = &self.loaded.model;
            let config = model.config();
            let RepeatedTexts { length, repeats, rows, no_bos } = of;
            let bos = config.bos_token_id.filter(|&id| !no_bos && (id as usize) < config.vocab_size);
            let texts = RepeatedTokens::random(bos, (length, repeats), rows, config.vocab_size, seed);
            let changes = changes.build(&self.loaded, Reads::Others("texts of its own"), &raised)?;
            let found = head_scores(&model.transformer, &texts, hooks(&changes))?;
            let mut arrays = Arrays::new();
            for (name, error, kind) in [
                ("previous_token", "previous_token_error", 0),
                ("duplicate_token", "duplicate_token_error", 1),
                ("induction", "induction_error", 2),
            ] {
                let of = |of: fn(&gpt2_model::analysis::Score) -> f64| {
                    let all = found
                        .iter()
                        .flatten()
                        .map(|head| of([&head.previous_token, &head.duplicate_token, &head.induction][kind]));
                    Array::new(&Tensor::from_vec(
                        all.collect(),
                        (config.n_layer, config.n_head),
                        &Device::Cpu,
                    )?)
                };
                arrays.insert(name, of(|score| score.mean)?);
                arrays.insert(error, of(|score| score.standard_error)?);
            }
            Ok(arrays)
        })
    }

    /// The change of the metric by ablating each head (L, H), and the metric without.
    fn effects(
        &self,
        py: Python<'_>,
        text: Vec<u32>,
        measure: MetricArgument,
        mean: bool,
        changes: InterventionTexts,
    ) -> PyResult<Arrays> {
        let raised = Arc::default();
        compute(py, &raised, || {
            let model = &self.loaded.model;
            let changes = changes.build(&self.loaded, Reads::Branches(&text), &raised)?;
            let ablation = if mean { Ablation::Mean } else { Ablation::Zero };
            let metric = measure.metric(&[&text], Metric::LogProb, &raised)?;
            let found = ablation_effects(model, &model.ids(&text)?, &metric, ablation, hooks(&changes))?;
            Ok(Arrays::from([("plain", number(found.plain)?), ("change", Array::new(&found.change)?)]))
        })
    }

    /// The direct share of each part in a logit, or in a difference of two.
    fn direct(
        &self,
        py: Python<'_>,
        text: Vec<u32>,
        answer: AnswerTokens,
        raw: bool,
        changes: InterventionTexts,
    ) -> PyResult<Arrays> {
        let raised = Arc::default();
        compute(py, &raised, || {
            let model = &self.loaded.model;
            let metric = answer.metric(Metric::Logit)?;
            let centering = if raw { Centering::Raw } else { Centering::default() };
            let changes = changes.build(&self.loaded, Reads::Branches(&text), &raised)?;
            let found = direct_attribution(model, &model.ids(&text)?, &metric, centering, hooks(&changes))?;
            Ok(Arrays::from([
                ("heads", Array::new(&found.heads)?),
                ("attention_biases", Array::new(&found.attention_biases)?),
                ("mlps", Array::new(&found.mlps)?),
                ("embed", number(found.embed)?),
                ("pos_embed", number(found.pos_embed)?),
                ("final_bias", number(found.final_bias)?),
                ("interventions", number(found.interventions)?),
                ("total", number(found.total)?),
            ]))
        })
    }

    /// Activation patching of `parts`: the metric of both runs, and a map for each of the parts.
    fn patch(
        &self,
        py: Python<'_>,
        pair: TextPair,
        parts: Vec<String>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(f64, f64, Vec<Array>)> {
        let raised = Arc::new(Raised::default());
        compute(py, &raised, || {
            let model = &self.loaded.model;
            let of = |name: &String| PARTS.iter().find(|(known, _)| known == name).map(|(_, parts)| *parts);
            let parts = parts.iter().map(|name| {
                of(name).ok_or_else(|| {
                    Failed::value(format!(
                        "parts {name:?}: expected some of {}",
                        PARTS.map(|(name, _)| name).join(", ")
                    ))
                })
            });
            let parts = parts.collect::<Result<Vec<_>, _>>()?;
            let found = pair.measured(&self.loaded, &raised, |contrast| {
                activation_patching(model, contrast, &parts, &mut |done, all| {
                    raised.check_signals()?;
                    match &progress {
                        Some(progress) => raised.attached(|py| progress.call1(py, (done, all)).map(drop)),
                        None => Ok(()),
                    }
                })
            })?;
            let maps = found.maps.iter().map(Array::new).collect::<candle_core::Result<Vec<_>>>()?;
            Ok((found.clean, found.corrupt, maps))
        })
    }

    /// Attribution patching: an estimate for each head, stream, attention block and MLP at each position.
    fn attribution(&self, py: Python<'_>, pair: TextPair) -> PyResult<Arrays> {
        let raised = Arc::default();
        compute(py, &raised, || {
            let model = &self.loaded.model;
            let found =
                pair.measured(&self.loaded, &raised, |contrast| attribution_patching(model, contrast))?;
            Ok(Arrays::from([
                ("heads", Array::new(&found.heads)?),
                ("streams", Array::new(&found.streams)?),
                ("attention", Array::new(&found.attention)?),
                ("mlps", Array::new(&found.mlps)?),
            ]))
        })
    }

    /// Attention rollout, (L, T, T).
    fn rollout(&self, py: Python<'_>, text: Vec<u32>, changes: InterventionTexts) -> PyResult<Array> {
        let raised = Arc::default();
        compute(py, &raised, || {
            let model = &self.loaded.model;
            let changes = changes.build(&self.loaded, Reads::Branches(&text), &raised)?;
            let args =
                ForwardArgs { output_attentions: true, hooks: hooks(&changes), ..ForwardArgs::default() };
            let output = model.transform(&model.ids(&text)?, args)?;
            let layers = attention_rollout(&output.attentions)?;
            Ok(Array::new(&Tensor::stack(&layers, 0)?.squeeze(1)?)?)
        })
    }

    /// For each token of each text but the first, its surprise in nats.
    fn surprises(&self, py: Python<'_>, texts: Vec<Vec<u32>>) -> PyResult<Vec<Vec<f64>>> {
        let raised = Arc::new(Raised::default());
        compute(py, &raised, || {
            let mut all = vec![];
            // A few texts at a time, so that Ctrl-C need not wait for all.
            for some in texts.chunks(AT_ONCE) {
                raised.check_signals()?;
                let some: Vec<&[u32]> = some.iter().map(Vec::as_slice).collect();
                all.extend(surprises(&self.loaded.model, &some, false, None)?.nats);
            }
            Ok(all)
        })
    }

    /// Each head's copying score, (L, H).
    fn copying_scores(&self, py: Python<'_>) -> PyResult<Array> {
        compute(py, &Arc::default(), || {
            let config = self.config_of();
            let circuits = Circuits::new(&self.loaded.model)?;
            let heads = (0..config.n_layer)
                .flat_map(|layer| (0..config.n_head).map(move |head| Head { layer, head }));
            let scores =
                heads.map(|head| circuits.copying_score(head)).collect::<candle_core::Result<Vec<_>>>()?;
            Ok(Array::new(&Tensor::from_vec(scores, (config.n_layer, config.n_head), &Device::Cpu)?)?)
        })
    }

    /// Composition of every pair of heads, (L, H, L, H): `q`, `k` or `v`.
    fn composition(&self, py: Python<'_>, kind: &str) -> PyResult<Array> {
        let kind = match kind {
            "q" => Composition::Q,
            "k" => Composition::K,
            "v" => Composition::V,
            other => return Err(Failed::value(format!("kind {other:?}: expected q, k or v")).into()),
        };
        let raised = Arc::new(Raised::default());
        compute(py, &raised, || {
            let circuits = Circuits::new(&self.loaded.model)?;
            Ok(Array::new(&circuits.composition(kind, &mut |_, _| raised.check_signals())?)?)
        })
    }

    /// Rows of a head's QK or OV circuit, (tokens, V).
    fn circuit(
        &self,
        py: Python<'_>,
        layer: usize,
        head: usize,
        qk: bool,
        tokens: Vec<u32>,
    ) -> PyResult<Array> {
        compute(py, &Arc::default(), || {
            let circuits = Circuits::new(&self.loaded.model)?;
            let circuit = if qk { Circuit::Qk } else { Circuit::Ov };
            Ok(Array::new(&circuits.rows(Head { layer, head }, circuit, &tokens)?)?)
        })
    }
}

/// The number of texts that run at a time.
const AT_ONCE: usize = 8;

const PARTS: [(&str, Parts); 7] = [
    ("heads", Parts::Heads),
    ("heads_by_position", Parts::HeadsByPosition),
    ("streams", Parts::Streams),
    ("attention", Parts::Attention),
    ("attention_by_position", Parts::AttentionByPosition),
    ("mlps", Parts::Mlps),
    ("mlps_by_position", Parts::MlpsByPosition),
];
