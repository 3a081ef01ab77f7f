//! Views of attention: the page with every head, and pictures.

use crate::array::Array;
use crate::changes::InterventionTexts;
use crate::error::Failed;
use crate::guard::compute;
use crate::loaded::Loaded;
use crate::model::Model;
use candle_core::{DType, Device};
use gpt2_engine::interventions::Reads;
use gpt2_model::analysis::{most_likely, value_norms};
use gpt2_model::finite::all_finite;
use gpt2_model::hooks::{Chain, Hooks, Interventions, Point, on};
use gpt2_model::{ForwardArgs, ModelOutput};
use gpt2_view::{
    Frame, HeadGrid, NextToken, NumberMap, PageHeader, PageWriter, PictureFormat, head_picture, number_maps,
    page_fragment,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

/// The number of next tokens that the page lists for each position.
const LISTED: usize = 5;
/// The number of positions whose logits are in memory at a time.
const CHUNK: usize = 64;

impl Loaded {
    /// The page of a text: of one run, or of the plain run beside one with interventions.
    fn page(&self, ids: &[u32], changes: &Interventions, compare: bool) -> Result<String, Failed> {
        let config = self.model.config();
        let texts: Vec<String> = changes.iter().map(ToString::to_string).collect();
        let tokens = self.shown(ids);
        let provenance = self.provenance(ids, &texts)?;
        let under = texts.join(", ");
        let mut header = PageHeader::new(&self.name, &tokens, config.n_layer * config.n_head, &provenance);
        let runs = ["plain", under.as_str()];
        header.ids = ids;
        if compare {
            header.runs = &runs;
        }
        for (head, how) in changes.silenced(config, ids.len()) {
            header.silenced.insert(head.layer, head.head, how);
        }
        let mut page = PageWriter::new(vec![], &header)?;
        let none = Interventions::default();
        let plain = if compare { Some(self.layers(&mut page, 0, ids, &none)?) } else { None };
        let output = self.layers(&mut page, usize::from(compare), ids, changes)?;
        let found = self.predictions(ids, &output)?;
        let page = match plain {
            Some(plain) => {
                page.predictions(1, &found)?;
                page.finish(&self.predictions(ids, &plain)?)?
            }
            None => page.finish(&found)?,
        };
        String::from_utf8(page).map_err(|error| anyhow::Error::from(error).into())
    }

    /// Runs the transformer under `changes` and writes the weights of every head.
    fn layers(
        &self,
        page: &mut PageWriter<Vec<u8>>,
        run: usize,
        ids: &[u32],
        changes: &Interventions,
    ) -> Result<ModelOutput, Failed> {
        let config = self.model.config();
        let heads: Vec<usize> = (0..config.n_head).collect();
        let points: Vec<_> =
            (0..config.n_layer).flat_map(|layer| [Point::V(layer), Point::Pattern(layer)]).collect();
        let state = RefCell::new((page, None));
        let reader = on(points, |at, value| {
            let (page, v) = &mut *state.borrow_mut();
            match at.point {
                Point::V(_) => *v = Some(value.clone()),
                Point::Pattern(layer) => {
                    page.layer_of_run(run, layer, &heads, &value.squeeze(0)?)?;
                    if let Some(v) = v.take() {
                        page.value_norms(
                            run,
                            layer,
                            &heads,
                            &value_norms(&self.model.transformer.h[layer].attn, &heads, &v)?,
                        )?;
                    }
                }
                _ => {}
            }
            Ok(None)
        });
        let hooks: [&dyn Hooks; 2] = [changes, &reader];
        let args = ForwardArgs { hooks: Some(&Chain(&hooks)), ..ForwardArgs::default() };
        let ids = self.model.ids(ids)?;
        Ok(self.model.transform(&ids, args)?)
    }

    /// The model's predictions after each token.
    fn predictions(&self, ids: &[u32], output: &ModelOutput) -> Result<Vec<NextToken>, Failed> {
        let hidden = output.last_hidden_state.squeeze(0)?; // (T, C)
        let mut all = vec![];
        for from in (0..ids.len()).step_by(CHUNK) {
            let rows = hidden.narrow(0, from, CHUNK.min(ids.len() - from))?;
            let logits = candle_core::Module::forward(&self.model.lm_head, &rows)?; // (rows, V)
            if !all_finite(&logits)? {
                return Err(Failed::value("the results are not finite numbers: undo a change, or weaken it"));
            }
            let logits = logits.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.to_vec2::<f32>()?;
            for (i, row) in logits.iter().enumerate() {
                let likely = most_likely(row, LISTED, ids.get(from + i + 1).copied());
                let (ids, probabilities): (Vec<u32>, Vec<f32>) = likely.tokens.into_iter().unzip();
                let shown = self.shown(&ids).into_iter().zip(probabilities).collect();
                all.push(NextToken { likely: shown, actual: likely.actual });
            }
        }
        Ok(all)
    }
}

#[pymethods]
impl Model {
    /// The interventions of a run over a text, as the command writes them.
    fn said(&self, py: Python<'_>, ids: Vec<u32>, changes: InterventionTexts) -> PyResult<Vec<String>> {
        let raised = Arc::default();
        compute(py, &raised, || {
            let changes = changes.build(&self.loaded, Reads::Whole(&[&ids]), &raised)?;
            Ok(changes.iter().map(ToString::to_string).collect())
        })
    }

    /// The page as HTML.
    fn page(
        &self,
        py: Python<'_>,
        ids: Vec<u32>,
        changes: InterventionTexts,
        compare: bool,
    ) -> PyResult<String> {
        let raised = Arc::default();
        compute(py, &raised, || {
            let changes = changes.build(&self.loaded, Reads::Whole(&[&ids]), &raised)?;
            if compare && changes.is_empty() {
                return Err(Failed::value(
                    "compare: there is nothing to compare the plain run with; add an intervention, such as ablate=[\"0.3\"]",
                ));
            }
            self.loaded.page(&ids, &changes, compare)
        })
    }

    /// The page as an element for a notebook.
    #[staticmethod]
    fn fragment(page: &str, height: u32) -> String {
        page_fragment(page.as_bytes(), height)
    }

    /// A picture of weights (L, H, T, T) or, of a single head, (T, T). The format goes by the ending of `path`.
    fn picture<'py>(
        &self,
        py: Python<'py>,
        path: &str,
        title: &str,
        ids: Vec<u32>,
        changes: Vec<String>,
        weights: &Bound<'py, Array>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let weights = weights.get().tensor().clone();
        let bytes = compute(py, &Arc::default(), || {
            let provenance = self.loaded.provenance(&ids, &changes)?;
            let tokens = self.loaded.shown(&ids);
            let frame = Frame::new(PictureFormat::from_path(Path::new(path))?, title, &provenance);
            if weights.rank() == 2 {
                return Ok(head_picture(&frame, &weights, &tokens, &tokens)?);
            }
            let mut grid = HeadGrid::default();
            for layer in 0..weights.dim(0)? {
                let heads: Vec<usize> = (0..weights.dim(1)?).collect();
                grid.add(layer, &heads, &weights.get(layer)?)?;
            }
            Ok(grid.finish(&frame)?)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// A picture of maps of numbers: each with its name, its unit, the names of its axes, the labels of both, and its values (rows,
    /// columns).
    fn maps<'py>(
        &self,
        py: Python<'py>,
        path: &str,
        title: &str,
        ids: Vec<u32>,
        changes: Vec<String>,
        maps: Vec<Map>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = compute(py, &Arc::default(), || {
            let provenance = self.loaded.provenance(&ids, &changes)?;
            let frame = Frame::new(PictureFormat::from_path(Path::new(path))?, title, &provenance);
            let named = maps.iter().map(|map| {
                let row_axis = map.row_axis.as_str();
                let column_axis = map.column_axis.as_str();
                let rows = &map.rows[..];
                let columns = &map.columns[..];
                let of = NumberMap {
                    name: &map.name,
                    row_axis,
                    column_axis,
                    unit: &map.unit,
                    rows,
                    columns,
                    ..NumberMap::default()
                };
                (of, map.values.get().tensor().clone())
            });
            Ok(number_maps(&frame, &named.collect::<Vec<_>>())?)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }
}

/// A map of numbers to draw.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
struct Map {
    name: String,
    unit: String,
    row_axis: String,
    column_axis: String,
    rows: Vec<String>,
    columns: Vec<String>,
    values: Py<Array>,
}
