//! The setup of a benchmark: the model or its shape, the device and the sizes.

use super::options::{Options, Target};
use super::work::{self, Limit, NumberSizes, Work};
use crate::observer::Observer;
use crate::open::{DeviceChoice, ModelOptions, attention_layer, checkpoint};
use anyhow::bail;
use candle_core::{DType, Device, Tensor};
use candle_fused::BlockFormat;
use candle_nn::VarBuilder;
use gpt2_loader::Checkpoint;
use gpt2_model::{CacheDType, Config, Gpt2LMHeadModel, Implementation, init};

pub(super) struct Bench<'a> {
    pub(super) options: &'a Options,
    pub(super) model_options: &'a ModelOptions,
    pub(super) observer: &'a dyn Observer,
    pub(super) config: Config,
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) device: Device,
    pub(super) dtype: DType,
    quantize: Option<BlockFormat>,
    pub(super) batch: usize,
    pub(super) tokens: usize,
    /// The machine's limit, on the CPU.
    pub(super) limit: Option<Limit>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        options: &'a Options,
        model: &'a ModelOptions,
        device: DeviceChoice,
        tf32: bool,
        observer: &'a dyn Observer,
    ) -> anyhow::Result<Self> {
        let open = |_: &String| -> anyhow::Result<Checkpoint> {
            let files = model.files(observer)?;
            Ok(checkpoint(&files, observer)?.with_implementation(model.implementation))
        };
        let checkpoint = model.model.as_ref().map(open).transpose()?;
        let mut config = checkpoint.as_ref().map_or_else(Config::gpt2, |c| c.config().clone());
        config.attn_implementation = model.implementation;
        let what = options.what;
        let spelling = model.spelling;
        let needed =
            options.tokens + if what.makes_tokens() { options.steps() + options.steps_before() } else { 0 };
        if matches!(what, Target::Core | Target::Block) {
            config.n_positions = config.n_positions.max(needed); // neither reads a position
        } else if needed > config.n_positions {
            bail!(
                "{}: this needs {needed} positions, but the model has n_positions = {}",
                spelling.option("tokens"),
                config.n_positions
            );
        }
        config.validate()?;
        let bytes = (options.kv == Some(CacheDType::Q8_0)).then_some("kv");
        let cpu_only: Vec<&str> = bytes.into_iter().chain(model.quantize.map(|_| "quantize")).collect();
        let device = device.for_options(&cpu_only, spelling, observer).open(tf32, spelling, observer)?;
        let quantize = model.quantized(checkpoint.as_ref(), &device)?;
        if options.kv.is_some() && what != Target::Decode {
            bail!("{} is for bench decode", spelling.option("kv"));
        }
        let runs_layers = what == Target::Forward || what.makes_tokens() || options.lora.is_some();
        if quantize.is_some() && !runs_layers {
            let option = spelling.option("quantize");
            let lora = spelling.option("lora");
            bail!("{option} is for bench forward, decode, generate, and train with {lora}");
        }
        let dtype = model.dtype;
        let batch = options.batch;
        let tokens = options.tokens;
        let mut bench = Self {
            options,
            model_options: model,
            observer,
            config,
            checkpoint,
            device,
            dtype,
            quantize,
            batch,
            tokens,
            limit: None,
        };
        if bench.device.is_cpu() && what != Target::Attribution {
            bench.limit = Limit::of(what, dtype, bench.quantized().is_some());
        }
        Ok(bench)
    }

    /// An option as the caller writes it.
    pub(super) fn option(&self, name: &str) -> String {
        self.model_options.spelling.option(name)
    }

    pub(super) fn name(&self) -> String {
        let random = || "random weights of GPT-2 small's shape".to_owned();
        self.checkpoint.as_ref().map_or_else(random, |checkpoint| checkpoint.name().to_owned())
    }

    /// The formats of the weights that stay quantized.
    pub(super) fn quantized(&self) -> Option<String> {
        let stay = self.weights_stay();
        let of_file = self.checkpoint.as_ref().filter(|_| stay).map(Checkpoint::formats).unwrap_or_default();
        let formats: Vec<&str> = self.quantize.into_iter().chain(of_file).map(BlockFormat::as_str).collect();
        let whole = self.options.what == Target::Forward || self.options.what.makes_tokens();
        (whole && !formats.is_empty()).then(|| formats.join(", "))
    }

    /// Whether weights stay as they are in the file.
    fn weights_stay(&self) -> bool {
        self.dtype == DType::F32 && self.device.is_cpu()
    }

    /// The dtype of the cached keys and values.
    pub(super) fn kv(&self) -> CacheDType {
        self.options.kv.unwrap_or(self.dtype.into())
    }

    /// Compares what a run of `seconds` on the CPU computes or reads with the machine's limit.
    pub(super) fn work(&self, seconds: f64) -> Option<Work> {
        let limit = self.limit.as_ref()?;
        if !limit.is_measured() {
            limit.measure();
        }
        let d = self.config.heads().dim;
        let number = self.kv().bytes_of(d) as f64 / d as f64;
        let weight = match (&self.checkpoint, self.quantize) {
            (_, Some(format)) => format.bits_in_memory() / 8.0,
            (Some(checkpoint), None) if self.weights_stay() => work::bytes_of_a_weight(checkpoint),
            _ => self.dtype.size_in_bytes() as f64,
        };
        Some(Work::of(self.options, &self.config, NumberSizes { weight, number }, seconds, limit))
    }

    /// The attention implementation that runs: `--impl` if a kernel for it exists.
    pub(super) fn implementation(&self) -> anyhow::Result<Implementation> {
        let t = match self.options.what {
            Target::Train if self.device.is_metal() => return Ok(Implementation::Eager), // has no gradient
            Target::Decode | Target::Generate => 1,
            _ => self.tokens,
        };
        Ok(attention_layer::implementation_of(
            &self.config,
            (t, self.tokens, false),
            self.dtype,
            &self.device,
        )?)
    }

    pub(super) fn weights(&self) -> anyhow::Result<VarBuilder<'static>> {
        match &self.checkpoint {
            Some(checkpoint) => Ok(checkpoint.var_builder(self.dtype, &self.device)?),
            None => Ok(init::seeded(self.options.seed, self.dtype, &self.device)),
        }
    }

    pub(super) fn model(&self) -> anyhow::Result<Gpt2LMHeadModel> {
        let model = match (&self.checkpoint, self.quantize) {
            (Some(checkpoint), Some(format)) => checkpoint.load_quantized(format)?,
            (Some(checkpoint), None) => checkpoint.load_model(self.dtype, &self.device)?,
            (None, Some(format)) => Gpt2LMHeadModel::load(self.weights()?, &self.config)?.quantize(format)?,
            (None, None) => Gpt2LMHeadModel::load(self.weights()?, &self.config)?,
        };
        let adapters = self.model_options.find_adapters(self.observer)?;
        Ok(self.model_options.with_adapters(model, &adapters, self.observer)?.0)
    }

    /// Seeded random numbers in -1..1 of the given shape.
    pub(super) fn random(&self, shape: &[usize]) -> anyhow::Result<Tensor> {
        let vb = init::seeded(self.options.seed, self.dtype, &self.device);
        Ok(vb.get_with_hints(shape, "input", candle_nn::Init::Uniform { lo: -1., up: 1. })?)
    }

    /// (B, T) ids spread over the vocabulary.
    pub(super) fn ids(&self, t: usize) -> anyhow::Result<Tensor> {
        let v = u32::try_from(self.config.vocab_size)?;
        let count = u32::try_from(self.batch * t)?;
        let ids: Vec<u32> = (0..count).map(|i| i.wrapping_mul(7919) % v).collect();
        Ok(Tensor::from_vec(ids, (self.batch, t), &self.device)?)
    }
}
