//! Options of every command that runs a model.
// These comments are the help text, which would print backticks and backslashes.
#![allow(clippy::doc_markdown, rustdoc::broken_intra_doc_links)]

use super::adapter::AdapterArgs;
use super::choices::{DTypeArg, ImplArg, QuantizeArg};
use super::device::DeviceArg;
use super::hub::HubArgs;
use anyhow::bail;
use candle_core::Device;
use candle_fused::BlockFormat;

/// Options that every subcommand has.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model and device")]
pub(crate) struct ModelArgs {
    /// Folder with config.json and weights; a GGUF file; or a model on the Hugging Face Hub: gpt2, gpt2-medium,
    /// gpt2-large, gpt2-xl, distilgpt2, owner/name or owner/name/FILE.gguf [default: the built-in demo model]
    #[arg(short, long, value_name = "DIR|FILE|NAME")]
    pub(crate) model: Option<String>,
    /// Precision of weights and activations; scores and softmax are f32 at least
    #[arg(long, default_value = "f32", value_enum)]
    pub(crate) dtype: DTypeArg,
    /// Quantize the weights as they are loaded: less memory and faster decoding, less exact; f32 on the CPU only
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) quantize: Option<QuantizeArg>,
    /// Which code computes attention and, on GPUs, the layers around it
    #[arg(long = "impl", value_enum, default_value = "auto")]
    pub(crate) implementation: ImplArg,
    #[command(flatten)]
    pub(crate) adapters: AdapterArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
}

impl ModelArgs {
    /// The format of `--quantize`; refuses a dtype or a device that quantized layers do not have.
    pub(crate) fn quantize_on(&self, device: &Device) -> anyhow::Result<Option<BlockFormat>> {
        let Some(format) = self.quantize else { return Ok(None) };
        if self.dtype != DTypeArg::F32 {
            bail!("--quantize: quantized layers compute in f32; leave --dtype out");
        }
        if !device.is_cpu() {
            bail!("--quantize: quantized layers run on the CPU only; give --device cpu");
        }
        Ok(Some(format.into()))
    }
}

/// Where a command runs, and with which seed.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model and device")]
pub(crate) struct RunArgs {
    /// Where to run: auto, cpu, cuda[:N] or metal[:N]; only auto ever falls back
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub(crate) device: DeviceArg,
    /// On CUDA, round the inputs of matrix products in f32 to TF32's 10 bits: faster, and no longer exact
    #[arg(long)]
    pub(crate) tf32: bool,
    /// CPU threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,
    /// Seed for everything random: the same command with the same seed gives the same result
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}
