//! The options of every command that opens a model.

use super::hub::{self, HubArgs};
use crate::output::note;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::values::one_of;
use anyhow::bail;
use candle_core::{DType, Device};
use candle_fused::{BlockFormat, Implementation};
use gpt2_engine::open::{AdapterChoice, DTYPES, FORMATS, IMPLEMENTATIONS};
use gpt2_engine::{DeviceChoice, ModelOptions, Observer, Opened, ReadFiles, Spelling};
use gpt2_loader::Files;
use gpt2_loader::hub::Progress;

/// The help of every option that names a model.
pub(crate) const MODEL: &str = "A folder, a file of weights, a model on the Hugging Face Hub, or demo, which is built in. Names on the Hub: \
     gpt2, gpt2-medium, gpt2-large, gpt2-xl, distilgpt2, owner/name, owner/name/FILE.gguf [default: demo]";

/// The most CPU threads: more than any machine has, and few enough to start at once.
pub(crate) const MOST_THREADS: u16 = 1024;

/// `--threads`, which is read before the command: see `restart`.
#[derive(Debug, clap::Args)]
pub(crate) struct ThreadsArg {
    /// CPU threads, at most 1024 [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_THREADS)))]
    pub(crate) threads: Option<u16>,
}

/// The device, the threads and the seed of a command.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model and device")]
pub(crate) struct RunArgs {
    /// Where to run: auto, cpu, cuda[:N] or metal[:N]. Only auto falls back to another device
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub(crate) device: DeviceChoice,
    /// On CUDA, round the inputs of f32 products to TF32's 10 bits. This is faster and less exact
    #[arg(long)]
    pub(crate) tf32: bool,
    #[command(flatten)]
    pub(crate) threads: ThreadsArg,
    /// Seed for everything random. The same seed gives the same result
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
}

impl RunArgs {
    /// Opens the device.
    pub(crate) fn open(&self) -> anyhow::Result<Device> {
        self.open_with(&[])
    }

    /// Opens the device for a run with these options, which work on the CPU only.
    pub(crate) fn open_with(&self, cpu_only: &[&str]) -> anyhow::Result<Device> {
        self.open_for(cpu_only, &TERMINAL)
    }

    fn open_for(&self, cpu_only: &[&str], observer: &dyn Observer) -> anyhow::Result<Device> {
        let device = self.device.for_options(cpu_only, Spelling::Flags, observer);
        device.open(self.tf32, Spelling::Flags, observer)
    }
}

/// Adapters to put on the model.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model and device")]
pub(crate) struct AdapterArgs {
    /// Put a LoRA adapter on the model, times WEIGHT: a folder, or owner/name on the Hub, in PEFT's format
    /// (repeatable)
    #[arg(long = "adapter", value_name = "DIR|NAME[=WEIGHT]")]
    pub(crate) list: Vec<AdapterChoice>,
}

/// Options of every command that runs a model.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model and device")]
pub(crate) struct ModelArgs {
    #[arg(short, long, value_name = "DIR|FILE|NAME", help = MODEL)]
    pub(crate) model: Option<String>,
    /// Precision of the activations. With f32 on the CPU, weights stay as they are in the file: f16, bf16 or
    /// quantized. Otherwise they are converted. Scores and softmax are f32 at least
    #[arg(long, value_name = "DTYPE", default_value = "f32", value_parser = one_of(DTYPES))]
    pub(crate) dtype: DType,
    /// Quantize the weights as they load, to 8.5 or 4.5 bits each. This takes less memory, decodes faster and is less
    /// exact. It needs the CPU and --dtype f32
    #[arg(long, value_name = "FORMAT", value_parser = one_of(FORMATS))]
    pub(crate) quantize: Option<BlockFormat>,
    /// What computes attention and, on GPUs, the layers around it. fused is one kernel without a (T, T) tensor. eager
    /// is plain Candle operations. auto is fused on the CPU and on CUDA, and eager on Metal, where fused has not run yet
    #[arg(long = "impl", value_name = "IMPL", default_value = "auto", value_parser = one_of(IMPLEMENTATIONS))]
    pub(crate) implementation: Implementation,
    #[command(flatten)]
    pub(crate) adapters: AdapterArgs,
    /// Look at the model as TransformerLens shows it by default: layer norms and value biases folded into the layers
    /// after them, weights that write to the stream and the unembedding centered. No probability changes
    #[arg(long)]
    pub(crate) processed: bool,
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}

impl ModelArgs {
    /// The engine's options.
    pub(crate) fn options(&self) -> ModelOptions {
        ModelOptions {
            dtype: self.dtype,
            quantize: self.quantize,
            implementation: self.implementation,
            adapters: self.adapters.list.clone(),
            processed: self.processed,
            ..named(self.model.as_deref(), &self.hub)
        }
    }

    /// Refuses `--processed` in a command that looks at no such weights.
    pub(crate) fn refuse_processed(&self, command: &str) -> anyhow::Result<()> {
        if self.processed {
            bail!("--processed: has no meaning in gpt2 {command}, which is about the weights as they are");
        }
        Ok(())
    }

    /// Opens the model, after checking that `outputs` do no harm to it, the Hub's cache and `inputs`.
    pub(crate) fn open_for(&self, inputs: ReadFiles, outputs: &Outputs) -> anyhow::Result<Opened> {
        self.open_with(inputs, outputs, &[])
    }

    /// Like [`ModelArgs::open_for`], for a run with more options that work on the CPU only.
    pub(crate) fn open_with(
        &self,
        mut inputs: ReadFiles,
        outputs: &Outputs,
        cpu_only: &[&str],
    ) -> anyhow::Result<Opened> {
        hub::inputs(&self.hub, &mut inputs);
        // Check twice, so that whatever can be refused before the model is fetched is refused at once.
        outputs.check(&inputs)?;
        let quantize = self.quantize.map(|_| "quantize");
        let cpu_only: Vec<&str> = cpu_only.iter().copied().chain(quantize).collect();
        let device = self.run.open_for(&cpu_only, &NamesFound)?;
        if self.model.is_none() {
            note("for GPT-2 small, give --model gpt2");
        }
        let options = self.options();
        TERMINAL.works();
        let found = options.find(&NamesFound)?;
        inputs.model(&found.files)?;
        found.adapters.iter().for_each(|adapter| inputs.adapter(&adapter.files));
        outputs.check(&inputs)?;
        let opened = options.load(found, device, &TERMINAL)?;
        if opened.model.config().add_cross_attention {
            note(
                "the model has cross-attention, but no command gives it an encoder: cross-attention is skipped",
            );
        }
        Ok(opened)
    }
}

/// Leaves out what the first line of the result says: the model and the device.
struct NamesFound;

impl Observer for NamesFound {
    fn note(&self, text: &str) {
        TERMINAL.note(text);
    }

    fn found(&self, what: &str, name: &str) {
        if !matches!(what, "model" | "device") {
            TERMINAL.found(what, name);
        }
    }

    fn step(&self, steps: &str, done: u64, all: Option<u64>) -> candle_core::Result<()> {
        TERMINAL.step(steps, done, all)
    }

    fn waiting(&self, wait: &mut dyn FnMut()) {
        TERMINAL.waiting(wait);
    }

    fn downloads(&self) -> Option<Progress> {
        TERMINAL.downloads()
    }
}

/// The options for a model by its name alone.
pub(crate) fn named(model: Option<&str>, hub: &HubArgs) -> ModelOptions {
    ModelOptions { model: model.map(str::to_owned), hub: hub.options(), ..ModelOptions::default() }
}

/// The files of a folder, of a model on the Hub, or of the demo model; prints a line that says which.
pub(crate) fn files(model: Option<&str>, hub: &HubArgs) -> anyhow::Result<Files> {
    note_default(model);
    TERMINAL.works();
    named(model, hub).files(&TERMINAL)
}

/// Says which model runs where none was named.
pub(crate) fn note_default(model: Option<&str>) {
    if model.is_none() {
        note("model: tiny-shakespeare, the built-in demo; for GPT-2 small, give --model gpt2");
    }
}

/// The token before a text.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model and device")]
pub(crate) struct FirstTokenArg {
    /// Put the model's first token, bos_token_id, before every text, as TransformerLens does by default. Ids stay as
    /// they are
    #[arg(long = "prepend-bos")]
    pub(crate) prepend_bos: bool,
}

impl FirstTokenArg {
    /// The model, reading texts so.
    pub(crate) fn of(&self, opened: Opened) -> anyhow::Result<Opened> {
        if self.prepend_bos { opened.with_first_token() } else { Ok(opened) }
    }
}

/// Whether to show numbers that are not finite.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model and device")]
pub(crate) struct FiniteArgs {
    /// Show and export NaN and infinity instead of stopping at them, to look at broken models
    #[arg(long)]
    pub(crate) allow_nonfinite: bool,
}
