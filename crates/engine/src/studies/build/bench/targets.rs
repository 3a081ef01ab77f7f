//! The work of each target.

use super::options::{FEATURES_OF_ONE, FIRING};
use super::setup::Bench;
use super::timing::{copies_beyond_the_cache, time_runs};
use crate::open::attention_layer;
use anyhow::{Context, bail};
use candle_core::{DType, Tensor};
use candle_fused::attention::Mask;
use candle_fused::measure::Stopwatch;
use candle_nn::VarMap;
use gpt2_model::analysis::{Contrast, Metric, attribution_patching};
use gpt2_model::dictionary::{Dictionary, DictionaryTensors, Selection};
use gpt2_model::hooks::{Hooks, Point, Recorder};
use gpt2_model::lora::{Adapter, LoraOptions};
use gpt2_model::training::TrainingBatch;
use gpt2_model::{
    CausalSelfAttention, Chosen, ChosenWeights, ForwardArgs, Generation, Gpt2LMHeadModel, KvCache, Pass,
    Sampling, Training, init,
};
use gpt2_train::{AdamW, AdamWParams};

/// The most times that the machine's limit is measured while a target runs.
const LIMITS: usize = 5;

impl Bench<'_> {
    pub(super) fn core(&self) -> anyhow::Result<Vec<f64>> {
        let t = self.tokens;
        let heads = self.config.heads();
        let packed = self.random(&[self.batch, t, heads.packed_width()])?; // as c_attn returns them
        let attention = attention_layer::attention(&self.config);
        let inputs = copies_beyond_the_cache(&packed)?;
        let views: Vec<_> = inputs
            .iter()
            .map(|packed| attention_layer::views(packed, heads, t))
            .collect::<candle_core::Result<_>>()?;
        self.time(|run| {
            let [q, k, v] = &views[run % views.len()];
            attention.forward(q, k, v, Mask::default())?;
            Ok(())
        })
    }

    pub(super) fn block(&self) -> anyhow::Result<Vec<f64>> {
        let block = CausalSelfAttention::load(self.weights()?.pp("h.0.attn"), &self.config, 0)?;
        let inputs =
            copies_beyond_the_cache(&self.random(&[self.batch, self.tokens, self.config.n_embd])?)?;
        self.time(|run| {
            block.forward_with(&inputs[run % inputs.len()], Pass::default())?;
            Ok(())
        })
    }

    pub(super) fn forward(&self) -> anyhow::Result<Vec<f64>> {
        let model = self.model()?;
        let ids = self.ids(self.tokens)?;
        self.time(|_| {
            model.forward(&ids, ForwardArgs { last_logits_only: self.options.last, ..Default::default() })?;
            Ok(())
        })
    }

    /// [`forward`](Self::forward) with weights and summaries; `plain` gets the times of alternate passes without them.
    pub(super) fn asking(&self, plain: &mut Vec<f64>) -> anyhow::Result<Vec<f64>> {
        let model = self.model()?;
        let ids = self.ids(self.tokens)?;
        let heads = self.options.weights_heads.unwrap_or(0);
        let all = self.config.n_layer * self.config.n_head;
        if heads > all {
            bail!("{}: the model has {all} heads", self.option("weights-heads"));
        }
        let of_head = |i: usize| ChosenWeights {
            layer: i / self.config.n_head,
            of: Chosen { heads: Some(vec![i % self.config.n_head]), queries: None },
        };
        let weights: Vec<_> = (0..heads).map(of_head).collect();
        let pass = |asked: bool| -> anyhow::Result<f64> {
            let recorder = Recorder::new(Point::of_model(self.config.n_layer));
            let args = ForwardArgs {
                hooks: (asked && self.options.hooks).then_some(&recorder as &dyn Hooks),
                last_logits_only: self.options.last,
                output_summaries: asked && self.options.summaries,
                weights: if asked { &weights } else { &[] },
                ..Default::default()
            };
            let watch = Stopwatch::start(&self.device)?;
            drop(model.forward(&ids, args)?); // freeing the memory is part of the cost
            Ok(watch.stop()?)
        };
        let mut asked = vec![];
        for run in 0..=self.options.runs {
            let without = pass(false)?;
            let with = pass(true)?;
            if run > 0 {
                plain.push(without);
                asked.push(with);
            }
            self.show(run)?;
        }
        Ok(asked)
    }

    /// Between two random texts, for the difference of two logits.
    pub(super) fn attribution(&self) -> anyhow::Result<Vec<f64>> {
        if self.batch != 1 {
            bail!("bench attribution runs on one pair of texts: leave {} out", self.option("batch"));
        }
        let model = self.model()?;
        let ids = self.ids(2 * self.tokens)?;
        let (clean, corrupt) = (
            ids.narrow(1, 0, self.tokens)?.contiguous()?,
            ids.narrow(1, self.tokens, self.tokens)?.contiguous()?,
        );
        let metric = Metric::difference(0, 1);
        let contrast = Contrast { clean: &clean, corrupt: &corrupt, metric: &metric, hooks: None };
        self.time(|_| {
            attribution_patching(&model, &contrast)?;
            Ok(())
        })
    }

    pub(super) fn features(&self) -> anyhow::Result<Vec<f64>> {
        if !self.device.is_cpu() || self.dtype != DType::F32 {
            bail!(
                "bench features runs in f32 on the CPU: leave {} out, and give {}",
                self.option("dtype"),
                self.model_options.spelling.given("device", "cpu")
            );
        }
        let c = self.config.n_embd;
        let count = FEATURES_OF_ONE * self.config.n_embd;
        let w_dec = self.random(&[count, c])?;
        let zeros = |n: usize| Tensor::zeros(n, DType::F32, &self.device);
        let w_enc = w_dec.t()?.contiguous()?;
        let tensors = DictionaryTensors { w_enc, b_enc: zeros(count)?, w_dec, b_dec: zeros(c)?, skip: None };
        let selection = Selection::TopK { k: FIRING, by_norm: false, absolute: false };
        let dictionary = Dictionary::new(tensors, selection)?;
        let x = self.random(&[self.batch * self.tokens, c])?;
        self.time(|_| {
            dictionary.decode(&dictionary.encode(&x)?, &x)?;
            Ok(())
        })
    }

    pub(super) fn decode(&self) -> anyhow::Result<Vec<f64>> {
        let model = self.model()?;
        let steps = self.options.steps();
        let mut cache = KvCache::new(&self.config, self.batch, self.tokens + steps, self.kv(), &self.device)?;
        let step = |ids: &Tensor, cache: &mut KvCache| -> anyhow::Result<Tensor> {
            let args = ForwardArgs { cache: Some(cache), last_logits_only: true, ..Default::default() };
            Ok(model.forward(ids, args)?.logits.argmax(candle_core::D::Minus1)?) // (B, 1)
        };
        let first = step(&self.ids(self.tokens)?, &mut cache)?;
        self.time(|_| {
            cache.truncate(self.tokens);
            let mut next = first.clone();
            for _ in 0..steps {
                next = step(&next, &mut cache)?;
            }
            Ok(())
        })
    }

    /// Drawn tokens after a prompt, as `gpt2 generate` draws them, with their way to the host; without the prompt.
    pub(super) fn generate(&self) -> anyhow::Result<Vec<f64>> {
        let model = self.model()?;
        let steps = self.options.steps();
        let prompts = self.ids(self.tokens)?.to_vec2::<u32>()?;
        let sampling = Sampling { top_k: Some(40), seed: self.options.seed, ..Sampling::default() };
        let mut times = vec![];
        for run in 0..=self.options.runs {
            let before = 1 + self.options.steps_before(); // the prompt, and the step that is recorded
            let mut generation = Generation::new(&model, &prompts, sampling.clone(), steps + before)?;
            if self.options.cuda_graph {
                generation = generation.with_cuda_graph().with_context(|| self.option("cuda-graph"))?;
            }
            generation.by_ref().take(before).try_for_each(|step| step.map(drop))?;
            let watch = Stopwatch::start(&self.device)?;
            for step in 0..steps {
                if generation.next().transpose()?.is_none_or(|tokens| tokens.contains(&None)) {
                    let seed = self.option("seed");
                    bail!("a text ended after {} of {steps} new tokens: choose another {seed}", step + 1);
                }
            }
            let time = watch.stop()?;
            if run > 0 {
                times.push(time);
            }
            self.show(run)?;
        }
        Ok(times)
    }

    pub(super) fn train(&self) -> anyhow::Result<Vec<f64>> {
        if self.options.lora.is_some() {
            return self.train_adapter();
        }
        if self.checkpoint.is_some() {
            let lora = self.option("lora");
            bail!("bench train runs on random weights: leave {} out, or give {lora}", self.option("model"));
        }
        let variables = VarMap::new();
        let vb = init::seeded_variables(self.options.seed, &variables, self.dtype, &self.device);
        let model = Gpt2LMHeadModel::load(vb, &self.config)?;
        self.time_training(&self.options.train_dtype.of(model)?)
    }

    /// Steps of an adapter on all linear layers, of a frozen model.
    fn train_adapter(&self) -> anyhow::Result<Vec<f64>> {
        let r = self.options.lora.unwrap_or(8);
        let targets = ["c_attn", "c_proj", "c_fc"].map(String::from).to_vec();
        let options = LoraOptions { target_modules: targets, ..LoraOptions::new(r) };
        let adapter = Adapter::new(&self.config, &options, self.options.seed, &self.device)?;
        self.time_training(&self.model()?.with_adapter("bench", &adapter, 1.0)?)
    }

    fn time_training(&self, model: &Gpt2LMHeadModel) -> anyhow::Result<Vec<f64>> {
        let mut optimizer = AdamW::new(model.named_variables()?, AdamWParams::default())?;
        let t = self.tokens;
        let ids = self.ids(t + 1)?;
        let inputs = ids.narrow(1, 0, t)?;
        let targets = ids.narrow(1, 1, t)?;
        let training = Some(Training { seed: 0, step: 0 });
        let batch = TrainingBatch::new(inputs.clone(), targets.clone());
        self.time(|_| {
            let gradients = if self.options.recompute {
                model.recomputed_gradients(&inputs, &targets, training)?.1
            } else {
                model.loss(&batch, ForwardArgs { training, ..Default::default() })?.backward()?
            };
            optimizer.step(&gradients, 1e-3, 1.0)?;
            Ok(())
        })
    }

    /// Shows how many of the runs are done.
    fn show(&self, done: usize) -> candle_core::Result<()> {
        self.observer.step("runs", done as u64, Some(self.options.runs as u64))
    }

    /// The milliseconds of each run of `work`, which is told its number.
    fn time(&self, work: impl FnMut(usize) -> anyhow::Result<()>) -> anyhow::Result<Vec<f64>> {
        let runs = self.options.runs.max(1);
        let every = runs.div_ceil(LIMITS - 1);
        let measured = |group: usize| {
            if let Some(limit) = self.limit.as_ref().filter(|_| group.is_multiple_of(every) || group == runs)
            {
                limit.measure();
            }
        };
        time_runs(&self.device, runs, self.observer, measured, work)
    }
}
