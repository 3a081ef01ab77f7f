//! A circuit as an intervention: only its edges are run.

use super::options::CircuitChoice;
use crate::observer::Observer;
use crate::open::Opened;
use crate::texts::{read_file, refuse_device};
use crate::words::count;
use anyhow::{Context, bail};
use gpt2_circuits::discovery::{CircuitRun, Edge, EdgeSet, Graph, Rest};
use gpt2_loader::FileKind;
use gpt2_model::hooks::{CustomHooks, Intervention, Interventions};
use gpt2_view::without_folders;
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;

/// The fields of a circuit file that are read.
#[derive(Deserialize)]
struct CircuitFile {
    edges: Vec<Ends>,
    /// The provenance that `discover` writes; null in a file written by hand.
    #[serde(default)]
    provenance: serde_json::Value,
}

#[derive(Deserialize)]
struct Ends {
    from: String,
    to: String,
}

/// The longest circuit file to read, in bytes: far more than all edges of GPT-2 XL take.
const LONGEST: u64 = 1 << 30;

/// A circuit in a file.
#[derive(Debug, Clone)]
pub struct LoadedCircuit {
    /// Its edges.
    pub edges: EdgeSet,
    /// The model that it was found in, if the file says so.
    pub found_in: Option<String>,
}

impl LoadedCircuit {
    /// Reads a circuit file for a model with this graph.
    ///
    /// # Errors
    /// When it is no circuit, has no edge, or one that the model does not have.
    pub fn read(path: &Path, graph: Graph, observer: &dyn Observer) -> anyhow::Result<Self> {
        let name = || path.display().to_string();
        refuse_device(path).with_context(name)?;
        let text = read_file("the circuit", path, LONGEST, observer)?;
        let file: CircuitFile = serde_json::from_str(&text).with_context(|| {
            let kind = FileKind::of(text.as_bytes()).filter(|kind| *kind != FileKind::Json);
            let what = kind.map_or_else(String::new, |kind| format!("is {kind}, and "));
            format!("{}: {what}is not a circuit; gpt2 discover --out FILE.json writes one", path.display())
        })?;
        let edge = |Ends { from, to }: &Ends| format!("{from}->{to}").parse::<Edge>();
        let edges = file
            .edges
            .iter()
            .map(edge)
            .collect::<Result<Vec<_>, _>>()
            .map_err(anyhow::Error::msg)
            .with_context(name)?;
        let edges = EdgeSet::of(graph, edges).with_context(name)?;
        if edges.is_empty() {
            bail!("{}: has no edge", path.display());
        }
        Ok(Self { edges, found_in: file.provenance["model"].as_str().map(str::to_owned) })
    }
}

/// The values that edges outside the circuit carry.
pub(super) struct RestOfCircuit<'a> {
    /// The other prompt.
    pub(super) from_prompt: Option<&'a [u32]>,
    /// The texts whose mean they carry.
    pub(super) mean_of: Option<&'a [Vec<u32>]>,
    /// The interventions beside the circuit.
    pub(super) others: &'a Interventions,
}

impl CircuitChoice {
    /// An intervention that runs only the edges of the circuit. All other edges carry the values of a run over the other prompt, or
    /// else the means over texts, or else zeros.
    pub(super) fn intervention(
        &self,
        opened: &Opened,
        rest: &RestOfCircuit,
        observer: &dyn Observer,
    ) -> anyhow::Result<Intervention> {
        let option = opened.spelling.option("circuit");
        let from_prompt = opened.spelling.option("from-prompt");
        let mean_of = opened.spelling.option("mean-of");
        let graph = Graph::of(opened.model.config()).with_context(|| option.clone())?;
        let (edges, place) = match self {
            CircuitChoice::File(path) => {
                let LoadedCircuit { edges, found_in } = LoadedCircuit::read(path, graph, observer)?;
                if let Some(other) = found_in.filter(|other| without_folders(other) != opened.title()) {
                    observer.note(&format!(
                        "{option}: {} was found in {other}, and this is {}",
                        path.display(),
                        opened.name
                    ));
                }
                (edges, format!(" in {}", path.display()))
            }
            CircuitChoice::Edges(edges) => {
                (EdgeSet::of(graph, edges.iter().copied()).with_context(|| option.clone())?, String::new())
            }
        };
        let (texts, said) = match (rest.from_prompt, rest.mean_of) {
            (Some(_), Some(_)) => bail!("{option}: takes {from_prompt} or {mean_of}, not both"),
            (Some(ids), None) => (vec![opened.input_ids(ids)?], "a prompt".to_owned()),
            (None, Some(texts)) => {
                let ids = texts.iter().map(|ids| opened.input_ids(ids)).collect::<anyhow::Result<_>>()?;
                (ids, format!("the mean over {}", count(texts.len(), "text")))
            }
            (None, None) => {
                observer.note(&format!(
                    "{option}: edges outside the circuit carry zeros; for other values, give {from_prompt} or {mean_of}"
                ));
                (vec![], "nothing".to_owned())
            }
        };
        let carried = match (&texts[..], rest.from_prompt) {
            ([], _) => Rest::Zero,
            ([ids], Some(_)) => Rest::Text(ids),
            (texts, _) => Rest::MeanOf(texts),
        };
        let name = format!("circuit of {}{place}, the rest from {said}", count(edges.len(), "edge"));
        let run = CircuitRun::new(&opened.model, &edges, carried, Some(rest.others));
        let hooks = Arc::new(run.with_context(|| option.clone())?);
        Ok(Intervention::Custom(CustomHooks { name, hooks }))
    }
}
