//! Views of attention: the page with every head, and pictures.

use crate::array::Array;
use crate::changes::{InterventionTexts, edge};
use crate::error::{Failed, from_json};
use crate::guard::compute;
use crate::model::Model;
use crate::observer::PyObserver;
use gpt2_circuits::discovery::Graph;
use gpt2_engine::interventions::Reads;
use gpt2_engine::studies::Points;
use gpt2_engine::studies::interpret::attention::{
    AttentionPageOptions, ChosenHeads, Keep, Look, Subject, all_heads,
};
use gpt2_engine::studies::interpret::discover::circuit_picture;
use gpt2_engine::texts::{Content, Prompt};
use gpt2_view::{Frame, HeadGrid, NumberMap, PictureFormat, head_picture, number_maps, page_fragment};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::Path;
use std::sync::Arc;

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
            let opened = &self.loaded.opened;
            let observer = PyObserver::new(&raised, None);
            let applied = changes.applied(opened, Reads::Whole(&[&ids]), &raised)?;
            let prompt = Prompt::new(opened, &Content::Ids(ids), "the text", &observer)?;
            let [layers, heads] = all_heads(opened.model.config());
            let chosen = ChosenHeads { layers: &layers, heads: &heads };
            let mut subject = Subject::new(opened, &prompt, chosen, &applied, false)?;
            subject.made_by = subject.made_by.from_python();
            let page = Some(AttentionPageOptions { compare, ..AttentionPageOptions::default() });
            let keep = Keep { page, ..Keep::default() };
            let mut look = Look::new(&subject, &keep, &Points::default(), &observer, |_, _| Ok(()))?;
            let page = look.page(&subject, &observer)?.unwrap_or_default();
            String::from_utf8(page).map_err(|error| Failed::from(anyhow::Error::from(error)))
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

    /// A picture of a circuit's edges, as `from->to`, with a score each if they have some. `found` says how it was found.
    fn circuit_picture<'py>(
        &self,
        py: Python<'py>,
        path: &str,
        title: &str,
        edges: Vec<String>,
        scores: Option<Vec<f64>>,
        found: &str,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = compute(py, &Arc::default(), || {
            let mut provenance = self.loaded.provenance(&[], &[])?;
            provenance.facts["circuit"] = from_json(found)?;
            let frame = Frame::new(PictureFormat::from_path(Path::new(path))?, title, &provenance);
            let graph = Graph::of(self.loaded.opened.model.config())?;
            let edges = edges.iter().map(|text| edge(text)).collect::<anyhow::Result<Vec<_>>>()?;
            Ok(circuit_picture(&frame, graph, &edges, scores.as_deref())?)
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
