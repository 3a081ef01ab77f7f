//! Devices by name: an explicit one never falls back, and `auto` says what it chose.

use crate::observer::Observer;
use crate::spelling::Spelling;
use anyhow::{Context, bail};
use candle_core::utils::{cuda_is_available, metal_is_available};
use candle_core::{Device, DeviceLocation};
use std::str::FromStr;

/// A device to run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first GPU that answers, else the CPU.
    Auto,
    /// The CPU.
    #[default]
    Cpu,
    /// A GPU of NVIDIA, by its number.
    Cuda(usize),
    /// A GPU of Apple, by its number.
    Metal(usize),
}

impl FromStr for DeviceChoice {
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

impl DeviceChoice {
    /// The choice where some options, such as `quantize`, work on the CPU only: `auto` is then the CPU, and a note says why.
    #[must_use]
    pub fn for_options(self, cpu_only: &[&str], spelling: Spelling, observer: &dyn Observer) -> Self {
        let has_gpus = cuda_is_available() || metal_is_available();
        match cpu_only.first() {
            Some(option) if self == Self::Auto && has_gpus => {
                observer.note(&format!("device: cpu, where alone {} works", spelling.option(option)));
                Self::Cpu
            }
            _ => self,
        }
    }

    /// Opens the device, and lets its products in f32 round their inputs to TF32's 10 bits if `tf32` says so.
    ///
    /// # Errors
    /// When this build has no code for the device, the device does not answer, or it has no TF32.
    pub fn open(self, tf32: bool, spelling: Spelling, observer: &dyn Observer) -> anyhow::Result<Device> {
        let device = self.device(spelling, observer)?;
        if tf32 {
            if !device.is_cuda() {
                bail!(
                    "{} is for {}: other devices have no TF32",
                    spelling.option("tf32"),
                    spelling.given("device", "cuda")
                );
            }
            candle_core::cuda::set_gemm_reduced_precision_f32(true);
        }
        Ok(device)
    }

    fn device(self, spelling: Spelling, observer: &dyn Observer) -> anyhow::Result<Device> {
        let not_built = |kind: &str, name: &str, where_to: &str| {
            let given = spelling.given("device", kind);
            match spelling {
                Spelling::Flags => anyhow::anyhow!(
                    "{given}: this gpt2 was built without {name}; build it with `cargo build --release --features {kind}` {where_to}"
                ),
                Spelling::Keywords => anyhow::anyhow!("{given}: this package was built without {name}"),
            }
        };
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Cuda(_) if !cuda_is_available() => {
                Err(not_built("cuda", "CUDA", "on a machine with the CUDA toolkit"))
            }
            Self::Cuda(n) => candle_fused::open_cuda(n).with_context(|| {
                let given = spelling.given("device", format!("cuda:{n}"));
                format!("{given}: this GPU does not respond; `nvidia-smi` shows which GPUs there are")
            }),
            Self::Metal(_) if !metal_is_available() => Err(not_built("metal", "Metal", "on macOS")),
            Self::Metal(n) => Device::new_metal(n).with_context(|| {
                format!("{}: this GPU does not respond", spelling.given("device", format!("metal:{n}")))
            }),
            Self::Auto => Ok(Self::first_that_answers(spelling, observer)),
        }
    }

    fn first_that_answers(spelling: Spelling, observer: &dyn Observer) -> Device {
        let built_in = [
            (cuda_is_available(), Self::Cuda(0), "cuda:0"),
            (metal_is_available(), Self::Metal(0), "metal:0"),
        ];
        for (_, choice, name) in built_in.into_iter().filter(|(is_built_in, ..)| *is_built_in) {
            match choice.device(spelling, observer) {
                Ok(device) => {
                    observer.found("device", name);
                    return device;
                }
                Err(error) => observer.note(&format!("{error:#}; trying the next device")),
            }
        }
        observer.found("device", "cpu");
        Device::Cpu
    }
}

/// `cpu`, `cuda:0` or `metal:0`, as [`DeviceChoice`] parses it.
#[must_use]
pub fn device_name(device: &Device) -> String {
    match device.location() {
        DeviceLocation::Cpu => "cpu".to_owned(),
        DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
    }
}

/// Whether products in f32 round their inputs to TF32 on this device.
#[must_use]
pub fn rounds_to_tf32(device: &Device) -> bool {
    // Without CUDA, Candle's stand-in always says that they do.
    device.is_cuda() && candle_core::cuda::gemm_reduced_precision_f32()
}
