//! `gpt2 bench`: times random weights of GPT-2 small's shape, or `--model`.

mod report;
mod work;

use crate::args::{BenchArgs, BenchTarget};
use crate::output;
use crate::qkv;
use anyhow::bail;
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};
use gpt2_kernels::attention::{CausalMask, CausalSdpa};
use gpt2_kernels::roofline;
use gpt2_kernels::stopwatch::Stopwatch;
use gpt2_kernels::{BlockFormat, Dispatch, Isa};
use gpt2_loader::Checkpoint;
use gpt2_model::{
    CausalSelfAttention, Chosen, ChosenWeights, Config, ForwardArgs, Gpt2LMHeadModel, Implementation,
    KvCache, Pass, Training, init,
};
use gpt2_train::{AdamW, AdamWParams};
use report::{Report, print};
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;
use work::{Numbers, Work};

#[derive(Serialize)]
struct Machine {
    threads: usize,
    isa: &'static str,
    fma_gflops: f64,
    /// Of products in tile registers, where there are some.
    #[serde(skip_serializing_if = "Option::is_none")]
    bf16_gflops: Option<f64>,
    read_gb_s: f64,
}

pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    if let Some(isa) = args.isa {
        isa.hold()?;
    }
    if args.what == BenchTarget::Machine {
        return machine(args);
    }
    let asking = args.summaries || args.weights_heads.is_some();
    if asking && args.what != BenchTarget::Forward {
        bail!("--summaries and --weights-heads are only for bench forward");
    }
    let bench = Bench::new(args)?;
    let mut plain = vec![];
    let mut times = match args.what {
        BenchTarget::Core => bench.core()?,
        BenchTarget::Block => bench.block()?,
        BenchTarget::Forward if asking => bench.asking(&mut plain)?,
        BenchTarget::Forward => bench.forward()?,
        BenchTarget::Decode => bench.decode()?,
        BenchTarget::Train => bench.train()?,
        BenchTarget::Machine => return machine(args),
    };
    let mut ratios: Vec<f64> = times.iter().zip(&plain).map(|(asked, plain)| asked / plain).collect();
    let median_ms = median(&mut times);
    let decode = args.what == BenchTarget::Decode;
    let ms_per_token = decode.then(|| median_ms / f64::from(args.new_tokens));
    let on_cpu = bench.device.is_cpu();
    let seconds = ms_per_token.unwrap_or(median_ms) / 1e3;
    let report = Report {
        what: format!("{:?}", args.what).to_lowercase(),
        implementation: bench.implementation()?.as_str(),
        batch: bench.batch,
        tokens: bench.tokens,
        dtype: bench.dtype.as_str(),
        quantized: bench.quantized(),
        kv: args.kv.map(|_| bench.kv().as_str()),
        device: format!("{:?}", bench.device.location()).to_lowercase(),
        threads: rayon::current_num_threads(),
        isa: on_cpu.then(|| Isa::current().as_str()),
        timer: Stopwatch::kind(&bench.device),
        runs: args.runs,
        median_ms,
        min_ms: times[0],
        plain_median_ms: asking.then(|| median(&mut plain)),
        ratio_to_plain: asking.then(|| median(&mut ratios)),
        ms_per_token,
        tokens_per_s: ms_per_token.map(|ms| 1e3 * bench.batch as f64 / ms),
        work: if on_cpu { bench.work(seconds) } else { None },
    };
    output::report(args.json, &report, print)?;
    Ok(ExitCode::SUCCESS)
}

/// The median of one or more numbers. Sorts them.
fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    f64::midpoint(numbers[(numbers.len() - 1) / 2], numbers[numbers.len() / 2])
}

/// The machine's limits, to compare with the other targets' times.
fn machine(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    if args.model.model.is_some() {
        bail!("bench machine needs no model: leave --model out");
    }
    if !args.model.run.device.open()?.is_cpu() {
        bail!("bench machine measures the CPU and its memory: give --device cpu");
    }
    let threads = rayon::current_num_threads();
    let isa = Isa::current().as_str();
    let (fma_gflops, read_gb_s) = (roofline::fma_gflops(), roofline::read_gb_s());
    let bf16_gflops = roofline::bf16_gflops();
    if args.json {
        output::json(&Machine { threads, isa, fma_gflops, bf16_gflops, read_gb_s })?;
    } else {
        let mut out = output::stdout();
        writeln!(out, "{threads} threads, {isa}")?;
        writeln!(out, "f32 multiply-adds in registers: {fma_gflops:.0} GFLOP/s")?;
        if let Some(bf16_gflops) = bf16_gflops {
            writeln!(out, "bf16 products in tile registers: {bf16_gflops:.0} GFLOP/s")?;
        }
        writeln!(out, "reading from memory: {read_gb_s:.1} GB/s")?;
    }
    Ok(ExitCode::SUCCESS)
}

struct Bench<'a> {
    args: &'a BenchArgs,
    config: Config,
    checkpoint: Option<Checkpoint>,
    device: Device,
    dtype: DType,
    quantize: Option<BlockFormat>,
    batch: usize,
    tokens: usize,
}

impl<'a> Bench<'a> {
    fn new(args: &'a BenchArgs) -> anyhow::Result<Self> {
        let checkpoint = match &args.model.model {
            Some(model) => Some(Checkpoint::open(&crate::session::files(Some(model), &args.model.hub)?)?),
            None => None,
        };
        let implementation = args.model.implementation.into();
        let checkpoint = checkpoint.map(|checkpoint| checkpoint.with_implementation(implementation));
        let mut config = checkpoint.as_ref().map_or_else(Config::gpt2, |c| c.config().clone());
        config.attn_implementation = implementation;
        let tokens = args.tokens as usize;
        let needed = tokens + if args.what == BenchTarget::Decode { args.new_tokens as usize } else { 0 };
        if matches!(args.what, BenchTarget::Core | BenchTarget::Block) {
            config.n_positions = config.n_positions.max(needed); // neither reads a position
        } else if needed > config.n_positions {
            bail!(
                "--tokens: this needs {needed} positions, but the model has n_positions = {}",
                config.n_positions
            );
        }
        config.validate()?;
        let device = args.model.run.device.open()?;
        let quantize = args.model.quantize_on(&device)?;
        if let Some(format) =
            checkpoint.as_ref().and_then(|c| c.formats().first().copied()).filter(|_| quantize.is_some())
        {
            bail!("--quantize: the weights of the model are quantised already ({format}); leave it out");
        }
        if args.kv.is_some() && args.what != BenchTarget::Decode {
            bail!("--kv is for bench decode");
        }
        if quantize.is_some() && !matches!(args.what, BenchTarget::Forward | BenchTarget::Decode) {
            bail!("--quantize is for bench forward and bench decode");
        }
        Ok(Self {
            args,
            config,
            checkpoint,
            device,
            dtype: args.model.dtype.into(),
            quantize,
            batch: args.batch.into(),
            tokens,
        })
    }

    /// The formats of the weights that stay quantised.
    fn quantized(&self) -> Option<String> {
        let stay = self.dtype == DType::F32 && self.device.is_cpu();
        let of_file = self.checkpoint.as_ref().filter(|_| stay).map(Checkpoint::formats).unwrap_or_default();
        let formats: Vec<&str> = self.quantize.into_iter().chain(of_file).map(BlockFormat::as_str).collect();
        let whole = matches!(self.args.what, BenchTarget::Forward | BenchTarget::Decode);
        (whole && !formats.is_empty()).then(|| formats.join(", "))
    }

    /// The dtype of cached keys and values.
    fn kv(&self) -> DType {
        self.args.kv.map_or(self.dtype, DType::from)
    }

    /// What a run of `seconds` on the CPU reads or computes.
    fn work(&self, seconds: f64) -> Option<Work> {
        let quantized = self.quantized().is_some();
        let number = self.kv().size_in_bytes() as f64;
        let weight = match (&self.checkpoint, self.quantize) {
            (_, Some(format)) => format.block_bytes() as f64 / format.block_len() as f64,
            (Some(checkpoint), None) if quantized => work::bytes_of_a_weight(checkpoint),
            _ => self.dtype.size_in_bytes() as f64,
        };
        Work::of(self.args, &self.config, Numbers { dtype: self.dtype, quantized, weight, number }, seconds)
    }

    /// Which attention runs: `--impl` if a kernel for it exists.
    fn implementation(&self) -> anyhow::Result<Implementation> {
        let t = match self.args.what {
            BenchTarget::Train if !self.device.is_cpu() => return Ok(Implementation::Eager), // with dropout
            BenchTarget::Decode => 1,
            _ => self.tokens,
        };
        Ok(qkv::implementation_of(&self.config, (t, self.tokens, false), self.dtype, &self.device)?)
    }

    /// The time of each run of `work` in milliseconds, after an untimed one.
    fn time(&self, mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<Vec<f64>> {
        let mut times = vec![];
        for run in 0..=self.args.runs {
            let watch = Stopwatch::start(&self.device)?;
            work()?;
            let time = watch.stop()?;
            if run > 0 {
                times.push(time);
            }
        }
        Ok(times)
    }

    fn weights(&self) -> anyhow::Result<VarBuilder<'static>> {
        match &self.checkpoint {
            Some(checkpoint) => Ok(checkpoint.var_builder(self.dtype, &self.device)?),
            None => Ok(init::seeded(self.args.model.run.seed, self.dtype, &self.device)),
        }
    }

    fn model(&self) -> anyhow::Result<Gpt2LMHeadModel> {
        Ok(match (&self.checkpoint, self.quantize) {
            (Some(checkpoint), Some(format)) => checkpoint.load_quantised(format)?,
            (Some(checkpoint), None) => checkpoint.load_model(self.dtype, &self.device)?,
            (None, Some(format)) => Gpt2LMHeadModel::load(self.weights()?, &self.config)?.quantise(format)?,
            (None, None) => Gpt2LMHeadModel::load(self.weights()?, &self.config)?,
        })
    }

    /// Seeded random numbers in -1..1 of the given shape.
    fn random(&self, shape: &[usize]) -> anyhow::Result<Tensor> {
        let vb = init::seeded(self.args.model.run.seed, self.dtype, &self.device);
        Ok(vb.get_with_hints(shape, "input", candle_nn::Init::Uniform { lo: -1., up: 1. })?)
    }

    /// (B, T) ids spread over the vocabulary.
    fn ids(&self, t: usize) -> anyhow::Result<Tensor> {
        let v = u32::try_from(self.config.vocab_size)?;
        let count = u32::try_from(self.batch * t)?;
        let ids: Vec<u32> = (0..count).map(|i| i.wrapping_mul(7919) % v).collect();
        Ok(Tensor::from_vec(ids, (self.batch, t), &self.device)?)
    }

    fn core(&self) -> anyhow::Result<Vec<f64>> {
        let (b, t, h, d) = (self.batch, self.tokens, self.config.n_head, self.config.head_dim());
        let packed = self.random(&[b, t, 3, h, d])?; // as c_attn returns them
        let [q, k, v] = qkv::views(&packed, t)?;
        let dispatch = Dispatch::of(self.config.attn_implementation, &q);
        let attention = CausalSdpa::new(self.config.attention_scale(0), dispatch);
        self.time(|| {
            attention.forward(&q, &k, &v, CausalMask::default())?;
            Ok(())
        })
    }

    fn block(&self) -> anyhow::Result<Vec<f64>> {
        let block = CausalSelfAttention::load(self.weights()?.pp("h.0.attn"), &self.config)?;
        let x = self.random(&[self.batch, self.tokens, self.config.n_embd])?;
        self.time(|| {
            block.forward(&x, Pass::default())?;
            Ok(())
        })
    }

    fn forward(&self) -> anyhow::Result<Vec<f64>> {
        let model = self.model()?;
        let ids = self.ids(self.tokens)?;
        self.time(|| {
            model.forward(&ids, ForwardArgs { last_logits_only: self.args.last, ..Default::default() })?;
            Ok(())
        })
    }

    /// [`forward`](Self::forward) with weights and summaries; `plain` gets the times of alternate passes without them.
    fn asking(&self, plain: &mut Vec<f64>) -> anyhow::Result<Vec<f64>> {
        let (model, ids) = (self.model()?, self.ids(self.tokens)?);
        let heads = usize::from(self.args.weights_heads.unwrap_or(0));
        let all = self.config.n_layer * self.config.n_head;
        if heads > all {
            bail!("--weights-heads: the model has {all} heads");
        }
        let of_head = |i: usize| ChosenWeights {
            layer: i / self.config.n_head,
            of: Chosen { heads: Some(vec![i % self.config.n_head]), queries: None },
        };
        let weights: Vec<_> = (0..heads).map(of_head).collect();
        let pass = |asked: bool| -> anyhow::Result<f64> {
            let args = ForwardArgs {
                last_logits_only: self.args.last,
                output_summaries: asked && self.args.summaries,
                weights: if asked { &weights } else { &[] },
                ..Default::default()
            };
            let watch = Stopwatch::start(&self.device)?;
            drop(model.forward(&ids, args)?); // freeing the memory is part of the cost
            Ok(watch.stop()?)
        };
        let mut asked = vec![];
        for run in 0..=self.args.runs {
            let (without, with) = (pass(false)?, pass(true)?);
            if run > 0 {
                plain.push(without);
                asked.push(with);
            }
        }
        Ok(asked)
    }

    fn decode(&self) -> anyhow::Result<Vec<f64>> {
        let model = self.model()?;
        let steps = self.args.new_tokens as usize;
        let mut cache = KvCache::new(&self.config, self.batch, self.tokens + steps, self.kv(), &self.device)?;
        let step = |ids: &Tensor, cache: &mut KvCache| -> anyhow::Result<Tensor> {
            let args = ForwardArgs { cache: Some(cache), last_logits_only: true, ..Default::default() };
            Ok(model.forward(ids, args)?.logits.argmax(candle_core::D::Minus1)?) // (B, 1)
        };
        let first = step(&self.ids(self.tokens)?, &mut cache)?;
        self.time(|| {
            cache.truncate(self.tokens);
            let mut next = first.clone();
            for _ in 0..steps {
                next = step(&next, &mut cache)?;
            }
            Ok(())
        })
    }

    fn train(&self) -> anyhow::Result<Vec<f64>> {
        if self.checkpoint.is_some() {
            bail!("bench train runs on random weights: leave --model out");
        }
        let variables = VarMap::new();
        let vb = init::seeded_variables(self.args.model.run.seed, &variables, self.dtype, &self.device);
        let model = Gpt2LMHeadModel::load(vb, &self.config)?;
        let mut optimiser = AdamW::new(model.named_variables()?, AdamWParams::default())?;
        let t = self.tokens;
        let ids = self.ids(t + 1)?;
        let (inputs, targets) = (ids.narrow(1, 0, t)?, ids.narrow(1, 1, t)?);
        let training = Some(Training { seed: 0, step: 0 });
        self.time(|| {
            let gradients = if self.args.recompute {
                model.recomputed_gradients(&inputs, &targets, training)?.1
            } else {
                model.loss(&inputs, &targets, training)?.backward()?
            };
            optimiser.step(&gradients, 1e-3, 1.0)?;
            Ok(())
        })
    }
}
