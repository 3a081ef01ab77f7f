//! A page for a browser, built one layer at a time.

use super::subject::{LayerValues, Subject};
use anyhow::bail;
use candle_core::Tensor;
use gpt2_model::analysis::{head_vectors, value_norms};
use gpt2_view::{PageHeader, PageWriter};

/// The most numbers in the queries and keys of all heads together: 16 bits each, in base64.
const VECTORS: usize = 3_000_000;

/// The options of a page.
#[derive(Debug, Clone, Default)]
pub struct PageOptions {
    /// Keep only the largest weights of each row.
    pub top: Option<usize>,
    /// The names of two runs to compare.
    pub runs: Vec<String>,
    /// The number of tokens of a generated text that are its prompt.
    pub prompt: Option<usize>,
    /// The label of the last token of a generated text, which the model never read.
    pub next: Option<String>,
    /// Whether to show the products of queries and keys.
    pub neurons: bool,
}

/// A page that is not finished.
#[derive(Debug)]
pub struct WeightsPage {
    /// The writer of the page's parts.
    pub writer: PageWriter<Vec<u8>>,
    options: PageOptions,
}

impl WeightsPage {
    /// The page before its first layer.
    ///
    /// # Errors
    /// When the queries and keys are too many for it.
    pub fn new(subject: &Subject, options: PageOptions) -> anyhow::Result<Self> {
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
            let spelling = subject.opened.spelling;
            bail!(
                "the queries and keys of {heads} heads over {t} tokens are too many for a page: choose heads with {} and {}",
                spelling.option("layer"),
                spelling.option("head")
            );
        }
        Ok(Self { writer: PageWriter::new(vec![], &header)?, options })
    }

    /// Adds the chosen heads' weights (heads, T, T) of a run, and what they were computed from.
    ///
    /// # Errors
    /// When their shapes do not fit the page.
    pub fn layer(
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
