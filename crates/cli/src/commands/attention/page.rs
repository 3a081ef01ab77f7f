//! `gpt2 attention --html` and `--open`: every chosen head in one page, and the browser that shows it.

use super::scene::Scene;
use crate::output::note;
use crate::values::highest;
use anyhow::{Context, anyhow};
use candle_core::{DType, Device, Module, Tensor};
use gpt2_model::ModelOutput;
use gpt2_view::{NextToken, PageHeader, PageWriter, keep_largest, summarize};
use rayon::prelude::*;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// How many next tokens the page shows for each position.
const LIKELY: usize = 5;
/// How many positions' logits to hold at a time.
const CHUNK: usize = 64;
/// How long to wait for a launcher to fail. One that is still running by then is the browser's own process.
const LAUNCH: Duration = Duration::from_secs(3);

/// A page that is built one layer at a time.
pub(super) struct Page(PageWriter<Vec<u8>>);

impl Page {
    pub(super) fn new(scene: &Scene) -> anyhow::Result<Self> {
        let provenance = scene.made_by.for_files()?;
        let heads = scene.layers.len() * scene.heads.len();
        let mut header = PageHeader::new(&scene.session.name, &scene.prompt.tokens, heads, &provenance);
        header.top = scene.args.top.map(usize::from);
        Ok(Self(PageWriter::new(vec![], &header)?))
    }

    /// Adds the chosen heads' weights (heads, T, T).
    pub(super) fn layer(&mut self, scene: &Scene, layer: usize, weights: &Tensor) -> anyhow::Result<()> {
        let summaries = summarize(weights)?;
        match scene.args.top {
            Some(k) => self.0.layer(layer, &scene.heads, &keep_largest(weights, k.into())?, &summaries)?,
            None => self.0.layer(layer, &scene.heads, weights, &summaries)?,
        }
        Ok(())
    }

    /// The whole file.
    pub(super) fn finish(self, scene: &Scene, output: &ModelOutput) -> anyhow::Result<Vec<u8>> {
        Ok(self.0.finish(&predictions(scene, &output.last_hidden_state.squeeze(0)?)?)?)
    }
}

/// Opens the page in a browser: the file at `path`, or a temporary one that is kept.
pub(super) fn open(path: Option<&Path>, page: &[u8]) -> anyhow::Result<()> {
    let path = if let Some(path) = path {
        path.to_path_buf()
    } else {
        let mut file = tempfile::Builder::new().prefix("gpt2-attention-").suffix(".html").tempfile()?;
        file.write_all(page)?;
        let path = file.keep().context("cannot keep the temporary file")?.1;
        note(&format!("wrote {}", path.display()));
        path
    };
    launch(&path).with_context(|| format!("cannot open a browser; open this file in one: {}", path.display()))
}

/// The model's predictions after the last positions, from their inputs of the output projection, (rows, C).
pub(super) fn predictions(scene: &Scene, hidden: &Tensor) -> anyhow::Result<Vec<NextToken>> {
    let Scene { session, prompt, .. } = scene;
    let (t, first) = (hidden.dim(0)?, prompt.ids.len() - hidden.dim(0)?);
    let mut all = Vec::with_capacity(t);
    for from in (0..t).step_by(CHUNK) {
        let rows = hidden.narrow(0, from, CHUNK.min(t - from))?; // (rows, C)
        let logits = session.model.lm_head.forward(&rows)?; // (rows, V)
        let logits = logits.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
        scene.check_finite([&logits])?;
        let logits = logits.to_vec2::<f32>()?;
        let likely: Vec<_> = logits
            .par_iter()
            .enumerate()
            .map(|(i, row)| most_likely(row, prompt.ids.get(first + from + i + 1).copied()))
            .collect();
        all.extend(likely.into_iter().map(|(likely, actual)| {
            let (ids, probabilities): (Vec<u32>, Vec<f32>) = likely.into_iter().unzip();
            NextToken { likely: session.labels(&ids).into_iter().zip(probabilities).collect(), actual }
        }));
    }
    Ok(all)
}

/// The most probable ids, and the probability of the token that really follows; empty if the logits are not finite.
#[allow(clippy::cast_possible_truncation)] // f32 is what is shown
fn most_likely(logits: &[f32], actual: Option<u32>) -> (Vec<(u32, f32)>, Option<f32>) {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let total: f64 = logits.iter().map(|&l| (f64::from(l) - largest).exp()).sum();
    if !total.is_finite() {
        return (vec![], None);
    }
    let probability = |id: u32| ((f64::from(logits[id as usize]) - largest).exp() / total) as f32;
    (highest(logits, LIKELY).into_iter().map(|id| (id, probability(id))).collect(), actual.map(probability))
}

/// Opens `path` with the system's program for opening pages.
fn launch(path: &Path) -> anyhow::Result<()> {
    let path = std::path::absolute(path)?;
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        // Once the time is up, nobody receives this.
        let _ = send.send(open::that(path));
    });
    match receive.recv_timeout(LAUNCH) {
        Ok(result) => result.map_err(|e| anyhow!(e)),
        Err(mpsc::RecvTimeoutError::Timeout) => Ok(()),
        Err(e @ mpsc::RecvTimeoutError::Disconnected) => Err(anyhow!(e)),
    }
}
