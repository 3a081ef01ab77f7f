//! A run's attention: its predictions, the links between tokens, a summary or the weights of each head, and the page.

use super::page::{AttentionPage, AttentionPageOptions};
use super::subject::{ChosenHeads, MOST_LINKED, Subject, run_json};
use crate::observer::Observer;
use crate::studies::study::{Outcome, PointName, Points, Run, Study};
use crate::texts::Content;
use candle_core::{DType, Tensor};
use gpt2_model::hooks::Chain;
use gpt2_model::{ForwardArgs, ModelOutput};
use gpt2_view::{AttentionJson, FirstLook, HeadRow, LayerJson, RunJson};
use serde::{Deserialize, Serialize};

/// The options of a look at a prompt's attention.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The text, or its ids.
    pub prompt: Content,
    /// The layers to report with their weights, each with the heads of `head`; all of them if there are none.
    pub layer: Vec<usize>,
    /// The heads; all of them if there are none.
    pub head: Vec<usize>,
    /// Points of the run whose values are returned as tensors, too.
    pub export_point: Vec<PointName>,
}

impl Study for Options {
    const NAME: &'static str = "attention";
    type Report = AttentionJson;

    /// The tensors are `attentions` (layers, heads, T, T) and `attention_outputs` (layers, T, C), what attention adds to the stream.
    fn run(&self, run: &Run) -> anyhow::Result<Outcome<AttentionJson>> {
        let config = run.opened.model.config();
        let prompt = run.prompt(&self.prompt)?;
        let applied = run.on_prompt(&prompt)?;
        let option = run.opened.spelling.option("export-point");
        let points = Points::new(&option, &self.export_point, config.n_layer)?;
        let layers = or_all("layer", &self.layer, config.n_layer)?;
        let heads = or_all("head", &self.head, config.n_head)?;
        let chosen = ChosenHeads { layers: &layers, heads: &heads };
        let subject = Subject::new(run.opened, &prompt, chosen, &applied, run.allow_nonfinite)?;
        let weights = !(self.layer.is_empty() && self.head.is_empty());
        let keep = Keep {
            summaries: !weights,
            weights,
            looks: true,
            report: true,
            each_layer: run.wants_tensors,
            outputs: run.wants_tensors,
            page: None,
        };
        let mut all = vec![];
        let look = Look::new(&subject, &keep, &points, run.observer, |_, weights| {
            if run.wants_tensors {
                all.push(weights.clone());
            }
            Ok(())
        })?;
        let tensors = if run.wants_tensors { look.tensors(&subject, &all)? } else { vec![] };
        Ok(Outcome { report: look.report(&subject)?, tensors })
    }
}

/// The given indices below `count`, in order and once each; all of them if there are none.
fn or_all(what: &str, given: &[usize], count: usize) -> anyhow::Result<Vec<usize>> {
    if let Some(index) = given.iter().find(|index| **index >= count) {
        anyhow::bail!("there is no {what} {index}: this model's {what}s are 0 to {}", count - 1);
    }
    Ok((0..count).filter(|index| given.is_empty() || given.contains(index)).collect())
}

/// The parts of a run to keep.
#[derive(Debug, Clone, Default)]
pub struct Keep {
    /// A summary of each chosen head.
    pub summaries: bool,
    /// The weights of each chosen head, for the report.
    pub weights: bool,
    /// The links between tokens and the kinds of heads.
    pub looks: bool,
    /// Whether a report is made, of both runs of a comparison.
    pub report: bool,
    /// Whether the caller takes each layer's weights.
    pub each_layer: bool,
    /// The values that attention adds to the stream.
    pub outputs: bool,
    /// The page.
    pub page: Option<AttentionPageOptions>,
}

/// A run of which everything asked for is kept.
#[derive(Debug)]
pub struct Look<'a> {
    /// The run.
    pub output: ModelOutput,
    /// The links between tokens, if they were asked for.
    pub first: Option<FirstLook>,
    layers: Option<Vec<LayerJson>>,
    points: Vec<(String, Tensor)>,
    page: Option<AttentionPage<'a>>,
    plain: Option<RunJson>,
}

impl<'a> Look<'a> {
    /// Runs the model under the subject's interventions, and calls `each` with every chosen layer's weights of the chosen heads, (heads, T, T).
    ///
    /// # Errors
    /// When a number is not finite, the page has no room, or `each` fails.
    pub fn new(
        subject: &Subject,
        keep: &'a Keep,
        points: &Points,
        observer: &dyn Observer,
        mut each: impl FnMut(usize, &Tensor) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let report = keep.report.then_some(keep.weights);
        let page = keep.page.as_ref().map(|options| AttentionPage::new(subject, options, report));
        let mut page = page.transpose()?;
        let plain = page.as_mut().and_then(|page| page.json.take());
        let first = keep.looks.then(|| FirstLook::new(subject.ids, subject.shown, subject.silenced()));
        let mut first = first.transpose()?;
        let searches = keep.looks && subject.ids.len() <= MOST_LINKED;
        let mut layers = keep.weights.then(Vec::new);
        let wants = keep.weights || searches || keep.each_layer || page.is_some();
        let forward = ForwardArgs {
            output_summaries: keep.summaries,
            output_attention_outputs: keep.outputs,
            output_hidden_states: keep.page.as_ref().is_some_and(AttentionPageOptions::lens),
            ..Default::default()
        };
        let kinds = keep.page.as_ref().map_or(&[][..], AttentionPageOptions::kinds);
        let wanted: &[usize] = if wants { subject.layers } else { &[] };
        let recorder = points.recorder();
        let hooks = Chain(&[&subject.changes.list, &recorder]);
        let mut done = 0;
        let output = subject.run_under(&hooks, forward, wanted, kinds, |layer, weights, values| {
            let weights = subject.of_chosen(weights)?; // (heads, T, T)
            if let Some(layers) = &mut layers {
                layers.push(LayerJson::new(layer, subject.heads, &weights, true)?);
            }
            if let Some(first) = first.as_mut().filter(|_| searches) {
                first.layer(layer, subject.heads, &weights)?;
            }
            each(layer, &weights)?;
            if let Some(AttentionPage { page, run, .. }) = &mut page {
                page.layer(subject, *run, layer, &weights, values)?;
            }
            done += 1;
            Ok(observer.step("layers", done, Some(subject.layers.len() as u64))?)
        })?;
        let mut of_points = vec![];
        if keep.outputs {
            points.add_to(&mut of_points, &recorder, |x| subject.check_finite([x]))?;
        }
        Ok(Self { output, first, layers, points: of_points, page, plain })
    }

    /// The tensors of the run, from its layers' weights: those, what attention adds to the stream, and the values at points.
    ///
    /// # Errors
    /// When a number is not finite.
    pub fn tensors(&self, subject: &Subject, weights: &[Tensor]) -> anyhow::Result<Vec<(String, Tensor)>> {
        let mut tensors = vec![("attentions".to_owned(), Tensor::stack(weights, 0)?)]; // (layers, heads, T, T)
        let of_layers = subject.layers.iter().filter_map(|&layer| self.output.attention_outputs.get(layer));
        let of_layers = of_layers.map(|output| output.squeeze(0)).collect::<Result<Vec<_>, _>>()?;
        if !of_layers.is_empty() {
            let stacked = Tensor::stack(&of_layers, 0)?.to_dtype(DType::F32)?; // (layers, T, C)
            subject.check_finite([&stacked])?;
            tensors.push(("attention_outputs".to_owned(), stacked));
        }
        tensors.extend(self.points.iter().cloned());
        Ok(tensors)
    }

    /// The page, if it was asked for.
    ///
    /// # Errors
    /// When a part of it does not fit the model, or is not finite.
    pub fn page(&mut self, subject: &Subject, observer: &dyn Observer) -> anyhow::Result<Option<Vec<u8>>> {
        self.page.take().map(|page| page.finish(subject, &self.output, observer)).transpose()
    }

    /// A row for each chosen head, if links and summaries were asked for.
    ///
    /// # Errors
    /// When the summaries are missing.
    pub fn rows(&self, subject: &Subject) -> anyhow::Result<Vec<HeadRow>> {
        let Some(first) = &self.first else { return Ok(vec![]) };
        let silenced = subject.silenced();
        let mut rows = vec![];
        for of in subject.summaries(&self.output.summaries)? {
            for head in &of.heads {
                let focus = head.summary.focus(first.looks(of.layer, head.head));
                let silenced = silenced.how(of.layer, head.head);
                rows.push(HeadRow {
                    layer: of.layer,
                    head: head.head,
                    summary: head.summary,
                    focus,
                    silenced,
                });
            }
        }
        Ok(rows)
    }

    /// The run as a report.
    ///
    /// # Errors
    /// When the predictions are not finite.
    pub fn report(self, subject: &Subject) -> anyhow::Result<AttentionJson> {
        let layers = self.layers.map_or_else(|| subject.summaries(&self.output.summaries), Ok)?;
        let run = run_json(subject, self.first.as_ref(), layers, &self.output, &subject.silenced())?;
        let provenance = serde_json::to_value(&subject.made_by)?;
        Ok(AttentionJson { provenance, tokens: subject.tokens.to_vec(), run, plain: self.plain })
    }
}
