//! `--circuit`: the edges that `gpt2 discover` wrote, as an intervention.

use crate::input::prompt::{read_file, refuse_device};
use crate::model::session::Session;
use crate::output::note;
use crate::values::{count, without_folders};
use anyhow::{Context, bail};
use gpt2_circuits::discovery::{CircuitRun, Edge, EdgeSet, Graph, Rest};
use gpt2_loader::FileKind;
use gpt2_model::hooks::{CustomHooks, Intervention, Interventions};
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;

/// The fields of a circuit file that are read.
#[derive(Deserialize)]
struct CircuitFile {
    edges: Vec<Ends>,
    /// The provenance that `gpt2 discover` writes; null in a file written by hand.
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
pub(crate) struct LoadedCircuit {
    pub(crate) edges: EdgeSet,
    /// The model that it was found in, if the file says so.
    found_in: Option<String>,
}

/// Reads a circuit file for a model with this graph.
pub(crate) fn read(path: &Path, graph: Graph) -> anyhow::Result<LoadedCircuit> {
    let name = || path.display().to_string();
    refuse_device(path).with_context(name)?;
    let text = read_file("the circuit", path, LONGEST)?;
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
    Ok(LoadedCircuit { edges, found_in: file.provenance["model"].as_str().map(str::to_owned) })
}

/// An intervention that runs only the edges of the circuit file at `path`. All other edges carry the values of a run
/// over `other`, or else the means over the texts `means`, or else zeros. `others` are the interventions beside it.
pub(crate) fn intervention(
    session: &Session,
    path: &Path,
    other: Option<&[u32]>,
    means: Option<&[Vec<u32>]>,
    others: &Interventions,
) -> anyhow::Result<Intervention> {
    let model = &session.model;
    let graph = Graph::of(model.config()).context("--circuit")?;
    let LoadedCircuit { edges, found_in } = read(path, graph)?;
    if let Some(other) = found_in.filter(|other| without_folders(other) != session.title()) {
        note(&format!("--circuit: {} was found in {other}, and this is {}", path.display(), session.name));
    }
    let (rest, said) = match (other, means) {
        (Some(_), Some(_)) => bail!("--circuit: takes --from-prompt or --mean-of, not both"),
        (Some(ids), None) => (vec![session.input_ids(ids)?], "a prompt".to_owned()),
        (None, Some(texts)) => {
            let ids = texts.iter().map(|ids| session.input_ids(ids)).collect::<anyhow::Result<_>>()?;
            (ids, format!("the mean over {}", count(texts.len(), "text")))
        }
        (None, None) => {
            note(
                "--circuit: edges outside the circuit carry zeros; for other values, give --from-prompt or --mean-of",
            );
            (vec![], "nothing".to_owned())
        }
    };
    let rest = match (&rest[..], other) {
        ([], _) => Rest::Zero,
        ([ids], Some(_)) => Rest::Text(ids),
        (texts, _) => Rest::MeanOf(texts),
    };
    let name =
        format!("circuit of {} in {}, the rest from {said}", count(edges.len(), "edge"), path.display());
    let hooks = Arc::new(CircuitRun::new(model, &edges, rest, Some(others)).context("--circuit")?);
    Ok(Intervention::Custom(CustomHooks { name, hooks }))
}
