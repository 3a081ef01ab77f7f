//! A model and its tokenizer, and what a page shows of a text.

use crate::request::{Effect, Next, PageAnswer, PageRequest};
use crate::result_cache::{CachedRow, ResultCache, put, stale};
use crate::token_path::{FollowedToken, LikelyTokens};
use anyhow::{Context, bail};
use candle_core::{DType, Device, Module, Tensor};
use gpt2_loader::{Checkpoint, EmbeddedFiles, Files, Source, Tokenizer};
use gpt2_model::analysis::{most_likely, value_norms};
use gpt2_model::finite::all_finite;
use gpt2_model::hooks::{Chain, Hooks, Intervention, Interventions, Point, on};
use gpt2_model::linear::BlockFormat;
use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, KvCache, ModelOutput, Sampler, Sampling};
use gpt2_view::{NextToken, PageHeader, PageWriter, Provenance, visible_token};
use serde_json::json;
use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of next tokens that the page lists for each position.
const LISTED: usize = 5;
/// The most tokens to list of those that the next one is drawn from.
const NAMED: usize = 8;

/// The files of the demo model.
pub const DEMO: EmbeddedFiles = EmbeddedFiles {
    name: "tiny-shakespeare (built in)",
    config: gpt2_demo::CONFIG,
    weights: gpt2_demo::WEIGHTS,
    weights_sha256: gpt2_demo::WEIGHTS_SHA256,
    tokenizer: gpt2_demo::TOKENIZER,
};

/// A model that answers what a page asks.
#[derive(Debug)]
pub struct Live {
    name: String,
    /// The formats of quantized weights.
    formats: Vec<&'static str>,
    model: Gpt2LMHeadModel,
    tokenizer: Tokenizer,
    cache: Mutex<ResultCache>,
}

impl Live {
    /// The demo model.
    ///
    /// # Errors
    /// When it does not load.
    pub fn demo() -> anyhow::Result<Self> {
        Self::open(&Source::Embedded(DEMO).open()?)
    }

    /// A model from its files, checked as the command checks it.
    ///
    /// # Errors
    /// When a file is damaged, something is missing, the tensors do not fit the config, or there is no tokenizer.
    pub fn open(files: &Files) -> anyhow::Result<Self> {
        let checkpoint = Checkpoint::open(files)?;
        // GPT-2's own vocabulary would make the module for the browser a tenth larger.
        let tokenizer = Tokenizer::from_files(files)?.with_context(|| {
            format!("{}: no tokenizer here; add its tokenizer.json, or vocab.json and merges.txt", files.name)
        })?;
        let model = checkpoint.load_model(DType::F32, &Device::Cpu)?;
        let formats = checkpoint.formats().into_iter().map(BlockFormat::as_str).collect();
        Ok(Self { name: checkpoint.name().to_owned(), formats, model, tokenizer, cache: Mutex::default() })
    }

    /// The model's config.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.model.config()
    }

    /// Runs the model over a text.
    ///
    /// # Errors
    /// When the text is empty or longer than the model's context, an id is none of the vocabulary's, an intervention is none or
    /// does not fit the model, the values to draw by are meaningless, there is no such layer or head to follow, or a result
    /// is not finite.
    pub fn look(&self, request: &PageRequest) -> anyhow::Result<PageAnswer> {
        let sampling = request.draw.sampling()?;
        let (ids, left_out) = self.ids(request)?;
        let prompt = request.prompt.unwrap_or(ids.len());
        if !(1..=ids.len()).contains(&prompt) {
            bail!("a prompt of {prompt} tokens in a text of {}", ids.len());
        }
        if let Some(along) = &request.along {
            along.check(self.model.config())?;
        }
        let changes = self.changes(request, ids.len())?;
        let names = request.changes.join(", ");
        let runs = if request.compare && !changes.is_empty() { vec!["plain", &names] } else { vec![] };
        let provenance = self.provenance(&ids, request);
        let tokens = self.tokenizer.spelled(&ids);
        let config = self.model.config();
        let mut header = PageHeader::new(&self.name, &tokens, config.n_layer * config.n_head, &provenance);
        (header.ids, header.runs) = (&ids, &runs);
        for (head, how) in changes.silenced(config, ids.len()) {
            header.silenced.insert(head.layer, head.head, how);
        }
        let mut page = PageWriter::data(vec![], &header)?;
        let recorder = FollowedToken::recorder(request.along.as_ref());
        let none = Interventions::default();
        let plain = match runs.len() {
            2 => Some(self.run(&mut page, 0, &ids, &none, &none)?),
            _ => None,
        };
        let run = usize::from(plain.is_some());
        let output = self.run(&mut page, run, &ids, &changes, &recorder)?;
        for (run, output) in plain.iter().chain([&output]).enumerate() {
            self.lens(&mut page, run, output)?;
        }
        let (predictions, last) = self.predictions(run, &ids, &output)?;
        let (first, effect) = match &plain {
            Some(plain) => {
                page.predictions(run, &predictions)?;
                let (of_plain, before) = self.predictions(0, &ids, plain)?;
                (of_plain, self.effect(&before, &last))
            }
            None => (predictions, None),
        };
        let next = if ids.len() < config.n_positions {
            Some(self.next(&ids, last, sampling.clone(), prompt)?)
        } else {
            None
        };
        let text = if request.ids.is_empty() { request.text.clone() } else { self.tokenizer.decode(&ids) };
        let way = match &request.along {
            Some(along) => {
                let next = self.after(along.token(ids.len()), &output, &sampling)?;
                let block = &self.model.transformer.h[along.layer];
                let activation = self.model.config().activation_function;
                Some(along.path(block, activation, &recorder, ids.len(), next)?)
            }
            None => None,
        };
        let ends = ids.last().is_some_and(|&id| self.model.config().is_eos(id));
        Ok(PageAnswer {
            ends,
            page: String::from_utf8(page.finish(&first)?)?,
            ids,
            text,
            left_out,
            next,
            effect,
            way,
        })
    }

    /// The tokens of a text and up to `count` more, which are drawn as [`Live::look`] would draw them one by one, but through a
    /// cache: a large model draws many in the time of one picture. Fewer come where the text ends or the context is full.
    ///
    /// # Errors
    /// Fails as [`Live::look`] does.
    pub fn go_on(&self, request: &PageRequest, count: usize) -> anyhow::Result<Vec<u32>> {
        let (mut ids, _) = self.ids(request)?;
        let config = self.model.config();
        let sampler = Sampler::new(request.draw.sampling()?, request.prompt.unwrap_or(ids.len()));
        let changes = self.changes(request, ids.len())?;
        let room = config.n_positions.min(ids.len() + count);
        let mut cache = KvCache::new(config, 1, room, DType::F32, &Device::Cpu)?;
        while ids.len() < room {
            let new = self.model.ids(&ids[cache.len()..])?;
            let cache = Some(&mut cache);
            let hooks = Some(&changes as &dyn Hooks);
            let args = ForwardArgs { cache, hooks, last_logits_only: true, ..ForwardArgs::default() };
            let mut logits = self.model.forward(&new, args)?.logits.flatten_all()?.to_vec1()?;
            let id = sampler.choose(&mut logits, &ids)?;
            ids.push(id);
            if config.is_eos(id) {
                break;
            }
        }
        Ok(ids)
    }

    /// The tokens, and the characters that the vocabulary cannot spell.
    fn ids(&self, request: &PageRequest) -> anyhow::Result<(Vec<u32>, Option<String>)> {
        let n = self.model.config().n_positions;
        let v = self.model.config().vocab_size;
        let (ids, left_out) = if request.ids.is_empty() {
            self.tokenizer.check_length(&request.text, n)?;
            let left_out = self.tokenizer.unspellable(&request.text)?;
            let left_out = (!left_out.is_empty()).then(|| left_out.to_string());
            (self.tokenizer.encode(&request.text)?, left_out)
        } else {
            (request.ids.clone(), None)
        };
        if ids.is_empty() {
            bail!("the text is empty: type a few words");
        }
        if ids.len() > n {
            bail!("the text has {} tokens, but the model reads {n}: shorten it", ids.len());
        }
        if let Some(id) = ids.iter().find(|&&id| id as usize >= v) {
            bail!("there is no token {id}; the vocabulary has {v}");
        }
        Ok((ids, left_out))
    }

    /// The interventions, on a text of some tokens.
    fn changes(&self, request: &PageRequest, tokens: usize) -> anyhow::Result<Interventions> {
        let config = self.model.config();
        let mut list = vec![];
        for text in &request.changes {
            let one = text.parse::<Intervention>().with_context(|| text.clone())?;
            Interventions::new([one.clone()], config).with_context(|| text.clone())?;
            if let Intervention::KnockOut(_, cut) = &one
                && cut.query >= tokens
            {
                bail!("{text}: the text has no token {}: undo this change, or type more", cut.query);
            }
            list.push(one);
        }
        Ok(Interventions::new(list, config)?)
    }

    fn provenance(&self, ids: &[u32], request: &PageRequest) -> Provenance {
        let under = if request.changes.is_empty() {
            String::new()
        } else {
            format!("; {}", request.changes.join(", "))
        };
        let place = if cfg!(target_family = "wasm") { "in this browser" } else { "on cpu" };
        let weights = if self.formats.is_empty() {
            String::new()
        } else {
            format!(", weights in {}", self.formats.join(", "))
        };
        let caption = format!("f32 {place}{weights}, fused attention{under}");
        let facts = json!({
            "gpt2": env!("CARGO_PKG_VERSION"), "model": self.name, "dtype": "f32", "device": "cpu",
            "implementation": "fused", "ids": ids, "interventions": request.changes,
        });
        Provenance { caption, facts }
    }

    /// Runs the transformer under `changes` and writes the weights of every head.
    fn run(
        &self,
        page: &mut PageWriter<Vec<u8>>,
        run: usize,
        ids: &[u32],
        changes: &Interventions,
        recorder: &dyn Hooks,
    ) -> anyhow::Result<ModelOutput> {
        let layers = 0..self.model.config().n_layer;
        let heads: Vec<usize> = (0..self.model.config().n_head).collect();
        let state = RefCell::new((page, None));
        let points: Vec<_> = layers.flat_map(|layer| [Point::V(layer), Point::Pattern(layer)]).collect();
        let reader = on(points, |at, value| {
            let (page, v) = &mut *state.borrow_mut();
            match at.point {
                Point::V(_) => *v = Some(value.clone()),
                Point::Pattern(layer) => {
                    page.layer_of_run(run, layer, &heads, &value.squeeze(0)?)?;
                    if let Some(v) = v.take() {
                        let norms = value_norms(&self.model.transformer.h[layer].attn, &heads, &v)?;
                        page.value_norms(run, layer, &heads, &norms)?;
                    }
                }
                _ => {}
            }
            Ok(None)
        });
        let hooks: [&dyn Hooks; 3] = [changes, &reader, recorder];
        let args =
            ForwardArgs { hooks: Some(&Chain(&hooks)), output_hidden_states: true, ..ForwardArgs::default() };
        Ok(self.model.transform(&self.model.ids(ids)?, args)?)
    }

    fn cache(&self) -> MutexGuard<'_, ResultCache> {
        // Each row of it is whole at any time.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The logits of some rows of normalized hidden states (T, C).
    fn logits(&self, hidden: &Tensor, rows: &[usize]) -> anyhow::Result<Tensor> {
        let rows: Vec<u32> = rows.iter().map(|&row| u32::try_from(row)).collect::<Result<_, _>>()?;
        let hidden = hidden.index_select(&Tensor::new(rows, &Device::Cpu)?, 0)?;
        Ok(self.model.lm_head.forward(&hidden)?) // (rows, V)
    }

    /// The model's predictions after each token, and the logits after the last.
    fn predictions(
        &self,
        run: usize,
        ids: &[u32],
        output: &ModelOutput,
    ) -> anyhow::Result<(Vec<NextToken>, Vec<f32>)> {
        let hidden = output.last_hidden_state.squeeze(0)?; // (T, C)
        let now: Vec<_> =
            hidden.to_vec2::<f32>()?.into_iter().zip((1..).map(|i| ids.get(i).copied())).collect();
        let mut cache = self.cache();
        let kept = cache.predictions.entry(run).or_default();
        let mut rows = stale(kept, &now);
        // The next token is drawn from the last row.
        if rows.last() != Some(&(ids.len() - 1)) {
            rows.push(ids.len() - 1);
        }
        let logits = self.logits(&hidden, &rows)?;
        if !all_finite(&logits)? {
            bail!("the results are not finite numbers: undo a change, or weaken it");
        }
        let mut logits = logits.to_vec2::<f32>()?;
        for (&i, row) in rows.iter().zip(&logits) {
            let likely = most_likely(row, LISTED, now[i].1);
            let (ids, probabilities): (Vec<u32>, Vec<f32>) = likely.tokens.into_iter().unzip();
            let shown = self.tokenizer.spelled(&ids).into_iter().zip(probabilities).collect();
            let found = NextToken { likely: shown, actual: likely.actual };
            put(kept, i, CachedRow { of: now[i].clone(), found });
        }
        let all = kept.iter().map(|row| row.found.clone()).collect();
        Ok((all, logits.pop().context("a text without tokens")?))
    }

    /// The most probable token after each block.
    fn lens(&self, page: &mut PageWriter<Vec<u8>>, run: usize, output: &ModelOutput) -> anyhow::Result<()> {
        let last = self.model.config().n_layer - 1;
        let mut cache = self.cache();
        for (layer, hidden) in output.hidden_states.iter().skip(1).enumerate() {
            let hidden = hidden.squeeze(0)?; // (T, C)
            // The last one is normalized already.
            let hidden = if layer == last { hidden } else { self.model.transformer.ln_f.forward(&hidden)? };
            let now = hidden.to_vec2::<f32>()?;
            let kept = cache.lens.entry((run, layer)).or_default();
            let rows = stale(kept, &now);
            if !rows.is_empty() {
                for (&i, row) in rows.iter().zip(self.logits(&hidden, &rows)?.to_vec2::<f32>()?) {
                    let best = most_likely(&row, 1, None).tokens.first().copied();
                    put(kept, i, CachedRow { of: now[i].clone(), found: best.unwrap_or((0, f32::NAN)) });
                }
            }
            let (ids, likely): (Vec<u32>, Vec<f32>) = kept.iter().map(|row| row.found).unzip();
            let likely: Vec<_> = self.tokenizer.spelled(&ids).into_iter().zip(likely).collect();
            page.lens(run, layer, &likely)?;
        }
        Ok(())
    }

    /// A token's text in a form that shows all of it.
    fn name(&self, id: u32) -> String {
        visible_token(&self.tokenizer.spelled(&[id]).concat())
    }

    /// The plain run's most probable token and its probability in both runs, given the logits (V) of both.
    fn effect(&self, plain: &[f32], changed: &[f32]) -> Option<Effect> {
        let &(id, of_plain) = most_likely(plain, 1, None).tokens.first()?;
        let changed = most_likely(changed, 0, Some(id)).actual?;
        Some(Effect { token: self.name(id), plain: of_plain, changed })
    }

    /// The most probable tokens after one of the text.
    fn after(&self, token: usize, output: &ModelOutput, sampling: &Sampling) -> anyhow::Result<LikelyTokens> {
        let hidden = output.last_hidden_state.squeeze(0)?; // (T, C)
        let logits: Vec<f32> = self.logits(&hidden, &[token])?.flatten_all()?.to_vec1()?;
        let name = |id| self.name(id);
        let likely = most_likely(&logits, NAMED, None).tokens;
        let mut from = sampling.probabilities(&logits)?;
        from.truncate(NAMED);
        #[allow(clippy::cast_possible_truncation)] // f32 is what is shown
        let probabilities = from.into_iter().map(|(id, p)| (name(id), p as f32)).collect();
        let logits_of = likely.into_iter().map(|(id, _)| (name(id), logits[id as usize])).collect();
        Ok(LikelyTokens { logits: logits_of, probabilities, vocabulary: logits.len() })
    }

    fn next(
        &self,
        ids: &[u32],
        mut logits: Vec<f32>,
        sampling: Sampling,
        prompt: usize,
    ) -> anyhow::Result<Next> {
        let mut from = sampling.probabilities(&logits)?;
        let id = Sampler::new(sampling, prompt).choose(&mut logits, ids)?;
        let count = from.len();
        let place = from.iter().position(|(other, _)| *other == id);
        let p = place.map_or(0.0, |place| from[place].1);
        let place = place.filter(|&place| place < NAMED);
        from.truncate(NAMED);
        let name = |id| self.name(id);
        let is_end = self.model.config().is_eos(id);
        let from = from.into_iter().map(|(id, p)| (name(id), p)).collect();
        Ok(Next { id, token: name(id), p, is_end, from, place, count })
    }
}
