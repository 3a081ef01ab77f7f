//! The passes of a generation over several rows: over prompts, and over the last token of each row. Between them rows leave and join.

use super::captured_step::CapturedStep;
use super::outcome::Outcome;
use super::sampling::{Sampler, Sampling};
use crate::config::Config;
use crate::gpt2::args_and_outputs::ForwardArgs;
use crate::gpt2::attention::cache::KvCache;
use crate::gpt2::attention::mask::{left_padding, position_ids};
use crate::gpt2::lm_head_model::Gpt2LMHeadModel;
use crate::hooks::Hooks;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::{Implementation, TokenSearch};

/// The tokens of padding that cost about as much as one more pass over prompts.
const PADDING: usize = 32;

/// A generation between two steps, without its model and its hooks: see [`Generation::pause`](super::generation::Generation::pause).
#[derive(Debug)]
pub struct Paused {
    pub(super) texts: Vec<Vec<u32>>,
    /// The length at which each text ends.
    pub(super) limits: Vec<usize>,
    pub(super) ended: Vec<bool>,
    pub(super) sampling: Sampling,
    pub(super) samplers: Vec<Sampler>,
    /// The texts that no pass has read, in the order of their prompts.
    pub(super) waiting: Vec<usize>,
    /// The rows of `cache`.
    pub(super) rows: Vec<Row>,
    pub(super) cache: KvCache,
    /// Whether steps are CUDA graphs, and that of the rows in the cache once there is one.
    pub(super) with_graph: bool,
    pub(super) captured: Option<CapturedStep>,
    pub(super) failed: bool,
}

/// A row of the cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// The index of its text; `None` if that has ended and its place was given away.
    pub text: Option<usize>,
    /// The column where the text begins, after padding.
    pub start: usize,
}

/// The model that a generation runs, and the hooks of its passes.
#[derive(Debug, Clone, Copy)]
pub(super) struct HookedModel<'a> {
    pub model: &'a Gpt2LMHeadModel,
    pub hooks: Option<&'a dyn Hooks>,
}

/// Prompts to read, and the columns that all rows need to the end of the longest text.
struct Joining {
    texts: Vec<usize>,
    columns: usize,
}

impl Paused {
    /// One token for each text that has a row, and the first after each prompt that is read.
    pub(super) fn step(&mut self, by: HookedModel) -> Result<Vec<Option<u32>>> {
        if self.with_graph {
            by.check_cuda_graph(&self.cache)?; // hooks may have come since
        }
        let mut chosen = vec![None; self.texts.len()];
        let joining = self.joining(by.model.config());
        let staying = self.staying();
        let left = self.rows.len() - staying.len();
        // The rows that stay are copied, so it must be worth it. With hooks, which see every row, all stay.
        if joining.texts.is_empty() && left > 0 && 4 * left >= self.rows.len() && by.hooks.is_none() {
            self.arrange(&staying, vec![], self.cache.capacity())?;
        }
        if !staying.is_empty() {
            self.continue_rows(by, &mut chosen)?;
        }
        if !joining.texts.is_empty() {
            self.read_prompts(by, &joining, &mut chosen)?;
        }
        Ok(chosen)
    }

    /// The rows whose texts go on.
    fn staying(&self) -> Vec<u32> {
        let goes_on = |row: &Row| row.text.is_some_and(|text| !self.ended[text]);
        (0..).zip(&self.rows).filter(|(_, row)| goes_on(row)).map(|(i, _)| i).collect()
    }

    /// The prompts to read in this step: those that have room, once they are a quarter of the rows or nothing else goes on.
    fn joining(&self, config: &Config) -> Joining {
        let mut joining = Joining { texts: vec![], columns: 0 };
        let staying = self.staying();
        if 4 * self.waiting.len() < self.rows.len() && !staying.is_empty() {
            return joining;
        }
        let (mut longest, mut most_new) = (0, 0);
        let mut columns_with = |text: usize| {
            let length = self.texts[text].len();
            longest = longest.max(length);
            most_new = most_new.max(self.limits[text] - length);
            longest + most_new - 1 // the last new token is not fed back
        };
        for text in staying.iter().filter_map(|&row| self.rows[row as usize].text) {
            joining.columns = columns_with(text);
        }
        for &text in &self.waiting {
            let columns = columns_with(text);
            if columns > config.n_positions {
                break;
            }
            joining.columns = columns;
            joining.texts.push(text);
        }
        joining
    }

    /// A pass over the last token of each row.
    fn continue_rows(&mut self, by: HookedModel, chosen: &mut [Option<u32>]) -> Result<()> {
        let last = |row: &Row| row.text.and_then(|text| self.texts[text].last().copied()).unwrap_or(0);
        let input: Vec<u32> = self.rows.iter().map(last).collect();
        let rows = self.rows.clone();
        let outcome = if self.with_graph {
            self.outcome_by_graph(by, &input)?
        } else {
            let logits = by.logits_after(input, &rows, &mut self.cache)?;
            self.outcome(by, &rows, logits)?
        };
        self.choose(by.model.config(), &rows, outcome, chosen)
    }

    /// The outcome of a step after one token of each row, by its graph: that of another cache or of other padding is replaced.
    fn outcome_by_graph(&mut self, by: HookedModel, ids: &[u32]) -> Result<Outcome> {
        let padding: Vec<usize> = self.rows.iter().map(|row| row.start).collect();
        let search = by.search(&self.sampling)?;
        let words = |search| self.words_for(search, by.model.config(), &self.rows);
        let words = search.as_ref().map_or_else(|| Ok(vec![]), words)?;
        let mut captured = match self.captured.take().filter(|step| step.is_of(&self.cache, &padding)) {
            Some(captured) => captured,
            None => CapturedStep::new(by.model, &self.cache, padding, search)?,
        };
        let outcome = captured.outcome_after(&mut self.cache, ids, &words);
        self.captured = Some(captured);
        outcome
    }

    /// The outcome of `logits` f32 (B, V) of these rows.
    fn outcome(&self, by: HookedModel, rows: &[Row], logits: Tensor) -> Result<Outcome> {
        match by.search(&self.sampling)? {
            None => Ok(Outcome::All(logits.to_vec2()?)),
            Some(search) => {
                let words = self.words_for(&search, by.model.config(), rows)?;
                Outcome::found(&search, logits, &words)
            }
        }
    }

    /// The words that a search reads of these rows beside their logits.
    fn words_for(&self, search: &TokenSearch, config: &Config, rows: &[Row]) -> Result<Vec<u32>> {
        let mut words = vec![];
        for row in rows {
            let text = row.text.map_or(&[][..], |text| &self.texts[text]);
            let place = row.text.map_or(0, |index| self.samplers[index].place(text));
            words.extend(search.row(config.vocab_size, place, text)?);
        }
        Ok(words)
    }

    /// Passes over prompts, those of like length together. Their rows come after those that stay.
    fn read_prompts(&mut self, by: HookedModel, joining: &Joining, chosen: &mut [Option<u32>]) -> Result<()> {
        self.waiting.drain(..joining.texts.len());
        let staying = self.staying();
        // Hooks see all prompts in one pass.
        let groups = match by.hooks {
            Some(_) => vec![joining.texts.clone()],
            None => self.of_like_length(&joining.texts),
        };
        if let ([group], true) = (&groups[..], staying.is_empty()) {
            let cache = &mut self.cache;
            if cache.batch() != group.len() || cache.capacity() < joining.columns {
                cache.renew(group.len(), joining.columns)?;
            } else {
                cache.clear();
            }
            let (input, rows) = self.padded(group);
            let logits = by.logits_after(input, &rows, &mut self.cache)?;
            let outcome = self.outcome(by, &rows, logits)?;
            self.rows.clone_from(&rows);
            return self.choose(by.model.config(), &rows, outcome, chosen);
        }
        let mut parts = vec![];
        for group in &groups {
            let (input, rows) = self.padded(group);
            let mut cache = self.cache.like(group.len(), input.len() / group.len())?;
            let logits = by.logits_after(input, &rows, &mut cache)?;
            let outcome = self.outcome(by, &rows, logits)?;
            self.choose(by.model.config(), &rows, outcome, chosen)?;
            parts.push((cache, rows));
        }
        self.arrange(&staying, parts, joining.columns)
    }

    /// The texts of each pass, the longest first, so that no pass has much padding.
    fn of_like_length(&self, texts: &[usize]) -> Vec<Vec<usize>> {
        let length = |text: usize| self.texts[text].len();
        let mut sorted = texts.to_vec();
        sorted.sort_by_key(|&text| std::cmp::Reverse(length(text)));
        let mut groups: Vec<Vec<usize>> = vec![];
        let mut padding = 0;
        for text in sorted {
            match groups.last_mut() {
                Some(group) if padding + length(group[0]) - length(text) <= PADDING => {
                    padding += length(group[0]) - length(text);
                    group.push(text);
                }
                _ => {
                    padding = 0;
                    groups.push(vec![text]);
                }
            }
        }
        groups
    }

    /// Texts with padding before the shorter ones, one after another, and their rows.
    fn padded(&self, texts: &[usize]) -> (Vec<u32>, Vec<Row>) {
        let width = texts.iter().map(|&text| self.texts[text].len()).max().unwrap_or(0);
        let mut input = Vec::with_capacity(texts.len() * width);
        let mut rows = vec![];
        for &text in texts {
            let ids = &self.texts[text];
            let start = width - ids.len();
            input.extend(std::iter::repeat_n(0, start));
            input.extend(ids);
            rows.push(Row { text: Some(text), start });
        }
        (input, rows)
    }

    /// Puts the rows that stay and those of `parts` into one cache, with as little padding as the longest leaves.
    fn arrange(&mut self, staying: &[u32], parts: Vec<(KvCache, Vec<Row>)>, capacity: usize) -> Result<()> {
        let of_staying = staying.iter().map(|&row| (self.cache.len(), self.rows[row as usize]));
        let of_parts = parts.iter().flat_map(|(cache, rows)| rows.iter().map(|row| (cache.len(), *row)));
        let mut rows: Vec<(usize, Row)> = of_staying.chain(of_parts).collect(); // with the length of its cache
        let width = rows.iter().map(|(len, row)| len - row.start).max().unwrap_or(0);
        for (len, row) in &mut rows {
            row.start = width - (*len - row.start);
        }
        let caches = parts.into_iter().map(|(cache, _)| cache).collect();
        self.cache.join(staying, caches, width, capacity)?;
        self.rows = rows.into_iter().map(|(_, row)| row).collect();
        Ok(())
    }

    pub(super) fn push(&mut self, config: &Config, text: usize, token: u32) {
        self.texts[text].push(token);
        self.ended[text] = self.texts[text].len() >= self.limits[text] || config.is_eos(token);
    }

    /// Chooses the next token of each text that goes on.
    fn choose(
        &mut self,
        config: &Config,
        rows: &[Row],
        mut outcome: Outcome,
        chosen: &mut [Option<u32>],
    ) -> Result<()> {
        for (i, row) in rows.iter().enumerate() {
            let Some(text) = row.text.filter(|&text| !self.ended[text]) else { continue };
            let token = outcome.choose(i, &self.samplers[text], &self.texts[text])?;
            self.push(config, text, token);
            chosen[text] = Some(token);
        }
        Ok(())
    }
}

impl HookedModel<'_> {
    /// Fails if a step over this cache cannot be a CUDA graph.
    pub(super) fn check_cuda_graph(self, cache: &KvCache) -> Result<()> {
        let device = self.model.device();
        let of_model = self.model.dtype();
        let cause = if !device.is_cuda() {
            "only CUDA has graphs; use a device of CUDA, or leave the graph out"
        } else if self.model.config().attn_implementation.on(device) != Implementation::Fused {
            "eager attention cannot be recorded; use fused attention"
        } else if of_model == DType::F64 {
            "there is no kernel for f64; use f32, f16 or bf16"
        } else if cache.dtype().is_some_and(|dtype| dtype != of_model.into()) {
            "a cache in another dtype than the model's cannot be appended to; leave its dtype out"
        } else if self.hooks.is_some() {
            "hooks read and change values in each step; leave hooks and interventions out"
        } else {
            return Ok(());
        };
        candle_core::bail!("no step can be a CUDA graph here: {cause}")
    }

    /// The search of the GPU through the logits of a pass, which replaces a copy of them all; `None` if it has no kernel, with eager
    /// attention or hooks, or if the choice of a token takes all logits.
    fn search(self, sampling: &Sampling) -> Result<Option<TokenSearch>> {
        let device = self.model.device();
        let is_fused = self.model.config().attn_implementation.on(device) == Implementation::Fused;
        if !is_fused || self.hooks.is_some() || !TokenSearch::runs_on(device)? {
            return Ok(None);
        }
        Ok(sampling.search())
    }

    /// The logits f32 (B, V) after the last of T tokens of each row, which follow those in the cache: `input` (B·T)
    fn logits_after(self, input: Vec<u32>, rows: &[Row], cache: &mut KvCache) -> Result<Tensor> {
        let t = input.len() / rows.len();
        let s = cache.len() + t;
        let input = Tensor::from_vec(input, (rows.len(), t), &Device::Cpu)?; // where ids are checked
        let padded = rows.iter().any(|row| row.start > 0);
        let lengths: Vec<usize> = rows.iter().map(|row| s - row.start).collect();
        let mask = if padded { Some(left_padding(&lengths, s, &Device::Cpu)?) } else { None };
        let positions =
            mask.as_ref().map(|m| position_ids(m)?.narrow(1, s - t, t)?.contiguous()).transpose()?;
        let args = ForwardArgs {
            position_ids: positions.as_ref(),
            attention_mask: mask.as_ref(),
            cache: Some(cache),
            last_logits_only: true,
            hooks: self.hooks,
            ..ForwardArgs::default()
        };
        let logits = self.model.forward(&input, args)?.logits; // (B, 1, V)
        logits.squeeze(1)?.to_dtype(DType::F32)
    }
}
