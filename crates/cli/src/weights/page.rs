//! A page for a browser, built one layer at a time.

use super::extras::{LayerValues, value_norms, vectors};
use super::subject::Subject;
use candle_core::Tensor;
use gpt2_view::{HeadNumbers, NextToken, PageHeader, PageWriter, keep_largest, summarize};

/// The most numbers in the queries and keys of all heads together: 16 bits each, in base64.
const VECTORS: usize = 3_000_000;

/// How a page shows its subject.
#[derive(Debug, Clone, Default)]
pub(crate) struct PageOptions {
    /// Keep only the largest weights of each row.
    pub(crate) top: Option<usize>,
    /// The names of two runs to compare.
    pub(crate) runs: Vec<String>,
    /// How many of the tokens are the prompt of a generated text.
    pub(crate) prompt: Option<usize>,
    /// Whether to show the products of queries and keys.
    pub(crate) neurons: bool,
}

/// A page that is not finished.
pub(crate) struct Page {
    writer: PageWriter<Vec<u8>>,
    options: PageOptions,
}

impl Page {
    pub(crate) fn new(subject: &Subject, options: PageOptions) -> anyhow::Result<Self> {
        let provenance = subject.made_by.for_files()?;
        let heads = subject.layers.len() * subject.heads.len();
        let runs: Vec<&str> = options.runs.iter().map(String::as_str).collect();
        let mut header = PageHeader::new(&subject.session.name, subject.tokens, heads, &provenance);
        (header.top, header.runs, header.prompt) = (options.top, &runs, options.prompt);
        let t = subject.ids.len();
        let numbers = 2 * heads * t * subject.session.model.config().head_dim() * runs.len().max(1);
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
        let summaries = summarize(weights)?;
        let kept = self.options.top.map(|k| keep_largest(weights, k)).transpose()?;
        let weights = kept.as_ref().unwrap_or(weights);
        self.writer.layer_of_run(run, layer, subject.heads, weights, &summaries)?;
        let attn = &subject.session.model.transformer.h[layer].attn;
        if let Some(v) = &values.v {
            self.writer.value_norms(run, layer, subject.heads, &value_norms(attn, subject.heads, v)?)?;
        }
        if let (true, Some(q), Some(k)) = (self.options.neurons, &values.q, &values.k) {
            let of = |x: &Tensor| vectors(x, subject.heads, attn.n_head());
            #[allow(clippy::cast_possible_truncation)] // a picture
            let scale = attn.scale() as f32;
            self.writer.vectors(run, layer, subject.heads, &of(q)?, &of(k)?, scale)?;
        }
        Ok(())
    }

    /// A number of each chosen head, by layer, then head.
    pub(crate) fn numbers(&mut self, numbers: &HeadNumbers) -> anyhow::Result<()> {
        Ok(self.writer.head_numbers(numbers)?)
    }

    /// A map of a run that is no head, (T, T).
    pub(crate) fn map(&mut self, run: usize, name: &str, meaning: &str, map: &Tensor) -> anyhow::Result<()> {
        Ok(self.writer.map(run, name, meaning, map)?)
    }

    /// The most probable token after each position, as if `layer` were the last.
    pub(crate) fn lens(&mut self, run: usize, layer: usize, likely: &[(String, f32)]) -> anyhow::Result<()> {
        Ok(self.writer.lens(run, layer, likely)?)
    }

    /// The second run's predictions.
    pub(crate) fn predictions(&mut self, run: usize, predictions: &[NextToken]) -> anyhow::Result<()> {
        Ok(self.writer.predictions(run, predictions)?)
    }

    /// The whole file, with the predictions of the first run.
    pub(crate) fn finish(self, predictions: &[NextToken]) -> anyhow::Result<Vec<u8>> {
        Ok(self.writer.finish(predictions)?)
    }
}
