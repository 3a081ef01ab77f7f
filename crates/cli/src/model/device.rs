//! `--device`, `--threads` and `--seed`: an explicit device never falls back, and `auto` says what it chose.

use crate::output::note;
use anyhow::{Context, bail};
use candle_core::Device;
use candle_core::utils::{cuda_is_available, metal_is_available};

/// The most CPU threads: more than any machine has, and few enough to start at once.
pub(crate) const MOST_THREADS: u16 = 1024;

/// `--threads`, which is read before the command: see `restart`.
#[derive(Debug, clap::Args)]
pub(crate) struct ThreadsArg {
    /// CPU threads, at most 1024 [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_THREADS)))]
    pub(crate) threads: Option<u16>,
}

/// Where a command runs, and with which seed.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model and device")]
pub(crate) struct RunArgs {
    /// Where to run: auto, cpu, cuda[:N] or metal[:N]. Only auto falls back to another device
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub(crate) device: DeviceArg,
    /// On CUDA, round the inputs of f32 products to TF32's 10 bits. This is faster and less exact
    #[arg(long)]
    pub(crate) tf32: bool,
    #[command(flatten)]
    pub(crate) threads: ThreadsArg,
    /// Seed for everything random. The same seed gives the same result
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceArg {
    Auto,
    Cpu,
    Cuda(usize),
    Metal(usize),
}

impl std::str::FromStr for DeviceArg {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (name, ordinal) = match s.split_once(':') {
            None => (s, 0),
            Some((name, n)) => (name, n.parse().map_err(|_| format!("`{n}` is not a device number"))?),
        };
        match (name, s.contains(':')) {
            ("auto", false) => Ok(Self::Auto),
            ("cpu", false) => Ok(Self::Cpu),
            ("cuda", _) => Ok(Self::Cuda(ordinal)),
            ("metal", _) => Ok(Self::Metal(ordinal)),
            _ => Err("expected auto, cpu, cuda, cuda:N, metal or metal:N".into()),
        }
    }
}

impl RunArgs {
    /// Opens the device, and lets its products in f32 round to TF32 if the caller asks for it.
    pub(crate) fn open(&self) -> anyhow::Result<Device> {
        let device = self.device.open()?;
        if self.tf32 {
            if !device.is_cuda() {
                bail!("--tf32 is for --device cuda: other devices have no TF32");
            }
            candle_core::cuda::set_gemm_reduced_precision_f32(true);
        }
        Ok(device)
    }
}

/// Whether products in f32 round their inputs to TF32 on this device.
pub(crate) fn rounds_to_tf32(device: &Device) -> bool {
    // Without CUDA, Candle's stand-in always says that they do.
    device.is_cuda() && candle_core::cuda::gemm_reduced_precision_f32()
}

impl DeviceArg {
    fn open(self) -> anyhow::Result<Device> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Cuda(_) if !cuda_is_available() => bail!(
                "--device cuda: this gpt2 was built without CUDA; build it with \
                 `cargo build --release --features cuda` on a machine with the CUDA toolkit"
            ),
            Self::Cuda(n) => {
                let none = || {
                    format!(
                        "--device cuda:{n}: this GPU does not respond; `nvidia-smi` shows which GPUs there are"
                    )
                };
                candle_fused::open_cuda(n).with_context(none)
            }
            Self::Metal(_) if !metal_is_available() => bail!(
                "--device metal: this gpt2 was built without Metal; build it with \
                 `cargo build --release --features metal` on macOS"
            ),
            Self::Metal(n) => {
                Device::new_metal(n).with_context(|| format!("--device metal:{n}: this GPU does not respond"))
            }
            Self::Auto => Ok(Self::first_that_answers()),
        }
    }

    fn first_that_answers() -> Device {
        let built_in = [
            (cuda_is_available(), Self::Cuda(0), "cuda:0"),
            (metal_is_available(), Self::Metal(0), "metal:0"),
        ];
        for (_, arg, name) in built_in.into_iter().filter(|(is_built_in, ..)| *is_built_in) {
            match arg.open() {
                Ok(device) => {
                    note(&format!("device: {name}"));
                    return device;
                }
                Err(error) => note(&format!("{error:#}; trying the next device")),
            }
        }
        note("device: cpu");
        Device::Cpu
    }
}
