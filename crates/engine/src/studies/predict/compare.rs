//! The distance between the predictions of two models on a text. It takes two models, so it is a function of its own instead of a
//! [`Study`](crate::studies::study::Study).

use super::generate::cache_dtype;
use crate::observer::Observer;
use crate::open::{Opened, UsedAdapter, explain_not_finite};
use crate::spelling::Spelling;
use crate::texts::{Content, encode, noted};
use anyhow::bail;
use candle_core::{Device, Tensor};
use candle_fused::BlockFormat;
use gpt2_model::analysis::Comparison;
use gpt2_model::finite::all_finite;
use gpt2_model::{CacheDType, ForwardArgs, KvCache};
use serde::{Deserialize, Serialize};

/// The options of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The number of tokens of the text to compare; by default all.
    pub tokens: Option<usize>,
    /// The tokens of a window; by default the shorter context of the two models.
    pub window: Option<usize>,
    /// The precision of a cache from which the other model reads keys and values; by default it has none.
    #[serde(with = "cache_dtype")]
    pub kv_other: Option<CacheDType>,
}

/// The differences between two models' predictions.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The model that counts as right.
    pub model: ComparedModel,
    /// The model that is compared with it.
    pub other: ComparedModel,
    /// The number of tokens predicted.
    pub tokens: usize,
    /// The most tokens of a window.
    pub window: usize,
    /// The tokens by which a window moves on: `window`, since windows do not overlap.
    pub stride: usize,
    /// The mean divergence of the other model's distributions from the first one's, in nats.
    pub mean_kl_divergence: f64,
    /// The share of tokens for which both rank the same one first.
    pub top_1_agreement: f64,
    /// The largest difference between two logits.
    pub largest_logit_difference: f64,
}

/// One of the two models.
#[derive(Debug, Serialize)]
pub struct ComparedModel {
    /// Its name.
    pub name: String,
    /// The formats of its quantized weights.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub formats: Vec<&'static str>,
    /// The adapters on it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<UsedAdapter>,
    /// The dtype of its cached keys and values; `None` without a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv: Option<&'static str>,
    /// Its perplexity on the text.
    pub perplexity: f64,
}

/// The names of the two models in errors.
fn roles(spelling: Spelling) -> [&'static str; 2] {
    match spelling {
        Spelling::Flags => ["MODEL", "OTHER"],
        Spelling::Keywords => ["the model", "other"],
    }
}

impl Options {
    /// Compares the predictions of two models on a text, which may be longer than their contexts; errors call it `place`.
    ///
    /// # Errors
    /// When the models differ in vocabulary, the text has less than two tokens, or a number is not finite.
    pub fn compare(
        &self,
        models: [&Opened; 2],
        text: &Content,
        place: &str,
        observer: &dyn Observer,
    ) -> anyhow::Result<Report> {
        let [a, b] = models;
        let [config, other] = models.map(|one| one.model.config());
        let spelling = a.spelling;
        if config.vocab_size != other.vocab_size {
            bail!(
                "the models have vocabularies of {} and {} tokens; compare two models with one vocabulary",
                config.vocab_size,
                other.vocab_size
            );
        }
        let mut ids = ids_of(models, text, observer)?;
        let has = ids.len();
        ids.truncate(self.tokens.unwrap_or(has));
        if ids.len() < 2 {
            bail!("{place}: has {has} tokens; expected at least 2");
        }
        let context = config.n_positions.min(other.n_positions);
        let window = self.window.unwrap_or(context);
        if !(2..=context).contains(&window) {
            bail!(
                "{}: the models have contexts of {} and {} tokens",
                spelling.given("window", window),
                config.n_positions,
                other.n_positions
            );
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= config.vocab_size) {
            bail!("the tokenizer gives id {id}, the models have {} tokens", config.vocab_size);
        }
        let comparison = self.compared(models, &ids, window, observer)?;
        let perplexity = comparison.perplexity();
        for ((role, of), perplexity) in roles(spelling).into_iter().zip(models).zip(perplexity) {
            if !perplexity.is_finite() {
                bail!(
                    "{role}, {}: its perplexity exceeds the range of f64: the text is too improbable for it",
                    of.name
                );
            }
        }
        let kv = self.kv_other.map(CacheDType::as_str);
        Ok(Report {
            model: ComparedModel::new(a, None, perplexity[0]),
            other: ComparedModel::new(b, kv, perplexity[1]),
            tokens: comparison.tokens,
            window,
            stride: window,
            mean_kl_divergence: comparison.mean_divergence(),
            top_1_agreement: comparison.agreement(),
            largest_logit_difference: comparison.largest_difference,
        })
    }

    /// Compares the predictions window by window.
    fn compared(
        &self,
        models: [&Opened; 2],
        ids: &[u32],
        window: usize,
        observer: &dyn Observer,
    ) -> anyhow::Result<Comparison> {
        let [a, b] = models;
        let [first, second] = roles(a.spelling);
        // Attention reads all keys and values of a window from the cache, those of the newest token as well.
        let cache = |kv| KvCache::new(b.model.config(), 1, window.min(ids.len()), kv, &b.device);
        let mut cache = self.kv_other.map(cache).transpose()?;
        let mut comparison = Comparison::default();
        let all = ids.len() as u64;
        let mut done = 0;
        for part in ids.chunks(window).filter(|part| part.len() > 1) {
            let targets = Tensor::new(&part[1..], &Device::Cpu)?;
            cache.iter_mut().for_each(KvCache::clear);
            let inputs = &part[..part.len() - 1];
            let pair = [&logits(first, a, inputs, None)?, &logits(second, b, inputs, cache.as_mut())?];
            comparison.add(pair, &targets)?;
            done += part.len() as u64;
            observer.step("tokens", done, Some(all))?;
        }
        // The last token may be a window of its own, in which nothing is predicted.
        observer.step("tokens", all, Some(all))?;
        Ok(comparison)
    }
}

impl ComparedModel {
    fn new(opened: &Opened, kv: Option<&'static str>, perplexity: f64) -> Self {
        let formats = opened.formats.iter().copied().map(BlockFormat::as_str).collect();
        Self { name: opened.name.clone(), formats, adapters: opened.adapters.clone(), kv, perplexity }
    }
}

/// The tokens of the text, which both models must read alike.
fn ids_of([a, b]: [&Opened; 2], text: &Content, observer: &dyn Observer) -> anyhow::Result<Vec<u32>> {
    let text = match text {
        Content::Ids(ids) => return Ok(ids.clone()),
        Content::Text(text) => text,
    };
    let ids = noted(encode(a.tokenizer()?, text, "the text")?, observer);
    if let Ok(other) = b.tokenizer()
        && other.encode(text)? != ids
    {
        bail!(
            "the tokenizers of the two models give the text different ids; compare two models with one vocabulary"
        );
    }
    Ok(ids)
}

/// The logits (T, V) of one of the models, on the CPU.
fn logits(role: &str, of: &Opened, ids: &[u32], cache: Option<&mut KvCache>) -> anyhow::Result<Tensor> {
    let inputs = of.input_ids(ids)?; // (1, T)
    let logits = of.model.forward(&inputs, ForwardArgs { cache, ..Default::default() })?.logits;
    if !all_finite(&logits)? {
        bail!("{role}, {}: {}", of.name, explain_not_finite(&of.model, &inputs, None, of.spelling))
    }
    Ok(logits.squeeze(0)?.to_device(&Device::Cpu)?)
}
