//! `gpt2 attention --html` and `--open`: every chosen head in one page, and the browser that shows it.

use crate::output::{is_quiet, note};
use crate::prompt::Prompt;
use crate::session::Session;
use anyhow::{Context, anyhow};
use candle_core::{DType, Device, Tensor};
use gpt2_view::{NextToken, PageHeader, PageWriter, summarize};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use rayon::prelude::*;
use std::cmp::Ordering;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// How many next tokens the page shows for each position.
const LIKELY: usize = 5;
/// Positions whose logits are there at the same time.
const CHUNK: usize = 64;
/// A launcher that has not failed by now runs the browser itself, and ends with it.
const LAUNCH: Duration = Duration::from_secs(3);

/// What the page is about.
pub(crate) struct Contents<'a> {
    pub(crate) session: &'a Session,
    pub(crate) prompt: &'a Prompt,
    pub(crate) layers: &'a [usize],
    pub(crate) heads: &'a [usize],
    /// What the output projection reads, (T, C).
    pub(crate) hidden: &'a Tensor,
}

/// Writes the page to `path`, or to a temporary file that stays, and opens it where `open` says so.
/// `weights` gives those of the i-th of the chosen layers, (heads, T, T): one layer at a time.
pub(crate) fn show(
    path: Option<&Path>,
    open: bool,
    contents: &Contents,
    weights: impl Fn(usize) -> anyhow::Result<Tensor>,
) -> anyhow::Result<()> {
    let path = if let Some(path) = path {
        gpt2_loader::atomic::write(path, |temporary| write(&File::create(temporary)?, contents, &weights))?;
        path.to_path_buf()
    } else {
        let file = tempfile::Builder::new().prefix("gpt2-attention-").suffix(".html").tempfile()?;
        write(file.as_file(), contents, &weights)?;
        file.keep().context("cannot keep the temporary file")?.1
    };
    note(&format!("wrote {}, {}", path.display(), HumanBytes(std::fs::metadata(&path)?.len())));
    if open {
        let said = || format!("cannot open a browser; open this file in one: {}", path.display());
        launch(&path).with_context(said)?;
    }
    Ok(())
}

fn write(
    file: &File,
    contents: &Contents,
    weights: impl Fn(usize) -> anyhow::Result<Tensor>,
) -> anyhow::Result<()> {
    let Contents { session, prompt, layers, heads, .. } = contents;
    let header = PageHeader {
        title: &session.name,
        tokens: &prompt.tokens,
        queries: prompt.tokens.len(),
        heads: layers.len() * heads.len(),
    };
    let mut page = PageWriter::new(BufWriter::new(file), &header)?;
    let bar = if is_quiet() { ProgressBar::hidden() } else { ProgressBar::new(layers.len() as u64) };
    let bar = bar.with_style(ProgressStyle::with_template("{bar:30} {pos}/{len} layers, {eta} left")?);
    for (i, &layer) in layers.iter().enumerate() {
        let weights = weights(i)?;
        page.layer(layer, heads, &weights, &summarize(&weights)?)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    page.finish(&predictions(contents)?)?;
    Ok(())
}

/// What the model expects after each position.
fn predictions(contents: &Contents) -> anyhow::Result<Vec<NextToken>> {
    let Contents { session, prompt, hidden, .. } = contents;
    let t = prompt.ids.len();
    let mut all = Vec::with_capacity(t);
    for from in (0..t).step_by(CHUNK) {
        let rows = hidden.narrow(0, from, CHUNK.min(t - from))?; // (rows, C)
        let logits = gpt2_kernels::linear_transposed(&rows, &session.model.lm_head)?; // (rows, V)
        let logits = logits.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.to_vec2::<f32>()?;
        let likely: Vec<_> = logits
            .par_iter()
            .enumerate()
            .map(|(i, row)| most_likely(row, prompt.ids.get(from + i + 1).copied()))
            .collect();
        all.extend(likely.into_iter().map(|(likely, actual)| {
            let (ids, probabilities): (Vec<u32>, Vec<f32>) = likely.into_iter().unzip();
            NextToken { likely: session.labels(&ids).into_iter().zip(probabilities).collect(), actual }
        }));
    }
    Ok(all)
}

/// The most probable ids, and the probability of the one that follows; nothing where logits are not finite.
#[allow(clippy::cast_possible_truncation)] // f32 is what is shown, and ids are u32
fn most_likely(logits: &[f32], actual: Option<u32>) -> (Vec<(u32, f32)>, Option<f32>) {
    let highest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let total: f64 = logits.iter().map(|&l| (f64::from(l) - highest).exp()).sum();
    if !total.is_finite() {
        return (vec![], None);
    }
    let probability = |id: u32| ((f64::from(logits[id as usize]) - highest).exp() / total) as f32;
    // Equal ones in the order of their ids.
    let higher = |a: &u32, b: &u32| -> Ordering {
        logits[*b as usize].total_cmp(&logits[*a as usize]).then_with(|| a.cmp(b))
    };
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    if ids.len() > LIKELY {
        ids.select_nth_unstable_by(LIKELY, higher);
        ids.truncate(LIKELY);
    }
    ids.sort_unstable_by(higher);
    (ids.into_iter().map(|id| (id, probability(id))).collect(), actual.map(probability))
}

/// Opens `path` with what the system opens pages with.
fn launch(path: &Path) -> anyhow::Result<()> {
    let path = std::path::absolute(path)?;
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        // Nobody listens once the time is over.
        let _ = send.send(open::that(path));
    });
    match receive.recv_timeout(LAUNCH) {
        Ok(result) => result.map_err(|e| anyhow!(e)),
        Err(mpsc::RecvTimeoutError::Timeout) => Ok(()),
        Err(e @ mpsc::RecvTimeoutError::Disconnected) => Err(anyhow!(e)),
    }
}
