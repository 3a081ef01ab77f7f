//! A page for a browser, built one layer at a time.

use super::subject::Subject;
use crate::output::note;
use anyhow::{Context, anyhow};
use candle_core::Tensor;
use gpt2_model::analysis::{head_vectors, value_norms};
use gpt2_view::{PageHeader, PageWriter};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// The most numbers in the queries and keys of all heads together: 16 bits each, in base64.
const VECTORS: usize = 3_000_000;

/// The options of a page.
#[derive(Debug, Clone, Default)]
pub(crate) struct PageOptions {
    /// Keep only the largest weights of each row.
    pub(crate) top: Option<usize>,
    /// The names of two runs to compare.
    pub(crate) runs: Vec<String>,
    /// The number of tokens of a generated text that are its prompt.
    pub(crate) prompt: Option<usize>,
    /// The label of the last token of a generated text, which the model never read.
    pub(crate) next: Option<String>,
    /// Whether to show the products of queries and keys.
    pub(crate) neurons: bool,
}

/// A page that is not finished.
pub(crate) struct Page {
    pub(crate) writer: PageWriter<Vec<u8>>,
    options: PageOptions,
}

impl Page {
    pub(crate) fn new(subject: &Subject, options: PageOptions) -> anyhow::Result<Self> {
        let provenance = subject.made_by.for_files()?;
        let heads = subject.layers.len() * subject.heads.len();
        let runs: Vec<&str> = options.runs.iter().map(String::as_str).collect();
        let title = subject.opened.title();
        let mut header = PageHeader::new(&title, subject.shown, heads, &provenance);
        (header.top, header.runs, header.prompt) = (options.top, &runs, options.prompt);
        (header.ids, header.next) = (subject.ids, options.next.as_deref());
        header.silenced = subject.silenced();
        let t = subject.ids.len();
        let numbers = 2 * heads * t * subject.opened.model.config().head_dim() * runs.len().max(1);
        if options.neurons && numbers > VECTORS {
            anyhow::bail!(
                "the queries and keys of {heads} heads over {t} tokens are too many for a page: choose heads with --layer and \
                 --head"
            );
        }
        Ok(Self { writer: PageWriter::new(vec![], &header)?, options })
    }

    /// Adds the chosen heads' weights (heads, T, T) of a run, and what they were computed from.
    pub(crate) fn layer(
        &mut self,
        subject: &Subject,
        run: usize,
        layer: usize,
        weights: &Tensor,
        values: &LayerValues,
    ) -> anyhow::Result<()> {
        self.writer.layer_of_run(run, layer, subject.heads, weights)?;
        let attn = &subject.opened.model.transformer.h[layer].attn;
        if let Some(v) = &values.v {
            self.writer.value_norms(run, layer, subject.heads, &value_norms(attn, subject.heads, v)?)?;
        }
        if let (true, Some(q), Some(k)) = (self.options.neurons, &values.q, &values.k) {
            let of = |x: &Tensor| head_vectors(x, subject.heads, attn.n_head());
            #[allow(clippy::cast_possible_truncation)] // a picture
            let scale = attn.scale() as f32;
            self.writer.vectors(run, layer, subject.heads, &of(q)?, &of(k)?, scale)?;
        }
        Ok(())
    }
}

/// The queries, keys and values of a layer's attention at its hook points, (1, T, heads, D) each.
#[derive(Debug, Default)]
pub(crate) struct LayerValues {
    pub(crate) q: Option<Tensor>,
    pub(crate) k: Option<Tensor>,
    pub(crate) v: Option<Tensor>,
}

/// The time to wait for a launcher to fail. One that is still running by then is the browser's own process.
const LAUNCH: Duration = Duration::from_secs(3);

/// Opens the page in a browser: the file at `path`, or a temporary one that is kept.
pub(crate) fn open(path: Option<&Path>, page: &[u8]) -> anyhow::Result<()> {
    let path = if let Some(path) = path {
        path.to_path_buf()
    } else {
        let mut file = tempfile::Builder::new().prefix("gpt2-attention-").suffix(".html").tempfile()?;
        file.write_all(page)?;
        let path = file.keep().context("cannot keep the temporary file")?.1;
        note(&format!("wrote {}", path.display()));
        path
    };
    launch(&path).map_err(|_| NoBrowser(path).into())
}

/// The system has no program that opens pages, or that failed.
#[derive(Debug)]
pub(crate) struct NoBrowser(PathBuf);

impl std::fmt::Display for NoBrowser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot open a browser here; open this file in one yourself: {}", self.0.display())
    }
}

impl std::error::Error for NoBrowser {}

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
